"""The one way to a Redis: from the URL of a setting to a client.

`sentinel://user:password@host:26379,host2/0?master=name` asks the Sentinels for the primary at each new connection;
`sentinels://` does so by TLS, to the Sentinels and to Redis. A primary that has been replaced refuses writes and cuts
its connections, so that clients find the new one by themselves.

`redis+cluster://user:password@host:6379,host2:6379` has nodes of a Redis Cluster, which know the others;
`rediss+cluster://` reaches them by TLS. Scripts claim a Cluster cell by cell (deliveries/backlog/common.lua).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import redis
import redis.asyncio
import redis.asyncio.cluster
import redis.asyncio.sentinel
import redis.sentinel
from django.conf import settings
from redis.connection import parse_url

from pushhub.common.rediscluster import NODE_SECONDS, Cluster
from pushhub.common.redisurls import SENTINEL_PREFIX, SENTINEL_SCHEMES, is_cluster

#: The longest time that a connection may take to open.
CONNECT_SECONDS = 10
#: How long a Sentinel may take before the next one is asked.
SENTINEL_SECONDS = 1.0
REDIS_PORT, SENTINEL_PORT = 6379, 26379
#: The schemes of URLs of several servers that are reached by TLS.
TLS_SCHEMES = ("sentinels", "rediss+cluster")
#: Each thread has a connection, and each stream that waits for messages. redis-py's limit is 100.
MAX_CONNECTIONS = 10_000
#: Has the run id of the server that wrote the data.
CLAIMED_KEY = "ph:primary"
#: Has the number of cells of the lanes in Redis.
CELLS_KEY = "ph:cells"
CLAIM = Path(__file__).with_name("claim.lua").read_text(encoding="utf-8")


def shared_url() -> str:
    """Return the URL of the Redis for what isn't divided into cells: Celery's queues, bells, leases, quotas."""
    return str(settings.BROKER_URL or settings.REDIS_URL)


def connect_to_redis(url: str, *, seconds: float, **options: Any) -> redis.Redis:
    """Return a client with a connection pool, which waits `seconds` for an answer and at most 10 s to connect.

    It claims the server (claim.lua), unless that is the embedded Redis, whose save is complete.
    Of a Cluster it waits 2 s for a node at most, and the client has what is the same in redis-py's two clients.
    """
    if is_cluster(url):
        nodes, of_cluster = _parse_nodes(url)
        seconds = min(seconds, NODE_SECONDS)
        return cast(redis.Redis, Cluster(nodes, socket_timeout=seconds, socket_connect_timeout=seconds, **of_cluster))
    timeouts = {"socket_timeout": seconds, "socket_connect_timeout": min(seconds, CONNECT_SECONDS)}
    options = {**timeouts, "max_connections": MAX_CONNECTIONS, **options}
    if url == settings.EMBEDDED_REDIS_URL:
        return redis.Redis.from_url(url, **options)
    options = {"redis_connect_func": _claim} | options
    if not url.startswith(SENTINEL_SCHEMES):
        return redis.Redis.from_url(url, **options)
    client: redis.Redis = _connect_to_primary(url, redis.sentinel.Sentinel, **options)
    return client


def connect_to_redis_in_loop(url: str) -> redis.asyncio.Redis:
    """Return a client for the running event loop."""
    if is_cluster(url):
        nodes, options = _parse_nodes(url)
        options |= {"require_full_coverage": False, "max_connections": MAX_CONNECTIONS}
        startup_nodes = [redis.asyncio.cluster.ClusterNode(*node) for node in nodes]
        return cast(redis.asyncio.Redis, redis.asyncio.cluster.RedisCluster(startup_nodes=startup_nodes, **options))
    if not url.startswith(SENTINEL_SCHEMES):
        return redis.asyncio.Redis.from_url(url, max_connections=MAX_CONNECTIONS)
    client: redis.asyncio.Redis = _connect_to_primary(
        url, redis.asyncio.sentinel.Sentinel, max_connections=MAX_CONNECTIONS
    )
    return client


def _parse_nodes(url: str) -> tuple[list[tuple[str, int]], dict[str, Any]]:
    nodes, options = _parse_hosts(url, port=REDIS_PORT)
    options.pop("db", None)  # redis-py takes no number, not even 0
    return nodes, options


def _connect_to_primary(url: str, sentinel_class: Any, **options: Any) -> Any:
    addresses, of_redis = _parse_hosts(url, port=SENTINEL_PORT)
    name = of_redis.pop("master")
    own = {word: value for word, value in of_redis.items() if word.startswith(SENTINEL_PREFIX)}
    of_redis = {word: value for word, value in of_redis.items() if word not in own}
    tls = {word: value for word, value in of_redis.items() if word.startswith("ssl")}
    of_sentinels = {word.removeprefix(SENTINEL_PREFIX): value for word, value in own.items()} | tls
    # One that is away is not asked again and again: there are others.
    of_sentinels |= {"socket_timeout": SENTINEL_SECONDS, "socket_connect_timeout": SENTINEL_SECONDS, "retry": None}
    sentinels = sentinel_class(addresses, sentinel_kwargs=of_sentinels, **options | of_redis | tls)
    return sentinels.master_for(name)


def _parse_hosts(url: str, *, port: int) -> tuple[list[tuple[str, int]], dict[str, Any]]:
    """Return the addresses in the URL of several servers, and what else it says: a user, a password, options, TLS."""
    parts = urlsplit(url)
    user, at, hosts = parts.netloc.rpartition("@")
    first, *_ = hosts.split(",")
    options = _parse(parts._replace(scheme="redis", netloc=f"{user}{at}{first}").geturl())
    own = {word: value for word, value in options.items() if word not in ("host", "port")}
    if parts.scheme in TLS_SCHEMES:
        own["ssl"] = True
    parsed = [_parse(f"redis://{host}") for host in hosts.split(",")]
    return [(host["host"], host.get("port", port)) for host in parsed], own


def _parse(url: str) -> dict[str, Any]:
    return dict(parse_url(url))  # type: ignore[no-untyped-call]


def empty_redis(client: redis.Redis) -> None:
    """Delete what PushHub has in Redis, by letting claim.lua find the data of another server."""
    client.set(CLAIMED_KEY, "")
    client.eval(CLAIM, 1, CLAIMED_KEY)


def _claim(connection: Any) -> None:
    """Set a new connection up, and let claim.lua empty a Redis that has restarted or become the primary just now."""
    connection.on_connect()
    connection.send_command("EVAL", CLAIM, 1, CLAIMED_KEY)
    connection.read_response()
