"""`manage.py pipeline rollup`: counts attempts into metrics until it is stopped."""

from __future__ import annotations

import signal
from argparse import ArgumentParser
from pathlib import Path
from typing import Any, TextIO

from django.conf import settings

from deliveries.pipeline.session import command_session
from deliveries.telemetry.counting.rollup import Rollup, only_runner
from deliveries.telemetry.runs import Kind, running
from pushhub.common.errors import FailedPrecondition

HELP = "Count the journal's events into the metrics of minutes, hours and days."


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--once", action="store_true", help="count what is there, then end")


def run(*, stdout: TextIO, once: bool, **_: Any) -> None:
    folder = journal_folder()
    with only_runner(folder), running(Kind.ROLLUP) as run:
        session = command_session("rollup", short=once)
        rollup = Rollup(folder, session=session, counted=run.add)
        stdout.write(f"the rollup counts {folder}")
        stdout.flush()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: rollup.stop())
        rollup.once() if once else rollup.run()
        session.stop()


def journal_folder() -> Path:
    """Return the folder of the journal. Raises FailedPrecondition if the journal is off."""
    if not settings.JOURNAL:
        raise FailedPrecondition("PUSHHUB_JOURNAL is off, so there is nothing to count.")
    return Path(settings.JOURNAL)
