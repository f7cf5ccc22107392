"""Commands that run beside one another, and show one after the other what they print.

A command removes a file to tell that it no longer keeps the machine busy, so that the next one can begin.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType

#: The environment variable with the path of the file that the command removes.
BUSY_FILE = "TESTS_BUSY_FILE"
LOOK_EVERY_SECONDS = 0.1


class BackgroundCommand:
    """A command that is running. At the end of the `with` statement, it has ended.

    Ctrl-C reaches it too, and it may take its time to clean up. A second Ctrl-C kills it.
    """

    def __init__(self, title: str, command: list[str], *, folder: Path, is_shown: bool) -> None:
        """Start the command. Unless `is_shown`, `finish` prints the title and what the command has printed."""
        self._title = f"\n== {title} =="
        self._busy_file = folder / f"{title} is busy"
        self._busy_file.touch()
        self._output = None if is_shown else folder / f"{title}.txt"
        environment = {**os.environ, BUSY_FILE: str(self._busy_file)}
        if self._output:
            with self._output.open("wb") as output:
                self._process = subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT)
        else:
            print(self._title, flush=True)
            self._process = subprocess.Popen(command, env=environment)

    def __enter__(self) -> BackgroundCommand:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        wait_or_kill(self._process)

    def wait_while_busy(self) -> None:
        """Wait until the command has removed its file or has ended."""
        while self._busy_file.exists() and self._process.poll() is None:
            time.sleep(LOOK_EVERY_SECONDS)

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


def busy_file_remove() -> None:
    """Tell, if this process is such a command, that the next one can begin."""
    if path := os.environ.get(BUSY_FILE):
        Path(path).unlink(missing_ok=True)


def wait_or_kill(process: subprocess.Popen[bytes]) -> None:
    """Wait for the end of a process, and kill it at Ctrl-C."""
    try:
        process.wait()
    except KeyboardInterrupt:
        process.kill()
        process.wait()
