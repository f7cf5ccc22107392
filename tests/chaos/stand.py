"""The processes of a storm: two hosts with a push worker, a web server and a maintenance worker each, and one gRPC.

Host `a` reaches Redis and PostgreSQL directly, host `b` through proxies, so that the network between them can fail.
"""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from tests import preloaded
from tests.ports import free_port, wait_for
from tests.preloaded import PreloadedProcess
from tests.programs import postgresql_programs
from tests.proxy import Proxy
from tests.redisserver import RedisServer
from tests.with_postgresql import PostgresqlServer

HOSTS = ("a", "b")
#: The roles that both hosts have.
ROLES = ("push", "web", "maintenance")
MEMBERS = (*(f"{role}-{host}" for role in ROLES for host in HOSTS), "grpc-a")
#: Settings that bring rare code into play within a minute: backlogs that are paged, and short drains.
SETTINGS = {
    "PUSHHUB_BACKLOG_LIMIT": "200",
    "PUSHHUB_DRAIN_SECONDS": "3",
    "PUSHHUB_DEVELOPMENT": "1",
    "PUSHHUB_ALLOW_HTTP": "1",
    "PUSHHUB_ALLOW_PRIVATE": "1",
    "PUSHHUB_ANONYMOUS": "user:storm@localhost",
    # A web server that forks others would hide from the faults.
    "PUSHHUB_WEB_WORKERS": "1",
    "DJANGO_SETTINGS_MODULE": "pushhub.settings",
}
#: PostgreSQL as it is by default, but for the disk, which is small, and which no power cut hits.
POSTGRESQL_OPTIONS = "-c fsync=off -c jit=off -c max_wal_size=128MB"
READY_SECONDS = 120.0
#: The states of a process that has ended: nobody has waited for it yet, or it is gone.
ENDED = ("Z", "")


