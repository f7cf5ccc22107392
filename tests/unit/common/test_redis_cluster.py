"""What the URL of a Redis Cluster says to redis-py."""

from __future__ import annotations

from typing import Any

from redis import cluster

from pushhub.common.redisclient import connect_to_redis


def test_a_url_names_nodes_user_and_tls() -> None:
    url = "rediss+cluster://pushhub:a%2Fb@one:7000,two/0?ssl_ca_certs=/ca.pem"
    client: Any = connect_to_redis(url, seconds=10)
    assert client._nodes == [("one", 7000), ("two", 6379)]
    assert client._options == {
        "username": "pushhub",
        "password": "a/b",
        "ssl": True,
        "ssl_ca_certs": "/ca.pem",
        "socket_timeout": 2.0,
        "socket_connect_timeout": 2.0,
    }
    assert client._options.keys() <= set(cluster.REDIS_ALLOWED_KEYS), "redis-py would leave one out"


def test_a_client_connects_when_it_is_used_first() -> None:
    with connect_to_redis("redis+cluster://nowhere.invalid:1", seconds=1):
        pass
