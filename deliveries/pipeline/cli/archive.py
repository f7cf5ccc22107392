"""`manage.py pipeline archive`: messages to Parquet, for good."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from django.conf import settings

from deliveries.pipeline import needs
from deliveries.pipeline.archiving import files
from deliveries.pipeline.archiving.files import only_archiver
from pushhub.common.errors import FailedPrecondition, InvalidArgument

if TYPE_CHECKING:
    from deliveries.pipeline.archiving.archive import Archiver

HELP = "Write the database's messages to the archive, as Parquet files; or verify its files, or adopt them."
#: Only a run needs Spark.
NEEDS_SPARK = False
#: Paths of one kind that are shown; the rest is counted.
SHOWN = 20


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "action",
        nargs="?",
        choices=("run", "verify", "adopt"),
        default="run",
        help="run (the default) archives; verify reads every file and compares it with the manifest; "
        "adopt rebuilds the manifest from the files",
    )
    parser.add_argument("--compact", action="store_true", help="then make one file of a day's small ones")
    parser.add_argument("--take-over", action="store_true", help="with adopt: the folder was another deployment's")


def run(
    *, stdout: TextIO, stderr: TextIO, action: str, compact: bool, take_over: bool, verbosity: int = 1, **_: Any
) -> None:
    if compact and action != "run":
        raise InvalidArgument(f"--compact does not go with {action}.", field="compact")
    if take_over and action != "adopt":
        raise InvalidArgument("--take-over goes with adopt only.", field="take_over")
    if action == "run" and (lacking := needs.missing()):
        raise FailedPrecondition(lacking)
    root = Path(settings.ARCHIVE)
    with only_archiver(root, take_over=take_over):
        if action == "verify":
            _verify(root, stdout)
        elif action == "adopt":
            _adopt(root, stdout)
        else:
            _archive(root, stdout, stderr, compact=compact, is_quiet=not verbosity)


def _archive(root: Path, stdout: TextIO, stderr: TextIO, *, compact: bool, is_quiet: bool) -> None:
    """Archive; a quiet run says only what it wrote."""
    if not settings.ARCHIVING:
        stderr.write("PUSHHUB_ARCHIVING is off: messages that are acknowledged before a run are not archived")
    archiver = _archiver(root, stderr, is_quiet=is_quiet)
    done = archiver.run()
    if done.messages or not is_quiet:
        stdout.write(f"archived {done.messages:,} messages in {done.files} files under {root}")
    if compact and ((days := archiver.compact()) or not is_quiet):
        stdout.write(f"compacted {days} days")


def _archiver(root: Path, stderr: TextIO, *, is_quiet: bool) -> Archiver:
    from deliveries.pipeline.archiving.archive import Archiver
    from deliveries.pipeline.session import spark_session

    session = spark_session(
        "pushhub archive", master=settings.SPARK_MASTER, memory=settings.SPARK_MEMORY, extra=settings.SPARK_CONF
    )
    return Archiver(root, session=session, progress=(lambda _: None) if is_quiet else stderr.write)


def _verify(root: Path, stdout: TextIO) -> None:
    found = files.verify(root)
    stdout.write(f"{found.files} files with {found.messages:,} messages are as the manifest says")
    _list(stdout, "not in the folder", found.missing)
    _list(stdout, "damaged", [f"{path}: {reason}" for path, reason in found.damaged])
    _list(stdout, "not in the manifest, and left alone", found.unknown)
    if found.missing or found.damaged:
        raise FailedPrecondition(
            f"{len(found.missing)} files of the manifest are missing and {len(found.damaged)} are damaged; "
            "`pipeline archive adopt` makes the manifest what the files say."
        )


def _adopt(root: Path, stdout: TextIO) -> None:
    found = files.adopt(root)
    _list(stdout, "added to the manifest", found.added)
    _list(stdout, "missing or damaged, and no longer in the manifest", found.dropped)
    _list(stdout, "redundant: other files have every message", found.redundant)
    _list(stdout, "no archive's, and left alone", [f"{path}: {reason}" for path, reason in found.foreign])
    if found.repeated:
        stdout.write(f"{found.repeated:,} messages are in two files")
    stdout.write(f"{found.archived:,} messages of the database are in the archive")


def _list(stdout: TextIO, title: str, lines: list[str]) -> None:
    if lines:
        stdout.write(f"{len(lines)} {title}:")
    for line in lines[:SHOWN]:
        stdout.write(f"  {line}")
    if len(lines) > SHOWN:
        stdout.write(f"  and {len(lines) - SHOWN} more")
