"""A redis-server of a test's own, which the test may stop and start; it keeps nothing across a restart."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import TracebackType
from typing import Self

import redis

from pushhub.runtime import embedded
from tests.ports import wait_for


class RedisServer:
    """A redis-server that is started on entry and stopped on exit, with further options of its command line."""

    def __init__(self, folder: Path, *options: str) -> None:
        self._options = options
        self._folder = folder
        self._socket = folder / "redis.sock"
        self._process: subprocess.Popen[bytes] | None = None
        self.url = f"unix://{self._socket}"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None

    def start(self) -> None:
        self._process = subprocess.Popen([*embedded.command(socket=self._socket, folder=self._folder), *self._options])
        with redis.Redis(unix_socket_path=str(self._socket)) as client:
            wait_for(lambda: self._answers(client), what="Redis")

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(timeout=10)
            self._process = None

    def replace(self) -> subprocess.Popen[bytes]:
        """Put an empty server in place of the one that runs, which keeps its connections. Return its process."""
        assert self._process is not None
        old, self._process = self._process, None
        own, self._socket = self._socket, self._folder / "new.sock"
        self.start()
        self._socket = self._socket.rename(own)
        return old

    def _answers(self, client: redis.Redis) -> bool:
        assert self._process is not None and self._process.poll() is None, "the server did not start"
        try:
            return bool(client.ping())
        except redis.ConnectionError:
            return False
