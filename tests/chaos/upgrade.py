"""Upgrades a PushHub under traffic, process by process, and goes back: python -m tests.chaos.upgrade --help.

The processes of an older commit serve publishers and subscribers while the database is migrated, also one with many
waiting deliveries. Then each process is replaced by one of this checkout, and then by one of the older commit again.
Both versions run in the environment of this checkout.
"""

from __future__ import annotations

import argparse
import os
import re
import secrets
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from importlib.util import cache_from_source
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import requests

from deliveries.rules.ids import EPOCH_MS, TIME_SHIFT
from tests.chaos import endpoints
from tests.chaos.caller import Caller
from tests.chaos.checker import missing
from tests.chaos.endpoints import Endpoint
from tests.chaos.ledger import Ledger, now
from tests.chaos.publishers import PROJECT, ClientPublisher, Publisher, RestPublisher
from tests.chaos.pullers import StreamPuller
from tests.chaos.stand import SETTINGS
from tests.chaos.world import ORDERS, Contract
from tests.ports import free_port, wait_for
from tests.programs import postgresql_programs
from tests.redisserver import RedisServer
from tests.with_postgresql import FAST, PostgresqlServer

ROOT = Path(__file__).parents[2]
#: The release before this version: the one that an operator may run beside it.
PREVIOUS = "85cde97"
#: A pull subscription that nobody pulls.
WAITING = "waiting"
#: How many messages have to be published and to arrive between two steps.
MESSAGES_PER_STEP = 30
#: No test judges times: those of a busy machine say nothing.
STEP_SECONDS = 1800.0
ERROR = re.compile(r"\b(ERROR|CRITICAL|Traceback)\b")
#: The exit status if the clone has no history.
LACKS_COMMIT = 3
ROLES = ("web", "grpc", "push", "maintenance")
READY = {"grpc": "gRPC at", "push": " ready.", "maintenance": " ready."}

#: A migration of each kind that the release after this one may have.
NEXT_MIGRATION = """
from django.db import migrations, models

from pushhub.common.migrations import AddColumn, AddIndexOnline


class Migration(migrations.Migration):
    atomic = False
    dependencies = [("deliveries", "{last}")]
    operations = [
        migrations.CreateModel("Later", [("id", models.BigAutoField(primary_key=True))]),
        AddColumn("delivery", "later", models.IntegerField(db_default=7)),
        AddColumn("message", "later", models.TextField(null=True)),
        AddIndexOnline("delivery", models.Index(fields=["last_attempt_at"], name="delivery_later")),
    ]
"""


@dataclass(frozen=True)
class Version:
    """The code of PushHub in a folder, whose processes run on a database and a Redis that versions share."""

    name: str
    folder: Path
    environment: dict[str, str]

    def command(self, *words: str, **more: str) -> dict[str, Any]:
        environment = {**os.environ, **self.environment, "PYTHONPATH": str(self.folder), **more}
        return {"args": [sys.executable, *words], "cwd": self.folder, "env": environment}

    def manage(self, *words: str) -> None:
        """Run a management command. Raises CalledProcessError, whose output is on stderr."""
        subprocess.run(**self.command("manage.py", *words), check=True, stdout=subprocess.DEVNULL)


@dataclass
class Running:
    """A process of PushHub, and the address at which it listens."""

    role: str
    version: Version
    address: str
    process: subprocess.Popen[bytes]
    log: Path

    def is_ready(self) -> bool:
        assert self.process.poll() is None, f"{self.log} has why it ended"
        if self.role in READY:
            return READY[self.role] in self.log.read_text(errors="replace")
        try:
            return requests.get(f"http://{self.address}/healthz", timeout=5).status_code == 200
        except requests.RequestException:
            return False

    def stop(self) -> int:
        """Stop the process warmly, and return its exit status."""
        self.process.terminate()
        return self.process.wait(timeout=STEP_SECONDS)


