"""`manage.py pipeline report`: the health of all endpoints, as one HTML file."""

from __future__ import annotations

import re
from argparse import ArgumentParser, ArgumentTypeError
from datetime import timedelta
from pathlib import Path
from typing import Any, TextIO

from deliveries.pipeline.report import Scope, report
from pushhub.common.clock import utcnow
from pushhub.common.errors import InvalidArgument
from subscriptions.selectors import project_get

HELP = "Write a report on success, latencies, hosts, windows and dead letters: one HTML file."
#: It reads what the rollup has counted, so it needs no Java of its own.
NEEDS_SPARK = False
_LENGTH = re.compile(r"([1-9][0-9]{0,3})([hd])")


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--last", type=length, default="7d", help="how long to look back, such as 24h or 7d")
    parser.add_argument("--out", type=Path, required=True, help="the file to write")
    parser.add_argument("--project", default="", help="of one project; of all, unless given")
    parser.add_argument(
        "--objective", type=float, default=99.9, help="the share of pushes that should be acked, in per cent"
    )


def run(*, stdout: TextIO, last: timedelta, out: Path, project: str, objective: float, **_: Any) -> None:
    if not 0 < objective < 100:
        raise InvalidArgument("--objective lies between 0 and 100.")
    name = project_get(project=project).project_id if project else ""
    page = report(Scope(project=name, length=last, objective=objective / 100, now=utcnow()))
    try:
        out.write_text(page, encoding="utf-8")
    except OSError as error:
        raise InvalidArgument(f"{out} cannot be written: {error.strerror}.") from None
    stdout.write(f"{out}: {len(page.encode()) // 1024} KB")


def length(text: str) -> timedelta:
    found = _LENGTH.fullmatch(text)
    if found is None:
        raise ArgumentTypeError(f"{text!r} is no length: give one such as 24h or 7d")
    return timedelta(hours=int(found[1])) if found[2] == "h" else timedelta(days=int(found[1]))
