"""`manage.py pipeline archive`: writes messages to Parquet files, where they stay."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import TYPE_CHECKING, Any, TextIO

from django.conf import settings

from deliveries.pipeline import needs
from deliveries.pipeline.archiving import files
from deliveries.pipeline.archiving.locks import only_archiver
from deliveries.rules.ids import publish_time_ms
from deliveries.store import messagerows
from deliveries.telemetry.runs import Kind, running
from pushhub.common.clock import utcnow
from pushhub.common.errors import FailedPrecondition, InvalidArgument

if TYPE_CHECKING:
    from deliveries.pipeline.archiving.archive import Archiver

HELP = "Write the database's messages to the archive as Parquet files, or verify or adopt the archive's files."
#: Only the action `run` needs Spark.
NEEDS_SPARK = False
#: How many paths of a kind are listed. The others are only counted.
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
    parser.add_argument("--compact", action="store_true", help="then merge each day's small files into one")
    parser.add_argument("--take-over", action="store_true", help="with adopt: take over another deployment's archive")


def run(
    *, stdout: TextIO, stderr: TextIO, action: str, compact: bool, take_over: bool, verbosity: int = 1, **_: Any
) -> None:
    if compact and action != "run":
        raise InvalidArgument(f"--compact does not go with {action}.", field="compact")
    if take_over and action != "adopt":
        raise InvalidArgument("--take-over goes with adopt only.", field="take_over")
    if action == "run" and (lacking := needs.missing()):
        raise FailedPrecondition(lacking)
    root = settings.ARCHIVE
    with only_archiver(root, take_over=take_over):
        if action == "verify":
            _verify(root, stdout)
        elif action == "adopt":
            _adopt(root, stdout)
        else:
            _archive(root, stdout, stderr, compact=compact, is_quiet=not verbosity)


def _archive(root: str, stdout: TextIO, stderr: TextIO, *, compact: bool, is_quiet: bool) -> None:
    """Archive. A quiet run prints nothing if it had nothing to do."""
    if not settings.ARCHIVING:
        stderr.write("PUSHHUB_ARCHIVING is off: messages that are acknowledged before a run are not archived")
    waited = _waited_seconds()
    with running(Kind.ARCHIVE, lag=lambda: waited) as noted:
        archiver = _archiver(root, stderr, is_quiet=is_quiet)
        done = archiver.run()
        noted.add(done.messages)
    if done.messages or not is_quiet:
        stdout.write(f"archived {done.messages:,} messages in {done.files} files under {root}")
    if compact:
        with running(Kind.COMPACTION) as noted:
            days = archiver.compact(written=noted.add)
        if days or not is_quiet:
            stdout.write(f"compacted {days} days")


def _waited_seconds() -> float | None:
    """Return for how long the oldest message has waited for the archive; None if none waits."""
    oldest = messagerows.oldest_unarchived()
    return None if oldest is None else utcnow().timestamp() - publish_time_ms(oldest) / 1000


def _archiver(root: str, stderr: TextIO, *, is_quiet: bool) -> Archiver:
    from deliveries.pipeline.archiving.archive import Archiver
    from deliveries.pipeline.session import command_session

    progress = (lambda _: None) if is_quiet else stderr.write
    return Archiver(root, session=command_session("archive"), progress=progress)


def _verify(root: str, stdout: TextIO) -> None:
    verified = files.verify(root)
    stdout.write(f"{verified.files} files with {verified.messages:,} messages are as the manifest says")
    _list(stdout, "not in the folder", verified.missing)
    _list(stdout, "damaged", [f"{path}: {reason}" for path, reason in verified.damaged])
    _list(stdout, "not in the manifest, and left alone", verified.unknown)
    if verified.missing or verified.damaged:
        raise FailedPrecondition(
            f"{len(verified.missing)} files of the manifest are missing and {len(verified.damaged)} are damaged; "
            "`pipeline archive adopt` rebuilds the manifest from the files."
        )


def _adopt(root: str, stdout: TextIO) -> None:
    adopted = files.adopt(root)
    _list(stdout, "added to the manifest", adopted.added)
    _list(stdout, "missing or damaged, and no longer in the manifest", adopted.dropped)
    _list(stdout, "redundant: other files have every message", adopted.redundant)
    _list(stdout, "not files of the archive, and left alone", [f"{path}: {reason}" for path, reason in adopted.foreign])
    if adopted.repeated:
        stdout.write(f"{adopted.repeated:,} messages are in two files")
    stdout.write(f"{adopted.archived:,} messages of the database are in the archive")


def _list(stdout: TextIO, title: str, lines: list[str]) -> None:
    if lines:
        stdout.write(f"{len(lines)} {title}:")
    for line in lines[:SHOWN]:
        stdout.write(f"  {line}")
    if len(lines) > SHOWN:
        stdout.write(f"  and {len(lines) - SHOWN} more")
