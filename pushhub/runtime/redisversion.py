"""Whether PushHub can use the Redis that it is given, and what to say of its version."""

from __future__ import annotations

import re

import redis
from django.conf import settings

from pushhub.common.redisclient import CELLS_KEY, connect_to_redis

#: Older servers lack commands that PushHub uses.
OLDEST_VERSION = (6, 2)
#: Older servers of Redis and Valkey get no security fixes any more.
OLDEST_MAINTAINED_VERSION = (7, 2)
#: Modes of servers in which PushHub can't use them. Its scripts use keys of several of a cluster's slots.
UNUSABLE_MODES = {
    "cluster": "a Cluster: PushHub needs a single Redis, or a primary with replicas",
    "sentinel": "a Sentinel: give sentinel://host:port/0?master=name",
}
#: How long a server may take to tell its version.
INFO_SECONDS = 2.0


class UnusableRedisError(RuntimeError):
    """PushHub can't use the server: it lacks commands, is no single Redis, or is used with another PUSHHUB_CELLS."""


def version_line(url: str) -> str:
    """Return one line on the version of the server at `url`; UnusableRedisError if PushHub can't use it."""
    # Not claimed: a Cluster or a Sentinel would refuse that.
    with connect_to_redis(url, seconds=INFO_SECONDS, redis_connect_func=None) as client:
        info = client.info("server")
    # Valkey has a name of its own for the mode, and also reports the version of Redis that it is compatible with.
    if why := UNUSABLE_MODES.get(info.get("server_mode") or info.get("redis_mode", "")):
        raise UnusableRedisError(f"PUSHHUB_REDIS_URL names {why}")
    name, text = ("Valkey", info["valkey_version"]) if "valkey_version" in info else ("Redis", info["redis_version"])
    version = tuple(int(part) for part in re.findall(r"\d+", text)[:2])
    if version < OLDEST_VERSION:
        raise UnusableRedisError(f"{name} {text} is too old: PushHub needs 6.2 or newer")
    if version < OLDEST_MAINTAINED_VERSION:
        return f"{name} {text}: it works, but gets no security fixes any more; use 7.2 or newer"
    return f"{name} {text}"


def check_cells(url: str) -> None:
    """Note the number of cells in the Redis at `url`. Raise UnusableRedisError if it is used with another number."""
    with connect_to_redis(url, seconds=INFO_SECONDS) as client:
        if why := other_cells(client):
            raise UnusableRedisError(why)
        client.set(CELLS_KEY, settings.CELLS, nx=True)


def other_cells(client: redis.Redis) -> str:
    """Return what is wrong if a Redis is used with another number of cells; "" if nothing is."""
    # Versions without cells had one, and did not say so.
    cells = int(client.get(CELLS_KEY) or (1 if client.exists("ph:alive") else settings.CELLS))
    if cells == settings.CELLS:
        return ""
    return (
        f"PUSHHUB_CELLS={settings.CELLS}: this Redis is used with {cells}. To change it, stop all processes and empty "
        "Redis, which is filled again from the database"
    )
