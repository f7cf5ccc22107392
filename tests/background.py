"""Commands that run beside one another, and show one after the other what they print."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType

LOOK_EVERY_SECONDS = 0.1


class BackgroundCommand:
    """A command that is running. At the end of the `with` statement, it has ended.

    Ctrl-C reaches it too, and it may take its time to clean up. A second Ctrl-C kills it.
    """

    def __init__(self, title: str, command: list[str], *, folder: Path, is_shown: bool) -> None:
        """Start the command. Unless `is_shown`, `finish` prints the title and what the command has printed."""
        self._title = f"\n== {title} =="
        self._output = None if is_shown else folder / f"{title}.txt"
        if self._output:
            with self._output.open("wb") as output:
                self._process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        else:
            print(self._title, flush=True)
            self._process = subprocess.Popen(command)

    def __enter__(self) -> BackgroundCommand:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        wait_or_kill(self._process)

    def finish(self) -> int:
        """Show what the command prints until it ends, and return its exit status."""
        if self._output:
            print(self._title, flush=True)
            with self._output.open("rb") as printed:
                has_ended = False
                while not has_ended:
                    has_ended = self._process.poll() is not None
                    sys.stdout.buffer.write(printed.read())
                    sys.stdout.flush()
                    time.sleep(LOOK_EVERY_SECONDS)
        return self._process.wait()


def wait_or_kill(process: subprocess.Popen[bytes]) -> None:
    """Wait for the end of a process, and kill it at Ctrl-C."""
    try:
        process.wait()
    except KeyboardInterrupt:
        process.kill()
        process.wait()
