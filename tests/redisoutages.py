"""Real outages of a redis-server of the test's own. Each lasts as long as its block, and leaves the state as it was."""

from __future__ import annotations

import os
import resource
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress

import redis

from pushhub.common.outages import Cause
from tests.ports import wait_for
from tests.redisserver import RedisServer

Outage = Callable[[RedisServer], AbstractContextManager[None]]


@contextmanager
def full(server: RedisServer) -> Iterator[None]:
    with redis.Redis.from_url(server.url) as client:
        client.config_set("maxmemory", 1)
        yield
        client.config_set("maxmemory", 0)


@contextmanager
def replica(server: RedisServer) -> Iterator[None]:
    """Make the server a replica of one that doesn't exist: it answers, and refuses writes."""
    with redis.Redis.from_url(server.url) as client:
        client.execute_command("REPLICAOF", "127.0.0.1", "1")
        yield
        client.execute_command("REPLICAOF", "NO", "ONE")


@contextmanager
def killed(server: RedisServer) -> Iterator[None]:
    """Kill the server. Its state is lost."""
    server.stop()
    yield
    server.start()


@contextmanager
def hanging(server: RedisServer) -> Iterator[None]:
    os.kill(server.pid, signal.SIGSTOP)
    yield
    os.kill(server.pid, signal.SIGCONT)


@contextmanager
def unsaved(server: RedisServer) -> Iterator[None]:
    """Let the server be one that saves, and fails to: its files get no larger."""
    with redis.Redis.from_url(server.url) as client:
        client.config_set("save", "3600 1")
        client.set("large", os.urandom(200_000))
        resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
        client.bgsave()
        wait_for(lambda: client.info("persistence")["rdb_last_bgsave_status"] == "err", what="the failed save")
        yield
        client.config_set("save", "")
        resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        client.delete("large")


@contextmanager
def busy(server: RedisServer) -> Iterator[None]:
    """Let a script run without end."""

    def run() -> None:
        with redis.Redis.from_url(server.url) as client, suppress(redis.ResponseError):
            client.eval("while true do end", 0)

    with redis.Redis.from_url(server.url) as client:
        client.config_set("busy-reply-threshold", 100)
        script = threading.Thread(target=run)
        script.start()
        yield
        client.script_kill()
        script.join()


#: What Redis answers in each, or why it doesn't.
CAUSES: dict[Outage, Cause] = {
    full: Cause.REDIS_FULL,
    replica: Cause.REDIS_READ_ONLY,
    killed: Cause.REDIS_AWAY,
    hanging: Cause.REDIS_SILENT,
    unsaved: Cause.REDIS_DISK,
    busy: Cause.REDIS_BUSY,
}