def state_of(pid: int) -> str:
    """Return the state that Linux reports of a process, such as S or, for a stopped one, T; "" if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


@dataclass
class Member:
    """A process of PushHub that faults end and stop, and that is started again, as a supervisor would."""

    name: str
    words: list[str]
    environment: dict[str, str]
    log: Path
    clock: Path
    bugs: tuple[str, ...]
    ready: str
    process: PreloadedProcess | None = None
    #: False while a fault or the end of the storm has ended it on purpose.
    is_wanted: bool = False

    @property
    def host(self) -> str:
        return self.name.rpartition("-")[2]

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def start(self) -> None:
        from tests.chaos.inside import clock_set

        clock_set(self.clock, 0.0)
        self.log.touch()
        first = f"from tests.chaos.inside import prepare\nprepare({str(self.clock)!r}, {self.bugs!r})"
        self._logged = self.log.stat().st_size
        self.process = PreloadedProcess(*self.words, environment=self.environment, log=str(self.log), first=first)
        self.is_wanted = True

    def wait_until_ready(self) -> None:
        wait_for(self._is_ready, timeout_seconds=READY_SECONDS, what=f"the ready line of {self.name}")

    def _is_ready(self) -> bool:
        assert self.is_running(), f"{self.name} ended while it started; see {self.log}"
        with self.log.open(errors="replace") as log:
            log.seek(self._logged)
            return self.ready in log.read()

    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def kill(self) -> int:
        """End the process by SIGKILL and return its id."""
        # It may be starting again.
        wait_for(self.is_running, timeout_seconds=READY_SECONDS, what=f"{self.name} running")
        assert self.process is not None
        self.is_wanted = False
        self.process.kill()
        status = self.process.wait(timeout=60)
        assert status == -signal.SIGKILL, f"{self.name} ended with {status} before it was killed"
        return self.pid

    def send(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def terminate(self) -> None:
        """Tell the process to stop warmly."""
        assert self.process is not None
        self.is_wanted = False
        self.send(signal.SIGCONT)
        self.process.terminate()

    def wait(self) -> int:
        """Wait until a process that was told to stop has ended, and return its exit status."""
        assert self.process is not None
        try:
            return self.process.wait(timeout=120)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait(timeout=60)


@dataclass
class Stand:
    """Everything that runs. `folder` gets the logs, the sockets and the database."""

    folder: Path
    database: str
    bugs: tuple[str, ...] = ()
    #: Flower runs too; no fault hits it.
    is_monitored: bool = False
    cells: int = 1
    #: Settings in place of SETTINGS.
    settings: Mapping[str, str] = field(default_factory=dict)
    members: dict[str, Member] = field(default_factory=dict)
    proxies: dict[str, Proxy] = field(default_factory=dict)
    postgresql: PostgresqlServer | None = None
    #: The database is on a file system of its own, so that it can be full.
    has_small_disk: bool = False

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self.disk = self.folder / "disk"
            self.disk.mkdir()
            self._mount(stack)
            self.redis = stack.enter_context(RedisServer(self._new_folder("redis")))
            if self.database == "postgresql":
                self._start_postgresql(stack)
            self._start_proxies(stack)
            self._set_environment()
            self._make_tables()
            preloaded.start()
            stack.callback(self._end_members)
            self._start_members()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._stack.close()

    def _new_folder(self, name: str) -> Path:
        folder = self.folder / name
        folder.mkdir()
        return folder

    def _mount(self, stack: ExitStack) -> None:
        """Give the database a small disk of its own, if this user may mount one."""
        mount = ["mount", "-t", "tmpfs", "-o", "size=512m,mode=0755", "tmpfs", str(self.disk)]
        if os.geteuid() == 0 and subprocess.run(mount, capture_output=True, check=False).returncode == 0:
            self.has_small_disk = True
            stack.callback(subprocess.run, ["umount", "--lazy", str(self.disk)], check=True)

    def _start_postgresql(self, stack: ExitStack) -> None:
        programs = postgresql_programs()
        assert programs is not None, "PostgreSQL is not installed"
        # The server's user has to reach its folder.
        for folder in (self.folder, self.disk):
            folder.chmod(0o755)
        cluster = self.disk / "cluster"
        cluster.mkdir()
        self.postgresql = PostgresqlServer(cluster, bin_folder=programs, options=POSTGRESQL_OPTIONS)
        self.postgresql.create()
        self.postgresql.start()
        stack.callback(self.postgresql.stop)

    def _start_proxies(self, stack: ExitStack) -> None:
        far = self._new_folder("far")
        far.chmod(0o755)
        self.proxies["redis"] = stack.enter_context(Proxy(far / "redis.sock", str(self.folder / "redis/redis.sock")))
        if self.postgresql is not None:
            name = ".s.PGSQL.5432"
            self.proxies["postgresql"] = stack.enter_context(Proxy(far / name, str(self.disk / "cluster" / name)))

    def database_url(self, host: str) -> str:
        if self.postgresql is None:
            return f"sqlite:///{self.disk / 'pushhub.sqlite3'}"
        return self.postgresql.url if host == "a" else PostgresqlServer.url_at(self.folder / "far")

    def redis_url(self, host: str) -> str:
        return self.redis.url if host == "a" else f"unix://{self.folder / 'far/redis.sock'}"

    def _set_environment(self) -> None:
        """Set the environment of this process, which has Django too: it looks at the database and at Redis itself."""
        for name in [name for name in os.environ if name.startswith("PUSHHUB_")]:
            del os.environ[name]
        os.environ.update(self.environment("a") | {"PUSHHUB_FLOWER": f"127.0.0.1:{free_port()}"})

    def environment(self, host: str) -> dict[str, str]:
        return SETTINGS | {
            "PUSHHUB_DATA": str(self.folder / "data"),
            "PUSHHUB_SECRET_KEY": self._secret,
            "PUSHHUB_DATABASE_URL": self.database_url(host),
            "PUSHHUB_REDIS_URL": self.redis_url(host),
            "PUSHHUB_CELLS": str(self.cells),
            **self.settings,
        }

    _secret: str = field(default_factory=lambda: secrets.token_hex(32), repr=False)

    def _make_tables(self) -> None:
        import django
        from django.conf import settings
        from django.core.management import call_command

        django.setup()
        # Tables are made from the models, in a tenth of the time that all migrations take.
        settings.MIGRATION_MODULES = dict.fromkeys(("auth", "contenttypes", "sessions", "subscriptions", "deliveries"))
        call_command("migrate", run_syncdb=True, interactive=False, verbosity=0)
        (self.folder / "data").mkdir(exist_ok=True)

    def _start_members(self) -> None:
        from pushhub.runtime import processes

        self.web = {host: f"127.0.0.1:{free_port()}" for host in HOSTS}
        self.grpc = f"127.0.0.1:{free_port()}"
        os.environ["PUBSUB_EMULATOR_HOST"] = self.grpc
        logs = self._new_folder("logs")
        clocks = self._new_folder("clocks")
        for name in (*MEMBERS, "flower-a") if self.is_monitored else MEMBERS:
            role, _, host = name.partition("-")
            command = processes.BY_NAME[role]().command[2:]
            words = [word.replace(f"@{socket.gethostname()}", f"@{host}") for word in command]
            addresses = {
                "PUSHHUB_HTTP": self.web[host],
                "PUSHHUB_GRPC": self.grpc,
                "PUSHHUB_GRPC_REST": self.web[host],
            }
            self.members[name] = Member(
                name,
                words,
                {**os.environ, **self.environment(host), **addresses},
                log=logs / f"{name}.log",
                clock=clocks / name,
                bugs=self.bugs,
                ready={"web": "", "flower": "", "grpc": "gRPC at"}.get(role, " ready."),
            )
        for member in self.members.values():
            member.start()
        for member in self.members.values():
            member.wait_until_ready()

    def _end_members(self) -> None:
        for member in self.members.values():
            if member.is_running():
                member.send(signal.SIGCONT)
                member.send(signal.SIGKILL)
                assert member.process is not None
                member.process.wait(timeout=60)

    def supervise(self) -> list[tuple[str, int]]:
        """Start members again that ended by themselves, as a supervisor does. Return their names and exit statuses."""
        ended = [(it, it.process.poll()) for it in self.members.values() if it.is_wanted and it.process is not None]
        ended = [(member, status) for member, status in ended if status is not None]
        for member, _ in ended:
            member.start()
        return [(member.name, status) for member, status in ended]
