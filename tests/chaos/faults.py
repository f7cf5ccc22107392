"""The faults of storms. Each is a context manager: it begins, yields what it has hit, and ends.

A fault that finds nothing to hit raises AssertionError, and the run fails.
"""

from __future__ import annotations

import io
import os
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import redis

from tests.chaos.inside import clock_set
from tests.chaos.ledger import now
from tests.chaos.stand import ENDED, MEMBERS, state_of
from tests.ports import wait_for

if TYPE_CHECKING:
    from tests.chaos.storm import Storm

Act = Callable[["Storm", str], AbstractContextManager[str]]
#: Whatever waits for Redis or the database tries again every 5 s at most; the audit comes every 30 s.
SERVER_SECONDS = 45.0
HIT_SECONDS = 30.0


@dataclass(frozen=True)
class Kind:
    """A kind of fault: what it can hit, how long it lasts, and how long it is felt afterwards."""

    name: str
    act: Act
    targets: tuple[str, ...]
    seconds: tuple[float, float]
    felt_seconds: float
    databases: tuple[str, ...] = ("sqlite", "postgresql")
    needs_small_disk: bool = False


KINDS: dict[str, Kind] = {}


def fault(
    *targets: str,
    seconds: tuple[float, float] = (1.0, 4.0),
    felt: float = SERVER_SECONDS,
    databases: tuple[str, ...] = ("sqlite", "postgresql"),
    needs_small_disk: bool = False,
) -> Callable[[Act], Act]:
    """Register a fault under the name of its function."""

    def register(act: Act) -> Act:
        name = act.__name__.replace("_", "-")
        KINDS[name] = Kind(name, act, targets, seconds, felt, databases, needs_small_disk)
        return act

    return register


# Processes.


@fault(*MEMBERS, seconds=(0.2, 2.0))
@contextmanager
def kill(storm: Storm, target: str) -> Iterator[str]:
    member = storm.stand.members[target]
    pid = member.kill()
    yield f"process {pid} ended by SIGKILL"
    member.start()
    member.wait_until_ready()


@fault("all", seconds=(0.2, 2.0))
@contextmanager
def kill_all(storm: Storm, target: str) -> Iterator[str]:
    """Kill the tree of the supervisor: everything but Redis and PostgreSQL, which a container keeps apart."""
    pids = [member.kill() for member in storm.stand.members.values()]
    yield f"processes {pids} ended by SIGKILL"
    for member in storm.stand.members.values():
        member.start()
    for member in storm.stand.members.values():
        member.wait_until_ready()


@fault(*MEMBERS, seconds=(2.0, 20.0))
@contextmanager
def freeze(storm: Storm, target: str) -> Iterator[str]:
    member = storm.stand.members[target]
    wait_for(member.is_running, timeout_seconds=HIT_SECONDS, what=f"{target} running")
    pid = member.pid
    member.send(signal.SIGSTOP)
    try:
        wait_for(lambda: state_of(pid) == "T", timeout_seconds=HIT_SECONDS, what=f"{target} in state T")
        yield f"process {pid} is stopped"
    finally:
        member.send(signal.SIGCONT)


@fault(*MEMBERS, seconds=(4.0, 8.0), felt=30.0)
@contextmanager
def clock(storm: Storm, target: str) -> Iterator[str]:
    """Move the clock of a process by two minutes, and back."""
    member = storm.stand.members[target]
    seconds = storm.dice.choice([-120.0, 120.0])
    wait_for(member.is_running, timeout_seconds=HIT_SECONDS, what=f"{target} running")
    assert str(member.clock) in Path(f"/proc/{member.pid}/maps").read_text(), f"{target} does not use its clock file"
    clock_set(member.clock, seconds)
    try:
        yield f"the clock of process {member.pid} is off by {seconds:+.0f} s"
    finally:
        clock_set(member.clock, 0.0)


# Redis.


@fault("redis", seconds=(0.2, 4.0))
@contextmanager
def redis_killed(storm: Storm, target: str) -> Iterator[str]:
    pid = storm.stand.redis.pid
    storm.stand.redis.stop()
    try:
        assert state_of(pid) in ENDED, f"process {pid} goes on"
        yield f"process {pid} ended by SIGKILL"
    finally:
        storm.stand.redis.start()


@fault("redis", seconds=(0.0, 0.1))
@contextmanager
def redis_flushed(storm: Storm, target: str) -> Iterator[str]:
    client = storm.redis()
    keys = client.dbsize()
    assert keys, "Redis had no key to flush"
    client.flushall()
    if storm.dice.random() < 0.5:
        client.script_flush()
    yield f"{keys} keys were flushed"


