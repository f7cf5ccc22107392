"""What the doctor finds in Redis: its version, mode, memory and settings. It only reads, and needs no CONFIG."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from django.conf import settings

from pushhub.common.redisclient import connect_to_redis
from pushhub.common.rediscluster import Cluster
from pushhub.doctor.finding import Finding, failed, judge_clock, ok, warning
from pushhub.runtime.redisversion import UNMAINTAINED, UnusableRedisError, other_cells, read_version

REDIS_SECONDS = 5.0
#: Redis' memory beside the messages of backlogs: states of lanes, counters, Celery's queues, fragmentation.
OVERHEAD = 2


def redis() -> Iterator[Finding]:
    """Judge the servers: one, or the primaries of a Cluster and the one beside it. Raises RedisError if one is away."""
    yield from _judge_url("Redis", settings.REDIS_URL, budget_bytes=settings.REDIS_MB * 1_000_000)
    if settings.BROKER_URL:
        yield from _judge_url("Redis of PUSHHUB_BROKER_URL", settings.BROKER_URL, budget_bytes=0)


def _judge_url(name: str, url: str, *, budget_bytes: int) -> Iterator[Finding]:
    try:
        text, is_maintained = read_version(url)
    except UnusableRedisError as error:
        yield failed(name, str(error), "Give the setting a Redis or Valkey that PushHub can use.")
        return
    yield ok(name, text) if is_maintained else warning(name, f"{text}: {UNMAINTAINED}", "Use 7.2 or newer.")
    with connect_to_redis(url, seconds=REDIS_SECONDS, redis_connect_func=None) as client:
        why = other_cells(client) if url == settings.REDIS_URL else ""
        if why:
            yield failed(name, why, "Give all processes the same PUSHHUB_CELLS.")
        primaries = client.primaries() if isinstance(client, Cluster) else {name: client}
        for primary, server in primaries.items():
            yield from _judge_server(primary, server, budget_bytes=budget_bytes // len(primaries))


def _judge_server(name: str, client: Any, *, budget_bytes: int) -> Iterator[Finding]:
    began = time.time()
    seconds, microseconds = client.time()
    middle = (began + time.time()) / 2
    yield judge_clock("clocks", name, seconds + microseconds / 1e6 - middle)
    yield from judge_info(client.info(), budget_bytes=budget_bytes, name=name)


def judge_info(info: dict[str, Any], *, budget_bytes: int, name: str = "Redis") -> Iterator[Finding]:
    """Judge what Redis tells of itself by INFO."""
    if info["role"] != "master":
        yield failed(name, "it is a replica, and takes no writes", "Name the primary, or Sentinels, which know it.")
    most, policy = int(info["maxmemory"]), info["maxmemory_policy"]
    if policy != "noeviction":
        judge = failed if most else warning
        text = f"its maxmemory-policy is {policy}, so it forgets messages' states when its memory is full"
        yield judge(name, text, "Set maxmemory-policy noeviction: PushHub then waits, and loses nothing.")
    if most and most < budget_bytes * OVERHEAD:
        text = (
            f"its maxmemory is {most // 1_000_000:,} MB, and backlogs alone may take {budget_bytes // 1_000_000:,} MB"
        )
        yield warning(name, text, f"Set maxmemory to {OVERHEAD} x PUSHHUB_REDIS_MB or more.")
    limit = most or int(info.get("total_system_memory", 0))
    used = int(info["used_memory"])
    text = f"{used // 1_000_000:,} MB are used of {limit // 1_000_000:,}"
    if limit and used > limit * 0.9:
        yield failed(name, f"its memory is nearly full: {text}", "Give it more memory, or lower PUSHHUB_REDIS_MB.")
    else:
        yield ok(name, f"its memory has room: {text}")
    appends = "on" if int(info.get("aof_enabled", 0)) else "off"
    replicas = int(info.get("connected_slaves", 0))
    yield ok(name, f"appendonly is {appends}, {replicas} replicas; PushHub needs neither to lose no message")
