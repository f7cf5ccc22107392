"""`manage.py pipeline archive`: messages to Parquet, for good."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path
from typing import Any, TextIO

from django.conf import settings

from deliveries.pipeline.archive import Archiver, only_archiver
from deliveries.pipeline.session import spark_session

HELP = "Write messages that are a minute old to the archive, as Parquet files."


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--compact", action="store_true", help="then make one file of a day's small ones")


def run(*, stdout: TextIO, stderr: TextIO, compact: bool, **_: Any) -> None:
    root = Path(settings.ARCHIVE)
    with only_archiver(root):
        session = spark_session(
            "pushhub archive", master=settings.SPARK_MASTER, memory=settings.SPARK_MEMORY, extra=settings.SPARK_CONF
        )
        archiver = Archiver(root, session=session, progress=stderr.write)
        done = archiver.run()
        stdout.write(f"archived {done.messages:,} messages in {done.files} files under {root}")
        if compact:
            stdout.write(f"compacted {archiver.compact()} days")