@fault("redis", seconds=(1.0, 8.0))
@contextmanager
def redis_paused(storm: Storm, target: str) -> Iterator[str]:
    pid = storm.stand.redis.pid
    os.kill(pid, signal.SIGSTOP)
    try:
        wait_for(lambda: state_of(pid) == "T", timeout_seconds=HIT_SECONDS, what="Redis in state T")
        yield f"process {pid} is stopped"
    finally:
        os.kill(pid, signal.SIGCONT)


@fault("redis")
@contextmanager
def redis_full(storm: Storm, target: str) -> Iterator[str]:
    client = storm.redis()
    client.config_set("maxmemory", 1)
    try:
        yield f"a write is refused: {_refusal(client)}"
    finally:
        client.config_set("maxmemory", 0)


@fault("redis")
@contextmanager
def redis_read_only(storm: Storm, target: str) -> Iterator[str]:
    """Make Redis the replica of a server that is not there, as in a failover."""
    client = storm.redis()
    client.replicaof("127.0.0.1", 1)
    try:
        yield f"a write is refused: {_refusal(client)}"
    finally:
        client.replicaof("NO", "ONE")


def _refusal(client: redis.Redis) -> str:
    try:
        client.set("storm", 1)
    except redis.ResponseError as error:
        return f"{type(error).__name__} {error}"
    raise AssertionError("Redis took a write")


@fault("redis", seconds=(0.5, 3.0))
@contextmanager
def redis_replaced(storm: Storm, target: str) -> Iterator[str]:
    """Put an empty Redis in place of the one that runs, to which connections stay open for a while."""
    old = storm.stand.redis.replace()
    try:
        yield f"process {storm.stand.redis.pid} listens in place of {old.pid}"
    finally:
        old.kill()
        old.wait(timeout=30)


@fault("redis", seconds=(0.0, 0.1), felt=30.0)
@contextmanager
def redis_clients_killed(storm: Storm, target: str) -> Iterator[str]:
    client = storm.redis()
    kill = partial(client.client_kill_filter, _type="normal", skipme=True)
    count = wait_for(kill, timeout_seconds=HIT_SECONDS, what="a connection to Redis")
    yield f"{count} connections ended"


# The database.


@fault("database", seconds=(1.0, 6.0), databases=("sqlite",))
@contextmanager
def sqlite_locked(storm: Storm, target: str) -> Iterator[str]:
    """Hold SQLite's write lock in another process' place, without the lock file at which PushHub's writers queue."""
    holder = sqlite3.connect(storm.stand.disk / "pushhub.sqlite3", isolation_level=None, timeout=60)
    holder.execute("BEGIN IMMEDIATE")
    try:
        yield "a transaction holds the write lock"
    finally:
        holder.execute("ROLLBACK")
        holder.close()


@fault("database", needs_small_disk=True)
@contextmanager
def disk_full(storm: Storm, target: str) -> Iterator[str]:
    filler = storm.stand.disk / "filler"
    with filler.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(1 << 16))
    free = os.statvfs(storm.stand.disk).f_bavail
    try:
        assert free == 0, "the disk is not full"
        yield f"{filler.stat().st_size // 1_000_000} MB fill the disk"
    finally:
        filler.unlink()


@fault("database", databases=("postgresql",))
@contextmanager
def database_restarted(storm: Storm, target: str) -> Iterator[str]:
    server = storm.stand.postgresql
    assert server is not None
    pid = server.pid
    server.stop(mode="fast")
    server.start()
    yield f"process {server.pid} in place of {pid}"


@fault("database", databases=("postgresql",))
@contextmanager
def database_stopped(storm: Storm, target: str) -> Iterator[str]:
    """End PostgreSQL without a checkpoint, as a crash does, and start it later."""
    server = storm.stand.postgresql
    assert server is not None
    pid = server.pid
    server.stop(mode="immediate")
    try:
        assert state_of(pid) in ENDED, f"process {pid} goes on"
        yield f"process {pid} ended"
    finally:
        server.start()


@fault("database", databases=("postgresql",))
@contextmanager
def database_read_only(storm: Storm, target: str) -> Iterator[str]:
    with storm.postgresql() as connection:
        connection.execute("ALTER SYSTEM SET default_transaction_read_only = on")
        connection.execute("SELECT pg_reload_conf()")
        time.sleep(0.2)
    try:
        with storm.postgresql() as connection:
            shown = connection.execute("SHOW transaction_read_only").fetchone()
        assert shown == ("on",), shown
        yield "transactions are read-only"
    finally:
        with storm.postgresql() as connection:
            connection.execute("SET transaction_read_only = off")
            connection.execute("ALTER SYSTEM RESET default_transaction_read_only")
            connection.execute("SELECT pg_reload_conf()")


