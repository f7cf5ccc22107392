"""A real gRPC server for tests: `python -m pushhub.grpcserver` on the test's own database and Redis."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.ports import free_port, wait_for
from tests.workers import ROOT, database_url


class GrpcServer:
    """One server process; `rest` is the address of the web server that its port leads to."""

    def __init__(self, redis_url: str, *, rest: str, **settings: str) -> None:
        self._log = tempfile.NamedTemporaryFile(mode="w+", suffix=".log")  # noqa: SIM115 - closed in __exit__
        self.address = f"127.0.0.1:{free_port()}"
        env = os.environ | {
            "DJANGO_SETTINGS_MODULE": "pushhub.settings",
            "PUSHHUB_REDIS_URL": redis_url,
            "PUSHHUB_DATABASE_URL": database_url(),
            "PUSHHUB_GRPC": self.address,
            "PUSHHUB_GRPC_REST": rest.removeprefix("http://"),
        }
        self.process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "pushhub.grpcserver"],
            cwd=ROOT,
            env=env | settings,
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )

    def __enter__(self) -> Self:
        wait_for(lambda: self.process.poll() is not None or "gRPC at" in self.log, timeout_seconds=60, what="gRPC")
        assert self.process.poll() is None, self.log
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.stop()
        if error is not None:
            sys.stderr.write(self.log)
        self._log.close()

    @property
    def log(self) -> str:
        return Path(self._log.name).read_text(errors="replace")

    def stop(self) -> int:
        """Warm shutdown; returns the exit code."""
        self.process.terminate()
        return self.process.wait(timeout=60)
