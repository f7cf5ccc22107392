"""A real web server for tests: the process `web` on the test's own database and Redis."""

from __future__ import annotations

import http.client
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.ports import free_port, wait_for
from tests.workers import ROOT, database_url


class WebServer:
    """One web server; `settings` are more environment variables."""

    def __init__(self, redis_url: str, **settings: str) -> None:
        self._log = tempfile.NamedTemporaryFile(mode="w+", suffix=".log")  # noqa: SIM115 - closed in __exit__
        self.address = ("127.0.0.1", free_port())
        self.url = "http://{}:{}".format(*self.address)
        env = os.environ | {
            "DJANGO_SETTINGS_MODULE": "pushhub.settings",
            "PUSHHUB_REDIS_URL": redis_url,
            "PUSHHUB_DATABASE_URL": database_url(),
            "PUSHHUB_HTTP": "{}:{}".format(*self.address),
        }
        self.process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "pushhub.processes", "web"],
            cwd=ROOT,
            env=env | settings,
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )

    def __enter__(self) -> Self:
        wait_for(lambda: self.process.poll() is not None or self._answers(), what="the web server")
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

    def status(self, path: str = "/healthz", *, source: str = "127.0.0.1") -> int:
        """The status of a GET on a new connection from a local address; 0 where there is no answer."""
        connection = http.client.HTTPConnection(*self.address, timeout=30, source_address=(source, 0))
        try:
            connection.request("GET", path)
            return connection.getresponse().status
        except (OSError, http.client.HTTPException):
            return 0
        finally:
            connection.close()

    def _answers(self) -> bool:
        return self.status() == 200

    def stop(self) -> int:
        """Warm shutdown; returns the exit code."""
        self.process.terminate()
        return self.process.wait(timeout=60)
