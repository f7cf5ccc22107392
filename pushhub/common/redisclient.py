"""The one way to a Redis: from the URL of a setting to a client.

`sentinel://user:password@host:26379,host2/0?master=name` asks the Sentinels for the primary at each new connection;
`sentinels://` does so by TLS, to the Sentinels and to Redis. A primary that has been replaced refuses writes and cuts
its connections, so that clients find the new one by themselves.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import redis
import redis.asyncio
import redis.asyncio.sentinel
import redis.sentinel
from redis.connection import parse_url

from pushhub.common.redisurls import SENTINEL_SCHEMES

#: The longest time that a connection may take to open.
CONNECT_SECONDS = 10
#: How long a Sentinel may take before the next one is asked.
SENTINEL_SECONDS = 1.0
SENTINEL_PORT = 26379
#: Options of the URL that begin so are for the Sentinels: `sentinel_username`, `sentinel_password`.
SENTINEL_PREFIX = "sentinel_"
#: Has the run id of the server that wrote the data.
CLAIMED_KEY = "ph:primary"
#: Has the number of cells of the lanes in Redis.
CELLS_KEY = "ph:cells"
CLAIM = Path(__file__).with_name("claim.lua").read_text(encoding="utf-8")


def connect_to_redis(url: str, *, seconds: float, **options: Any) -> redis.Redis:
    """Return a client with a connection pool, which waits `seconds` for an answer and at most 10 s to connect.

    It claims the server (claim.lua), unless that is on a UNIX socket, as the embedded Redis, whose save is complete.
    """
    options = {"socket_timeout": seconds, "socket_connect_timeout": min(seconds, CONNECT_SECONDS)} | options
    if url.startswith("unix://"):
        return redis.Redis.from_url(url, **options)
    options = {"redis_connect_func": _claim} | options
    if not url.startswith(SENTINEL_SCHEMES):
        return redis.Redis.from_url(url, **options)
    client: redis.Redis = _connect_to_primary(url, redis.sentinel.Sentinel, **options)
    return client


def connect_to_redis_in_loop(url: str) -> redis.asyncio.Redis:
    """Return a client for the running event loop."""
    if not url.startswith(SENTINEL_SCHEMES):
        return redis.asyncio.Redis.from_url(url)
    client: redis.asyncio.Redis = _connect_to_primary(url, redis.asyncio.sentinel.Sentinel)
    return client


def _connect_to_primary(url: str, sentinel_class: Any, **options: Any) -> Any:
    parts = urlsplit(url)
    user, at, hosts = parts.netloc.rpartition("@")
    first, *_ = hosts.split(",")
    of_redis = _parse(parts._replace(scheme="redis", netloc=f"{user}{at}{first}").geturl())
    name = of_redis.pop("master")
    addresses = [(one["host"], one.get("port", SENTINEL_PORT)) for one in map(_parse_host, hosts.split(","))]
    own = {word: value for word, value in of_redis.items() if word.startswith(SENTINEL_PREFIX)}
    of_redis = {word: value for word, value in of_redis.items() if word not in (*own, "host", "port")}
    tls = {word: value for word, value in of_redis.items() if word.startswith("ssl_")}
    tls |= {"ssl": True} if parts.scheme == "sentinels" else {}
    of_sentinels = {word.removeprefix(SENTINEL_PREFIX): value for word, value in own.items()} | tls
    # One that is away is not asked again and again: there are others.
    of_sentinels |= {"socket_timeout": SENTINEL_SECONDS, "socket_connect_timeout": SENTINEL_SECONDS, "retry": None}
    sentinels = sentinel_class(addresses, sentinel_kwargs=of_sentinels, **options | of_redis | tls)
    return sentinels.master_for(name)


def _parse(url: str) -> dict[str, Any]:
    return dict(parse_url(url))  # type: ignore[no-untyped-call]


def _parse_host(host: str) -> dict[str, Any]:
    return _parse(f"redis://{host}")


def empty_redis(client: redis.Redis) -> None:
    """Delete what PushHub has in Redis, by letting claim.lua find the data of another server."""
    client.set(CLAIMED_KEY, "")
    client.eval(CLAIM, 1, CLAIMED_KEY)


def _claim(connection: Any) -> None:
    """Set a new connection up, and let claim.lua empty a Redis that has restarted or become the primary just now."""
    connection.on_connect()
    connection.send_command("EVAL", CLAIM, 1, CLAIMED_KEY)
    connection.read_response()
