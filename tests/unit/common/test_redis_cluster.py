"""What the URL of a Redis Cluster says to redis-py, and what its nodes' errors mean."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest
from redis import cluster
from redis.exceptions import AskError, ResponseError, TryAgainError

from pushhub.common import rediscluster
from pushhub.common.outages import Cause, outage_of
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


@pytest.mark.parametrize(
    "error",
    [
        AskError("1234 127.0.0.1:7000"),
        # Redis' words, and Valkey's
        ResponseError("Script attempted to access a non local key in a cluster node script: f, on @user_function:6."),
        ResponseError("Attempted to access a non local key in a cluster node script: on @user_function:622."),
    ],
)
def test_a_slot_on_its_way_to_another_node_is_an_outage(error: ResponseError) -> None:
    reply = rediscluster._read_reply(Mock(read_response=Mock(side_effect=error)))
    assert isinstance(reply, TryAgainError)
    assert outage_of(reply) is Cause.REDIS_BUSY


def test_another_error_of_a_script_is_none() -> None:
    error = ResponseError("attempt to index a nil value")
    assert rediscluster._read_reply(Mock(read_response=Mock(side_effect=error))) is error