@dataclass
class Upgrade:
    """One run. Web servers take turns at two addresses, as behind a proxy; gRPC servers have one address."""

    folder: Path
    database: str
    waiting: int
    #: The roles of the processes that are replaced.
    replaced: Sequence[str] = ROLES
    ledger: Ledger = field(default_factory=Ledger)
    running: dict[str, Running] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    starts: int = 0
    #: What was done, and when it began and ended.
    steps: list[tuple[str, float, float]] = field(default_factory=list)

    def run(self, commit: str) -> list[str]:
        """Return what went wrong."""
        with ExitStack() as stack:
            environment = self._environment(stack)
            old = Version("old", unpack(commit), environment)
            new = Version("new", copy_checkout(self.folder / "new"), environment)
            old.manage("migrate", "--noinput")
            stack.callback(self._kill)
            for role in ROLES:
                self.start(role, old)
            contracts = self._make_subscriptions(stack)
            self.fill()
            with self._traffic(contracts):
                self.pass_messages(contracts, "the old version")
                with self.step("the migration"):
                    new.manage("migrate", "--noinput")
                self.pass_messages(contracts, "the old version on the new tables")
                for role in self.replaced:
                    with self.step(f"{role} is replaced"):
                        self.replace(role, new)
                    self.pass_messages(contracts, f"{role} of the new version")
                with self.step("the migration of a next version"):
                    add_next_migration(new).manage("migrate", "--noinput")
                self.pass_messages(contracts, "the new version on the next tables")
                for role in reversed(self.replaced):
                    with self.step(f"{role} goes back"):
                        self.replace(role, old)
                self.pass_messages(contracts, "the old version on all tables")
            self.check()
            for running in self.running.values():
                if status := running.stop():
                    self.problems.append(f"{running.role} ended with {status}")
        return self.problems

    def _environment(self, stack: ExitStack) -> dict[str, str]:
        """Start Redis and the database, and return the settings of all processes."""
        for name in ("redis", "logs", "data"):
            (self.folder / name).mkdir()
        redis = stack.enter_context(RedisServer(self.folder / "redis"))
        url = f"sqlite:///{self.folder / 'pushhub.sqlite3'}"
        if self.database == "postgresql":
            programs = postgresql_programs()
            assert programs is not None, "PostgreSQL is not installed"
            self.folder.chmod(0o755)
            cluster = self.folder / "cluster"
            cluster.mkdir()
            server = PostgresqlServer(cluster, bin_folder=programs, options=FAST)
            server.create()
            server.start()
            stack.callback(server.stop)
            self.postgresql = server
            url = server.url
        self.web = [f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"]
        self.grpc = [f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"]
        os.environ["PUBSUB_EMULATOR_HOST"] = f"ipv4:{','.join(self.grpc)}"
        return SETTINGS | {
            "PUSHHUB_DATA": str(self.folder / "data"),
            "PUSHHUB_SECRET_KEY": secrets.token_hex(32),
            "PUSHHUB_DATABASE_URL": url,
            "PUSHHUB_REDIS_URL": redis.url,
        }

    def start(self, role: str, version: Version, *, address: str = "") -> Running:
        address = address or {"web": self.web, "grpc": self.grpc}.get(role, [""])[0]
        self.starts += 1
        log = self.folder / "logs" / f"{self.starts:02}-{role}-{version.name}.log"
        more = {"web": {"PUSHHUB_HTTP": address}, "grpc": {"PUSHHUB_GRPC": address}}.get(role, {})
        words = version.command("-m", "pushhub.runtime.processes", role, **more)
        with log.open("wb") as output:
            process = subprocess.Popen(**words, stdout=output, stderr=subprocess.STDOUT)
        running = Running(role, version, address, process, log)
        try:
            wait_for(running.is_ready, timeout_seconds=STEP_SECONDS, what=f"{role} of the {version.name} version")
        except BaseException:
            process.kill()
            process.wait()
            raise
        self.running[role] = running
        return running

    def replace(self, role: str, version: Version) -> None:
        """Replace a process. A server is stopped once its successor has all new requests."""
        old = self.running[role]
        if role in ("web", "grpc"):
            addresses = self.web if role == "web" else self.grpc
            other = addresses[1 - addresses.index(old.address)]
            self.start(role, version, address=other)
            if role == "web":
                self._route(other)
            status = old.stop()
        else:
            # On one host, both would have the same name in Celery.
            status = old.stop()
            self.start(role, version)
        if status:
            self.problems.append(f"{role} of the {old.version.name} version ended with {status}")

    def _route(self, address: str) -> None:
        """Send the publishers to another web server, as a proxy does, and wait until none uses the one before it."""
        routed = now()
        moving = {publisher.name for publisher in self.publishers if isinstance(publisher, RestPublisher)}
        for publisher in self.publishers:
            if isinstance(publisher, RestPublisher):
                publisher.use(self.web.index(address))

        def has_moved() -> bool:
            return moving <= {it.publisher for it in self.ledger.published[-500:] if it.began > routed}

        wait_for(has_moved, timeout_seconds=STEP_SECONDS, what="publishes at the new server")

    def _kill(self) -> None:
        for running in self.running.values():
            if running.process.poll() is None:
                running.process.kill()
                running.process.wait()

    def _make_subscriptions(self, stack: ExitStack) -> list[Contract]:
        """Make a subscription of each kind, and return those that somebody reads."""
        contracts = [
            Contract("plain", behaviour=endpoints.moody),
            Contract("ordered", {"enableMessageOrdering": True}, behaviour=endpoints.healthy),
            Contract("streamed", {"enableMessageOrdering": True, "ackDeadlineSeconds": 10}),
        ]
        calm = threading.Event()
        with closing(Caller(self.web[:1])) as caller:
            caller.until_done("PUT", f"/v1/{PROJECT}/topics/{ORDERS}", {})
            for contract in (*contracts, Contract(WAITING)):
                body: dict[str, Any] = {"topic": f"{PROJECT}/topics/{ORDERS}", **contract.body}
                if contract.behaviour is not None:
                    endpoint = Endpoint(contract.name, contract.behaviour, self.ledger, seed=1, calm=calm)
                    contract.endpoint = stack.enter_context(endpoint)
                    body["pushConfig"] = {"pushEndpoint": endpoint.url}
                caller.until_done("PUT", contract.path, body)
        return contracts

    def fill(self) -> None:
        """Make many deliveries wait, of a message a millisecond until a minute ago."""
        oldest = int(time.time() * 1000) - 60_000 - self.waiting
        message_id = f"({oldest - EPOCH_MS} + n) * {1 << TIME_SHIFT}"
        if self.database == "postgresql":
            numbers, data = f"generate_series(1, {self.waiting}) AS numbers(n)", "decode('78', 'hex')"
        else:
            first, more = "SELECT 1", f"SELECT n + 1 FROM numbers WHERE n < {self.waiting}"
            numbers = f"(WITH RECURSIVE numbers(n) AS ({first} UNION ALL {more}) SELECT n FROM numbers)"
            data = "x'78'"
        topic = f"(SELECT id FROM subscriptions_topic WHERE topic_id = '{ORDERS}')"
        subscription = f"(SELECT id FROM subscriptions_subscription WHERE subscription_id = '{WAITING}')"
        self.execute(
            "INSERT INTO deliveries_message (id, topic_id, region, data, attributes, ordering_key) "
            f"SELECT {message_id}, {topic}, 'local', {data}, '', '' FROM {numbers}",
            "INSERT INTO deliveries_delivery (message_id, subscription_id, region, attempts, last_result) "
            f"SELECT {message_id}, {subscription}, 'local', 0, '' FROM {numbers}",
        )

    def execute(self, *statements: str) -> list[Any]:
        """Execute statements in one transaction, and return the rows of the last one."""
        if self.database == "postgresql":
            return self.postgresql.execute(*statements)
        import sqlite3

        with closing(sqlite3.connect(self.folder / "pushhub.sqlite3", timeout=60)) as connection, connection:
            return [connection.execute(statement) for statement in statements][-1].fetchall()

    @contextmanager
    def _traffic(self, contracts: Sequence[Contract]) -> Iterator[None]:
        """Publish and pull during the block, and then wait until everything has arrived."""
        common: dict[str, Any] = {"seed": 1, "topic": ORDERS, "timeout_seconds": STEP_SECONDS}
        rest: dict[str, Any] = common | {"addresses": self.web, "first": 0}
        self.publishers: list[Publisher] = [
            RestPublisher("batches", self.ledger, rate=20, **rest),
            RestPublisher("singles", self.ledger, rate=10, keys=4, **rest),
            ClientPublisher("client", self.ledger, rate=10, keys=4, **common),
        ]
        puller = StreamPuller("streamed", self.ledger, seed=1, calm=threading.Event())
        puller.start()
        try:
            for publisher in self.publishers:
                publisher.start()
            try:
                yield
            finally:
                for publisher in self.publishers:
                    publisher.stop()
                for publisher in self.publishers:
                    publisher.join()
            wait_for(lambda: not missing(self.ledger, contracts), timeout_seconds=STEP_SECONDS, what="all messages")
        finally:
            puller.stop()
            puller.join()

    def pass_messages(self, contracts: Sequence[Contract], step: str) -> None:
        """Wait until messages of this step have arrived at each subscription."""
        began = now()
        published = {}

        def has_passed() -> bool:
            failed = dict(self.ledger.failed_publishes)
            assert not failed, f"publishes failed: {failed} during {step}"
            published.update({it.message_id: it for it in self.ledger.published[-500:] if it.began > began})
            got = Counter(
                it.subscription
                for it in self.ledger.deliveries[-2000:]
                if it.acked is not None and it.message_id in published
            )
            return all(got[contract.name] >= MESSAGES_PER_STEP for contract in contracts)

        wait_for(has_passed, timeout_seconds=STEP_SECONDS, what=f"the messages of {step}")
        print(f"  {step}: {len(self.ledger.published)} published", flush=True)

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Note when the block begins and ends."""
        began = now()
        yield
        self.steps.append((name, began, now()))
        print(name, flush=True)

    def print_steps(self) -> None:
        """Print how long each step took, and the longest publish that it met."""
        for name, began, ended in self.steps:
            met = [it for it in self.ledger.published if it.answered > began and it.began < ended]
            longest = max((it.answered - it.began for it in met), default=0.0)
            print(f"{name}: {ended - began:.1f} s; the longest of {len(met)} publishes took {longest:.2f} s")

    def errors(self, pattern: str = "*.log") -> Iterator[str]:
        """Yield the lines of the logs that tell of errors, each with the few after it."""
        for log in sorted((self.folder / "logs").glob(pattern)):
            lines = log.read_text(errors="replace").splitlines()
            for number, line in enumerate(lines):
                if ERROR.search(line):
                    yield "\n".join(f"{log.stem}: {line}" for line in lines[number : number + 5])

    def check(self) -> None:
        """Compare what waits with what was published, and look for errors of this version."""
        self.problems += self.errors("*-new.log")
        for publisher, count in self.ledger.failed_publishes.items():
            self.problems.append(f"{count} publishes of {publisher} failed")
        subscription = f"(SELECT id FROM subscriptions_subscription WHERE subscription_id = '{WAITING}')"
        statement = f"SELECT count(*) FROM deliveries_delivery WHERE subscription_id = {subscription}"
        ((count,),) = self.execute(statement)
        owed = self.waiting + len(self.ledger.published)
        if count != owed:
            self.problems.append(f"{count} deliveries wait, and not {owed}")


def has_commit(commit: str) -> bool:
    """Return whether this clone has a commit; a shallow one may lack it."""
    words = ["git", "cat-file", "-e", f"{commit}^{{commit}}"]
    return subprocess.run(words, cwd=ROOT, check=False, stderr=subprocess.DEVNULL).returncode == 0


def unpack(commit: str) -> Path:
    """Return a folder with the files of a commit, in which their bytecode stays from one run to the next."""
    folder = ROOT / ".pytest_cache" / commit
    folder.parent.mkdir(exist_ok=True)
    if not folder.exists():
        with TemporaryDirectory(dir=folder.parent) as name:
            files = Path(name) / "files"
            files.mkdir()
            archive = subprocess.run(["git", "archive", commit], cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout
            subprocess.run(["tar", "-x"], cwd=files, check=True, input=archive)
            with suppress(OSError):  # another run was faster
                files.rename(folder)
    return folder


def copy_checkout(folder: Path) -> Path:
    """Copy the checkout with the changes that are not committed, and its bytecode, and return the folder."""
    words = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(words, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
    for name in filter(None, names.split("\0")):
        for copied in (name, cache_from_source(name)):
            if (ROOT / copied).is_file():
                (folder / copied).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / copied, folder / copied)  # with its time, by which Python knows the bytecode
    return folder


def add_next_migration(version: Version) -> Version:
    """Add a migration to a copy of the checkout, as if it were the next version."""
    migrations = version.folder / "deliveries" / "migrations"
    last = max(path.stem for path in migrations.glob("0*.py"))
    (migrations / f"{int(last[:4]) + 1:04}_next.py").write_text(NEXT_MIGRATION.replace("{last}", last))
    return version


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.upgrade", description=__doc__)
    parser.add_argument("--from", dest="commit", default=PREVIOUS, help=f"the older version ({PREVIOUS})")
    parser.add_argument("--database", choices=["sqlite", "postgresql"], default="sqlite")
    parser.add_argument("--waiting", type=int, default=200_000, help="deliveries that wait while it is migrated")
    parser.add_argument("--replace", default=",".join(ROLES), help="the processes that are replaced (all)")
    arguments = parser.parse_args()
    if not has_commit(arguments.commit):
        print(f"this clone lacks the commit {arguments.commit}: git fetch --unshallow", file=sys.stderr)
        return LACKS_COMMIT
    with TemporaryDirectory(prefix="pushhub-upgrade-", ignore_cleanup_errors=True) as name:
        upgrade = Upgrade(Path(name), arguments.database, arguments.waiting, arguments.replace.split(","))
        try:
            problems = upgrade.run(arguments.commit)
        finally:
            upgrade.print_steps()
            for lines in upgrade.errors():
                print(lines)
    print("\n".join(problems) or "nothing was lost, and nothing failed")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
