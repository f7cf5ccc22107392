"""Installs PySpark and Java in the background of `make up`, and then starts the rollup.

Only the virtual environment of a checkout is changed. PushHub installed from a wheel may share its environment with
other programs, so the user decides there: `pip install 'pushhub[spark]'`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from deliveries.pipeline import needs
from pushhub.runtime.crew import Crew
from pushhub.runtime.embedded import END_WITH_PARENT
from pushhub.runtime.processes import Process

LOG = "spark-install.log"
#: How long the installer may take to end when PushHub stops.
STOP_SECONDS = 10.0


def install_command() -> list[str]:
    """Return the command line that installs what Spark needs, at the lowest priority."""
    nice = [path, "-n", "19"] if (path := shutil.which("nice")) else []
    return [*nice, "make", "--no-print-directory", "--directory", str(needs.ROOT), "install-spark"]


class SparkInstall:
    """One run of the installer."""

    def __init__(
        self,
        crew: Crew,
        *,
        folder: Path,
        rollup: Callable[[], Process],
        command: Sequence[str] | None = None,
        missing: Callable[[], str] = needs.missing,
    ) -> None:
        """`rollup` returns the process to start, `folder` is for the log, `missing` returns what Spark still needs."""
        self._crew = crew
        self._log = folder / LOG
        self._rollup = rollup
        self._command = [*END_WITH_PARENT, *(command or install_command())]
        self._missing = missing
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._crew.say("installing PySpark and Java in the background, half a gigabyte; PUSHHUB_SPARK=off prevents it")
        try:
            with self._log.open("wb") as output:
                self._process = subprocess.Popen(  # noqa: S603
                    self._command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
        except OSError as error:
            self._failed(str(error))

    def poll(self) -> None:
        """If the installer has ended since the last call, start the rollup or report the failure."""
        if self._process is None or (status := self._process.poll()) is None:
            return
        self._process = None
        if status:
            self._failed(f"see {self._log}")
        elif lacking := self._missing():
            self._failed(lacking)
        else:
            self._crew.say("Spark is installed and takes over from the embedded counter")
            self._crew.start(self._rollup())

    def stop(self) -> None:
        """End the installer if it still runs. The next start of PushHub installs again."""
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(timeout=STOP_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _failed(self, reason: str) -> None:
        self._crew.say(f"Spark cannot be installed, so the embedded counter goes on: {reason}")
