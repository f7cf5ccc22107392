"""`manage.py pipeline report`: writes a report on the health of all endpoints, as one HTML file."""

from __future__ import annotations

import re
from argparse import ArgumentParser, ArgumentTypeError
from datetime import timedelta
from pathlib import Path
from typing import Any, TextIO

from deliveries.pipeline.report import Scope, report
from pushhub.common.clock import utcnow
from pushhub.common.errors import InvalidArgument
from pushhub.common.stores import rewritten_file
from subscriptions.selectors import get_project

HELP = "Write a report on success, latencies, hosts, windows and dead letters: one HTML file."
#: The report reads the metrics in the database.
NEEDS_SPARK = False
_LENGTH = re.compile(r"([1-9][0-9]{0,3})([hd])")


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--last", type=length, default="7d", help="how long to look back, such as 24h or 7d")
    parser.add_argument("--out", type=Path, required=True, help="the file to write")
    parser.add_argument("--project", default="", help="only this project; the default is all projects")
    parser.add_argument("--objective", type=float, default=99.9, help="the percentage of pushes that should be acked")


def run(*, stdout: TextIO, last: timedelta, out: Path, project: str, objective: float, **_: Any) -> None:
    if not 0 < objective < 100:
        raise InvalidArgument("--objective must lie between 0 and 100.")
    name = get_project(project=project).project_id if project else ""
    page = report(Scope(project=name, length=last, objective=objective / 100, now=utcnow()))
    try:
        with rewritten_file(out) as file:
            file.write(page.encode())
    except OSError as error:
        raise InvalidArgument(f"{out} cannot be written: {error.strerror}.") from None
    stdout.write(f"{out}: {len(page.encode()) // 1024} KB")


def length(text: str) -> timedelta:
    """Parse a length of time in hours or days, such as 24h or 7d."""
    match = _LENGTH.fullmatch(text)
    if match is None:
        raise ArgumentTypeError(f"{text!r} is not a length of time: give one such as 24h or 7d")
    return timedelta(hours=int(match[1])) if match[2] == "h" else timedelta(days=int(match[1]))
