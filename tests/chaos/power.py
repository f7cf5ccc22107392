"""A power cut: what was written and not synchronized is gone, in part or whole.

    python -m tests.chaos.power --seed 1 --cuts 20 --database postgresql

`unsynced.c`, loaded into the processes before their libraries, keeps the content that each file had when it was last
synchronized. The cut kills everything, and then each page of 4 KiB that differs from that content is kept or dropped by
the dice. A file that was never synchronized and of which no page is kept is gone. Names are not lost: the renaming and
the removal of files count as done, as if the file system had written its directories first.
"""

from __future__ import annotations

import argparse
import base64
import itertools
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import psycopg
import requests

from tests.chaos.stand import ENDED, SETTINGS, state_of
from tests.ports import free_port, wait_for
from tests.preloaded import PreloadedProcess
from tests.programs import postgresql_programs
from tests.receiver import Receiver, Request
from tests.redisserver import RedisServer
from tests.with_postgresql import PostgresqlServer
from tests.workers import ROOT

PAGE_BYTES = 4096
#: The share of unsynchronized pages that the disk has written by itself.
KEPT = (0.0, 0.3, 0.8)
#: The cut comes once so many messages were acknowledged.
FEWEST, MOST = 100, 400
PUBLISHERS, BATCH = 4, 3
TABLES = """
from django.conf import settings
settings.MIGRATION_MODULES = dict.fromkeys(("auth", "contenttypes", "sessions", "subscriptions", "deliveries"))
"""
#: A Python that imports everything and forks the processes. All end when one ends.
PROCESSES = """
import os, runpy, signal, sys
{first}
import tests.preloadedapps
for words in (
    ["pushhub.runtime.webserver"],
    ["celery", "--app=pushhub", "--quiet", "worker", "--queues=deliveries.local", "--pool=solo", "--events"],
):
    if not os.fork():
        sys.argv = words
        runpy.run_module(words[0], run_name="__main__")
        sys.exit()
os.wait()
os.killpg(0, signal.SIGKILL)
"""
#: What a careless setting would be, for the proof that the cut finds it.
CARELESS = """
from django.conf import settings
options = settings.DATABASES["default"].get("OPTIONS", {})
options["init_command"] = options["init_command"].replace("synchronous=FULL", "synchronous=OFF")
"""


def compile_library(folder: Path) -> Path:
    source, library = Path(__file__).with_name("unsynced.c"), folder / "unsynced.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-O2", "-o", library, source], check=True)
    library.chmod(0o755)  # PostgreSQL has a user of its own, which loads it
    return library


@dataclass
class Disk:
    """A folder whose files lose what was not synchronized."""

    folder: Path
    synced: Path
    library: Path

    @property
    def environment(self) -> dict[str, str]:
        return {"LD_PRELOAD": str(self.library), "POWER_DISK": str(self.folder), "POWER_SYNCED": str(self.synced)}

    def begin(self) -> None:
        """Take everything that is there for synchronized. Nothing may be writing."""
        self.synced.mkdir()
        for path in self._files():
            number = path.stat().st_ino
            os.link(path, self.synced / f"{number}.link")
            shutil.copyfile(path, self.synced / f"{number}")
            (self.synced / f"{number}").chmod(0o666)
        self.synced.chmod(0o777)

    def cut(self, dice: random.Random, kept: float) -> int:
        """Drop what was not synchronized, and return how many pages that were. Nothing may be running."""
        dropped = 0
        for path in self._files():
            synced = self.synced / f"{path.stat().st_ino}"
            then, now = synced.read_bytes() if synced.exists() else b"", path.read_bytes()
            pages = list(self._pages(then, now, dice, kept))
            dropped += sum(page is None for page, _ in pages)
            left = b"".join(old if page is None else page for page, old in pages)
            if not left and not synced.exists():
                path.unlink()
            elif left != now:
                with path.open("r+b") as file:
                    file.write(left)
                    file.truncate()
        shutil.rmtree(self.synced)
        return dropped

    @staticmethod
    def _pages(then: bytes, now: bytes, dice: random.Random, kept: float) -> Iterator[tuple[bytes | None, bytes]]:
        """Yield each page, None if it was dropped, and its synchronized content."""
        for at in range(0, max(len(then), len(now)), PAGE_BYTES):
            old, new = then[at : at + PAGE_BYTES], now[at : at + PAGE_BYTES]
            yield (new if old == new or dice.random() < kept else None), old

    def _files(self) -> list[Path]:
        return sorted(path for path in self.folder.rglob("*") if path.is_file())