@fault("database", seconds=(0.0, 0.1), felt=30.0, databases=("postgresql",))
@contextmanager
def database_connections_cut(storm: Storm, target: str) -> Iterator[str]:
    with storm.postgresql() as connection:
        ended = connection.execute(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
            "WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
        ).fetchone()
    assert ended and ended[0], "PostgreSQL had no other connection"
    yield f"{ended[0]} connections ended"


# The network between host b and the servers.


@fault("redis", "postgresql", seconds=(1.0, 10.0))
@contextmanager
def network_cut(storm: Storm, target: str) -> Iterator[str]:
    proxy = storm.stand.proxies[target]
    count = proxy.cut()
    try:
        assert count, "no connection of host b was open"
        yield f"{count} connections of host b ended, and none opens"
    finally:
        proxy.mend()


@fault("redis", "postgresql", seconds=(2.0, 8.0))
@contextmanager
def network_slow(storm: Storm, target: str) -> Iterator[str]:
    proxy = storm.stand.proxies[target]
    proxy.delay_seconds = storm.dice.choice([0.02, 0.1, 0.5])
    passed = proxy.passed
    try:
        wait_for(lambda: proxy.passed > passed, timeout_seconds=HIT_SECONDS, what="data that is delayed")
        yield f"{proxy.delay_seconds * 1000:.0f} ms more each way for host b"
    finally:
        proxy.delay_seconds = 0.0


# What an operator does.


@fault("moved", seconds=(0.0, 0.1), felt=10.0)
@contextmanager
def endpoint_moved(storm: Storm, target: str) -> Iterator[str]:
    contract = storm.world.contracts[target]
    storm.moves += 1
    storm.world.modify_push_config(contract, storm.world.push_config(contract, path=f"/moved/{storm.moves}"))
    yield f"to /moved/{storm.moves}"


@fault("moved", "plain", seconds=(1.0, 4.0), felt=30.0)
@contextmanager
def subscription_paused(storm: Storm, target: str) -> Iterator[str]:
    """Take the endpoint away and give it back: meanwhile it is a pull subscription that nobody pulls from."""
    contract = storm.world.contracts[target]
    storm.world.modify_push_config(contract, {})
    yield "without an endpoint"
    storm.world.modify_push_config(contract, storm.world.push_config(contract))


@fault("mayfly", seconds=(0.0, 1.0), felt=10.0)
@contextmanager
def subscription_made_again(storm: Storm, target: str) -> Iterator[str]:
    contract = storm.world.contracts[target]
    contract.since = float("inf")
    storm.world.caller.until_done("DELETE", contract.path, accept=(200, 404))
    yield "deleted"
    storm.world.make_subscription(contract)


@fault("orphan", seconds=(0.0, 2.0), felt=10.0)
@contextmanager
def topic_deleted(storm: Storm, target: str) -> Iterator[str]:
    """Delete a topic and make it again under its name, and then its subscription, which belonged to the old one."""
    contract = storm.world.contracts[target]
    contract.since = float("inf")
    storm.world.caller.until_done("DELETE", storm.topic_path(contract.topic), accept=(200, 404))
    yield "deleted"
    storm.world.make_topic(contract.topic)
    storm.world.caller.until_done("DELETE", contract.path, accept=(200, 404))
    storm.world.make_subscription(contract)


@fault("sought", seconds=(0.0, 0.1), felt=20.0)
@contextmanager
def seek(storm: Storm, target: str) -> Iterator[str]:
    """Seek to the past, by which messages come again, or to the present, by which none is owed any more."""
    contract = storm.world.contracts[target]
    past_seconds = storm.dice.choice([0, 5, 20])
    contract.seeks.append(now())
    moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - past_seconds))
    storm.world.caller.until_done("POST", f"{contract.path}:seek", {"time": moment})
    contract.seeks.append(now())
    yield f"to {moment}"


@fault("keys", seconds=(0.0, 0.1), felt=10.0)
@contextmanager
def key_replaced(storm: Storm, target: str) -> Iterator[str]:
    """Replace the key that signs pushes at once, as after a private key leaked."""
    from django.core.management import call_command
    from django.db import connection

    from subscriptions.models.iam import SigningKey

    try:
        before = SigningKey.objects.count()
        call_command("signing_keys", "replace", stdout=io.StringIO())
        assert SigningKey.objects.count() > before, "there is no new key"
    finally:
        connection.close()
    yield "another key"
