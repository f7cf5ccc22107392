"""Whether PushHub can use the Redis that it is given, and what to say of its version."""

from __future__ import annotations

import re

import redis
from django.conf import settings

from pushhub.common.environment import StartError
from pushhub.common.redisclient import CELLS_KEY, connect_to_redis, shared_url
from pushhub.common.redisurls import is_cluster

#: Older servers lack functions, which PushHub's verbs are (deliveries/backlog/scripts.py).
OLDEST_VERSION = (7, 0)
#: Older servers of Redis and Valkey get no security fixes any more.
OLDEST_MAINTAINED_VERSION = (7, 2)
UNMAINTAINED = "it works, but gets no security fixes any more"
#: Modes of servers whose URLs have another scheme.
OTHER_MODES = {
    "cluster": "a Cluster: give redis+cluster://host:port,host2:port in PUSHHUB_REDIS_URL, and PUSHHUB_BROKER_URL",
    "sentinel": "a Sentinel: give sentinel://host:port/0?master=name",
}
#: What redis-py says of a server that is none of a Cluster.
NO_CLUSTER = "Cluster mode is not enabled"
#: How long a server may take to tell its version.
INFO_SECONDS = 2.0


class UnusableRedisError(StartError):
    """PushHub can't use the server: it lacks commands, is of another kind, or is used with another PUSHHUB_CELLS."""


def version_line(url: str) -> str:
    """Return one line on the version of the server at `url`; UnusableRedisError if PushHub can't use it."""
    text, is_maintained = read_version(url)
    return text if is_maintained else f"{text}: {UNMAINTAINED}; use 7.2 or newer"


def read_version(url: str) -> tuple[str, bool]:
    """Return the version of the server at `url`, such as `Redis 8.2.3`, and whether it gets security fixes.

    Raises UnusableRedisError if PushHub can't use it.
    """
    name = "PUSHHUB_BROKER_URL" if url == settings.BROKER_URL else "PUSHHUB_REDIS_URL"
    # Not claimed: a Cluster or a Sentinel would refuse that.
    with connect_to_redis(url, seconds=INFO_SECONDS, redis_connect_func=None) as client:
        try:
            info = client.info("server")
        except redis.ConnectionError as error:
            if NO_CLUSTER in str(error):
                raise UnusableRedisError(f"{name} names no Cluster: give redis://host:port/0") from None
            raise
    # Valkey has a name of its own for the mode, and also reports the version of Redis that it is compatible with.
    why = OTHER_MODES.get(info.get("server_mode") or info.get("redis_mode", ""))
    if why and not is_cluster(url):
        raise UnusableRedisError(f"{name} names {why}")
    name, text = ("Valkey", info["valkey_version"]) if "valkey_version" in info else ("Redis", info["redis_version"])
    version = tuple(int(part) for part in re.findall(r"\d+", text)[:2])
    if version < OLDEST_VERSION:
        raise UnusableRedisError(f"{name} {text} is too old: PushHub needs 7.0 or newer")
    return f"{name} {text}", version >= OLDEST_MAINTAINED_VERSION


def check_redis() -> str:
    """Return one line on the versions of the settings' servers; UnusableRedisError if PushHub can't use one of them."""
    urls = dict.fromkeys([settings.REDIS_URL, shared_url()])
    line = "; beside the Cluster, ".join(version_line(url) for url in urls)
    check_cells(settings.REDIS_URL)
    return line


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
