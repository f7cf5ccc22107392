"""Says in one line why Spark does not start. Java writes the reason to stderr, among pages of traces."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from pushhub.common.errors import FailedPrecondition, first_line

STDERR = 2
#: What stands before the reason in a line of Java.
BEFORE = re.compile(
    r'(Caused by: |Exception in thread "[^"]*" |[\d-]+ [\d:]+ ERROR \S+ )?([\w.$]+(Exception|Error): )?(\[[A-Z_.]+\] )?'
)
#: Lines that do not have the reason.
OTHER = re.compile(r"\s|WARNING|Picked up |.* ERROR SparkContext: Error initializing SparkContext|$")
PIPE_BYTES = 64 * 1024
#: How long the reader of stderr may take to read what is written. Java stays if only the session fails.
READ_SECONDS = 1.0


@contextmanager
def spark_starting() -> Iterator[None]:
    """Start Java in the block. Raises FailedPrecondition, which has Java's reason, if the block fails.

    Meanwhile stderr is held back. If Spark starts, it is passed on, and so is what Java writes later.
    """
    readable, writable = os.pipe()
    held = _Held(readable, os.dup(STDERR))
    os.dup2(writable, STDERR)
    os.close(writable)
    reader = threading.Thread(target=held.read, name="stderr", daemon=True)
    reader.start()
    try:
        yield
    except Exception as error:
        os.dup2(held.stderr, STDERR)
        reader.join(READ_SECONDS)
        raise FailedPrecondition(f"Spark does not start: {held.reason() or first_line(error)}") from error
    os.dup2(held.stderr, STDERR)
    held.release()


class _Held:
    """What is written to a pipe in place of stderr."""

    def __init__(self, readable: int, stderr: int) -> None:
        self.stderr = stderr
        self._readable = readable
        self._lock = threading.Lock()
        self._chunks: list[bytes] | None = []

    def read(self) -> None:
        """Read until nobody can write any more."""
        while chunk := os.read(self._readable, PIPE_BYTES):
            with self._lock:
                if self._chunks is None:
                    os.write(self.stderr, chunk)
                else:
                    self._chunks.append(chunk)
        # By now STDERR is the old one again, because it was one of those who could write.
        os.close(self._readable)
        os.close(self.stderr)

    def release(self) -> None:
        """Write to stderr what was held back, and what comes."""
        with self._lock:
            os.write(STDERR, b"".join(self._chunks or []))
            self._chunks = None

    def reason(self) -> str:
        """Return the reason among the lines that Java wrote, or "" if there is none."""
        with self._lock:
            lines = b"".join(self._chunks or []).decode(errors="replace").splitlines()
        causes = [line for line in lines if line.startswith("Caused by: ")]
        telling = causes[-1:] or [line for line in lines if not OTHER.match(line)]
        return BEFORE.sub("", telling[0], count=1).strip() if telling else ""
