"""Real workers for tests: `celery worker` processes on the test's own database and Redis."""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Self

from django.db import connection

from deliveries.pipeline.service import database_url as database_url
from deliveries.store.writelock import write_transaction
from tests.ownprocess import OwnProcess
from tests.pipeline.quickjava import QUICK_SPARK
from tests.ports import wait_for
from tests.preloaded import PreloadedProcess

ROOT = Path(__file__).parent.parent


def command_environment(**settings: str) -> dict[str, str]:
    """Return the environment of a command of the pipeline in a process of its own, on this test's database."""
    return {
        "DJANGO_SETTINGS_MODULE": "pushhub.settings",
        "PUSHHUB_DATABASE_URL": database_url(),
        "PUSHHUB_SPARK_MASTER": "local[2]",
        "PUSHHUB_SPARK_CONF": QUICK_SPARK,
        **settings,
    }


class Worker(OwnProcess):
    """One worker process. Leaving the block stops it warmly; `kill` is kill -9. `first` is code that it runs first."""

    def __init__(
        self,
        redis_url: str,
        *,
        name: str = "push",
        region: str = "local",
        queue: str = "",
        beat: bool = False,
        stock: bool = False,
        first: str = "",
        options: Sequence[str] = (),
        **settings: str,
    ) -> None:
        broker = ["-b", redis_url.replace("unix://", "redis+socket://")] if stock else []
        queue = queue or f"deliveries.{region}"
        words = ["-Q", queue, "-P", "solo", "-n", f"{name}@test", "--events", "--without-mingle", *options]
        words += ["--beat"] if beat else []
        super().__init__(
            *("celery", *broker, "-A", "pushhub", "worker", *words),
            redis_url=redis_url,
            settings={"PUSHHUB_REGION": region} | settings,
            first=first,
        )

    def __enter__(self) -> Self:
        try:
            wait_for(lambda: self.process.poll() is not None or " ready." in self.log)
            assert self.process.poll() is None, self.log
        except AssertionError:
            self.process.kill()
            self.process.wait()
            raise
        return self

    def celery(self, *arguments: str) -> str:
        """Return what a `celery` command, such as `inspect active` or `control revoke ID`, prints about this worker."""
        with tempfile.NamedTemporaryFile(suffix=".log") as output:
            words = ["celery", "-A", "pushhub", *arguments]
            PreloadedProcess(*words, environment=self._env, log=output.name).wait(timeout=600)
            return output.read().decode()

    def stop(self) -> int:
        """Shut the worker down warmly, also a frozen one, and return the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
        return super().stop()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(timeout=10)

    def suspend(self) -> None:
        """Freeze the worker, and return once each of its threads stands still.

        On SQLite it is frozen outside of transactions: its lock would hold up all others, and nobody could end it.
        """
        with write_transaction() if connection.vendor == "sqlite" else nullcontext():
            self.process.send_signal(signal.SIGSTOP)
            wait_for(lambda: set(self._thread_states()) <= {"T", "t"}, what="the worker's threads to stop")

    def _thread_states(self) -> Iterator[str]:
        for stat in Path(f"/proc/{self.process.pid}/task").glob("*/stat"):
            yield stat.read_text().rpartition(")")[2].split()[0]

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)
