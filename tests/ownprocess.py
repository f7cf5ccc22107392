"""A process of PushHub that only one test uses, and whose log is printed if the test fails."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType

import psutil

from deliveries.pipeline.service import database_url
from tests.preloaded import PreloadedProcess


def is_alive(process: psutil.Process) -> bool:
    """Return whether a process has not ended; it may be gone between two looks. A zombie has ended."""
    with suppress(psutil.NoSuchProcess):
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    return False


class OwnProcess:
    """`python -m {words}` on the test's own database and Redis, with `settings` as further environment variables.

    `first` is code that it runs first.
    """

    def __init__(self, *words: str, redis_url: str, settings: Mapping[str, str], first: str = "") -> None:
        self._log = tempfile.NamedTemporaryFile(mode="w+", suffix=".log")  # noqa: SIM115 - closed in __exit__
        env = {
            "DJANGO_SETTINGS_MODULE": "pushhub.settings",
            "PUSHHUB_REDIS_URL": redis_url,
            "PUSHHUB_DATABASE_URL": database_url(),
        }
        self._env = os.environ | env | settings
        self.process = PreloadedProcess(*words, environment=self._env, log=self._log.name, first=first)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.stop()
        if error is not None:
            sys.stderr.write(self.log)
        self._log.close()

    @property
    def log(self) -> str:
        return Path(self._log.name).read_text(errors="replace")

    def forget_peak(self) -> float:
        """Let `peak_mb` begin anew; return the memory now, in MB."""
        for pid in self._family():
            Path(f"/proc/{pid}/clear_refs").write_text("5")
        return self.peak_mb

    @property
    def peak_mb(self) -> float:
        """The most memory that the process and its children ever held, in MB."""
        peaks = [Path(f"/proc/{pid}/status").read_text().partition("VmHWM:")[2].split()[0] for pid in self._family()]
        return sum(map(int, peaks)) / 1024

    def _family(self) -> list[int]:
        pid = self.process.pid
        return [pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]

    def stop(self) -> int:
        """Shut the process down warmly and return the exit code."""
        if self.process.poll() is None:
            self.process.terminate()
        return self.process.wait(timeout=600)
