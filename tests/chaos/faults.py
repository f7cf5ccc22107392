"""The faults of storms that hit processes, Redis, the database and the network. kinds.py says what a fault is."""

from __future__ import annotations

import os
import signal
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import redis

from tests.chaos.inside import clock_set
from tests.chaos.kinds import fault
from tests.chaos.stand import ENDED, MEMBERS, state_of
from tests.ports import wait_for

if TYPE_CHECKING:
    from tests.chaos.storm import Storm

HIT_SECONDS = 30.0


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


@fault(*MEMBERS, "all", seconds=(2.0, 20.0))
@contextmanager
def freeze(storm: Storm, target: str) -> Iterator[str]:
    """Stop a process for a while, or all of them, as a machine does that is suspended."""
    members = [member for name, member in storm.stand.members.items() if target in ("all", name)]
    wait_for(lambda: all(it.is_running() for it in members), timeout_seconds=HIT_SECONDS, what=f"{target} running")
    pids = [member.pid for member in members]
    try:
        for member in members:
            member.send(signal.SIGSTOP)
        wait_for(
            lambda: {state_of(pid) for pid in pids} == {"T"}, timeout_seconds=HIT_SECONDS, what=f"{target} in state T"
        )
        yield f"processes {pids} are stopped"
    finally:
        for member in members:
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
        client.function_flush()
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
        # pg_ctl returns when the file with its id is gone.
        wait_for(lambda: state_of(pid) in ENDED, timeout_seconds=HIT_SECONDS, what=f"the end of process {pid}")
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
    passed = proxy.passed
    wait_for(lambda: proxy.passed > passed, timeout_seconds=HIT_SECONDS, what="a connection of host b")
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
