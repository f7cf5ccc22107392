"""`manage.py pipeline backfill`: counts segments of a time in the past."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError
from datetime import UTC, datetime
from typing import Any, TextIO

from deliveries.pipeline.cli.rollup import journal_folder
from deliveries.pipeline.session import command_session
from deliveries.telemetry.counting import ledger
from deliveries.telemetry.counting.rollup import backfill
from deliveries.telemetry.runs import Kind, running
from pushhub.common.errors import InvalidArgument

HELP = "Count the segments of a past time that are not counted yet. It may run beside the rollup."


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--from", dest="since", required=True, type=moment, help="such as 2026-11-21T04:00Z")
    parser.add_argument("--to", dest="until", type=moment, help="the default is now")
    parser.add_argument(
        "--rebuild", action="store_true", help="also compute the hours and days of that time again, from the minutes"
    )


def run(*, stdout: TextIO, since: datetime, until: datetime | None, rebuild: bool, **_: Any) -> None:
    until = until or datetime.now(UTC)
    if since >= until:
        raise InvalidArgument("--from must come before --to.")
    with running(Kind.BACKFILL) as noted:
        added = backfill(journal_folder(), session=command_session("backfill"), since=since, until=until)
        noted.add(added.rows)
    stdout.write(f"{added.rows} events of {added.segments} segments counted, {added.skipped} were counted before")
    if rebuild:
        stdout.write(f"{ledger.rebuild(since=since, until=until)} rows of hours and days added up again")


def moment(text: str) -> datetime:
    """Parse a time. Without a time zone it is in UTC."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is not a time: give one like 2026-11-21T04:00Z") from None
    return time if time.tzinfo else time.replace(tzinfo=UTC)