@dataclass
class Cut:
    """One power cut while messages are published, and what is there afterwards."""

    folder: Path
    database: str
    seed: int
    careless: bool = False
    kept: float | None = None
    #: The data of the messages whose publish was answered, and of those that the endpoint acknowledged.
    answered: set[str] = field(default_factory=set)
    delivered: set[str] = field(default_factory=set)
    dropped: int = 0
    _is_on: bool = True

    def run(self) -> None:
        """Cut the power, and wait until everything acknowledged has arrived. Raises AssertionError if some is lost."""
        dice = random.Random(f"power {self.seed}")
        kept = dice.choice(KEPT) if self.kept is None else self.kept
        (self.folder / "disk").mkdir()
        for folder in (self.folder, self.folder / "disk"):
            folder.chmod(0o755)
        self.disk = Disk(self.folder / "disk", self.folder / "synced", compile_library(self.folder))
        self.log = self.folder / "log"
        self.log.touch()
        with Receiver(self._answer, keeps=False) as receiver:
            self._make_tables()
            self.disk.begin()
            threads: list[threading.Thread] = []
            with self._running() as web:
                threads += self._publish_for_a_while(web, receiver.url, dice)
            for thread in threads:
                thread.join()
            self.dropped = self.disk.cut(dice, kept)
            self.disk.begin()
            self._is_on = False
            with self._running():
                missing = self.answered - self._owed() - self.delivered
                assert not missing, f"{len(missing)} of {len(self.answered)} acknowledged messages are lost"
                wait_for(lambda: self.answered <= self.delivered, timeout_seconds=120, what="every delivery")

    def _answer(self, request: Request) -> int:
        """Acknowledge one half of the messages, and after the cut all."""
        tag = base64.b64decode(request.json["message"]["data"]).decode()
        if self._is_on and tag[-1] in "02468":
            return 503
        self.delivered.add(tag)
        return 204

    def _environment(self) -> dict[str, str]:
        path = self.folder / "disk" / "pushhub.sqlite3"
        url = f"sqlite:///{path}" if self.database == "sqlite" else self._server().url
        own = {
            "PUSHHUB_DATABASE_URL": url,
            "PUSHHUB_DATA": str(self.folder / "disk" / "data"),
            "PUSHHUB_SECRET_KEY": "of a test of power cuts, and of nothing else",
            "PUSHHUB_REDIS_URL": f"unix://{self.folder}/redis/redis.sock",
        }
        return {name: text for name, text in os.environ.items() if not name.startswith("PUSHHUB_")} | SETTINGS | own

    def _server(self) -> PostgresqlServer:
        programs = postgresql_programs()
        assert programs is not None, "PostgreSQL is not installed"
        options = "-c jit=off -c max_wal_size=64MB" + (" -c fsync=off" if self.careless else "")
        return PostgresqlServer(self.folder / "disk" / "cluster", bin_folder=programs, options=options)

    def _make_tables(self) -> None:
        (self.folder / "disk" / "data").mkdir()
        if self.database == "postgresql":
            (self.folder / "disk" / "cluster").mkdir()
            self._server().create()
        with self._database(mode="fast"):
            words = ["django", "migrate", "--run-syncdb", "--verbosity=0"]
            process = PreloadedProcess(*words, environment=self._environment(), log=str(self.log), first=TABLES)
            assert process.wait(timeout=120) == 0, self.log.read_text()

    @contextmanager
    def _database(self, *, mode: str) -> Iterator[None]:
        """Run PostgreSQL, if it is the database. With the mode `cut` it is killed, and otherwise stopped so."""
        if self.database == "sqlite":
            yield
            return
        server = self._server()
        before = {name: os.environ.get(name) for name in self.disk.environment}
        os.environ.update(self.disk.environment if mode == "cut" else {})
        try:
            server.start()
        finally:
            for name, text in before.items():
                os.environ.pop(name, None) if text is None else os.environ.update({name: text})
        try:
            yield
        finally:
            if mode == "cut":
                first = server.pid
                kill_tree(first)
                # The next server takes a zombie with the id in its lock file for another one that runs.
                wait_for(lambda: not psutil.pid_exists(first), what="the end of PostgreSQL")
            else:
                server.stop(mode=mode)

    @contextmanager
    def _running(self) -> Iterator[str]:
        """Run a web server and a push worker with an empty Redis; everything ends as by a power cut."""
        redis = self.folder / "redis"
        shutil.rmtree(redis, ignore_errors=True)
        redis.mkdir()
        address = f"127.0.0.1:{free_port()}"
        with ExitStack() as stack:
            stack.enter_context(RedisServer(redis))
            stack.enter_context(self._database(mode="cut"))
            careless = CARELESS if self.careless and self.database == "sqlite" else ""
            environment = self._environment() | self.disk.environment | {"PUSHHUB_HTTP": address}
            command = [sys.executable, "-c", PROCESSES.format(first=careless)]
            log = stack.enter_context(self.log.open("ab"))
            process = subprocess.Popen(
                command, env=environment, cwd=ROOT, stdout=log, stderr=log, start_new_session=True
            )
            stack.callback(process.wait)
            stack.callback(kill_tree, process.pid)
            wait_for(lambda: is_ready(address) or process.poll() is not None, what="the web server")
            assert process.poll() is None, self.log.read_text()
            yield address

    def _publish_for_a_while(self, address: str, endpoint: str, dice: random.Random) -> list[threading.Thread]:
        """Return the threads that publish, in the midst of it: they end with the web server."""
        root = f"http://{address}/v1/projects/power"
        topic, count = "projects/power/topics/orders", dice.randrange(FEWEST, MOST)
        for path, body in (
            ("topics/orders", {}),
            ("subscriptions/push", {"topic": topic, "pushConfig": {"pushEndpoint": endpoint}}),
        ):
            requests.put(f"{root}/{path}", json=body, timeout=60).raise_for_status()
        threads = [threading.Thread(target=self._publish, args=(root, name)) for name in range(PUBLISHERS)]
        for thread in threads:
            thread.start()
        wait_for(lambda: len(self.answered) >= count, timeout_seconds=120, what=f"{count} messages")
        return threads

    def _publish(self, root: str, name: int) -> None:
        for number in itertools.count():
            tags = [f"{name}-{number * BATCH + index}" for index in range(BATCH)]
            messages = [{"data": base64.b64encode(tag.encode()).decode()} for tag in tags]
            try:
                answer = requests.post(f"{root}/topics/orders:publish", json={"messages": messages}, timeout=60)
                answer.raise_for_status()
            except requests.RequestException:
                return
            self.answered.update(tags)

    def _owed(self) -> set[str]:
        """Return the data of the messages that the database owes."""
        statement = "SELECT m.data FROM deliveries_message m JOIN deliveries_delivery d ON d.message_id = m.id"
        if self.database == "sqlite":
            with closing(sqlite3.connect(self.folder / "disk" / "pushhub.sqlite3", timeout=60)) as connection:
                return {bytes(data).decode() for (data,) in connection.execute(statement)}
        with psycopg.connect(host=str(self._server().folder), user="pushhub", dbname="postgres") as server:
            return {bytes(data).decode() for (data,) in server.execute(statement)}


def is_ready(address: str) -> bool:
    try:
        return requests.get(f"http://{address}/healthz", timeout=10).ok
    except requests.RequestException:
        return False


def kill_tree(pid: int) -> None:
    """Kill a process and all that it started, and wait until they have ended."""
    first = psutil.Process(pid)
    first.suspend()  # so that it starts no other
    processes = [first, *first.children(recursive=True)]
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    # A process that nobody has waited for yet writes no more, and init may take its time with an orphan.
    wait_for(lambda: all(state_of(process.pid) in ENDED for process in processes), what="the end of the processes")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.power", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cuts", type=int, default=10)
    parser.add_argument("--database", choices=("sqlite", "postgresql"), default="sqlite")
    given = parser.parse_args()
    for seed in range(given.seed, given.seed + given.cuts):
        with tempfile.TemporaryDirectory(prefix="pushhub-power-") as folder:
            cut = Cut(Path(folder), given.database, seed)
            try:
                cut.run()
            except AssertionError as error:
                print(f"seed {seed}: {error}\n{cut.log.read_text()[-5000:]}")
                return 1
        print(f"seed {seed}: {len(cut.answered)} acknowledged, {cut.dropped} pages dropped, nothing lost", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
