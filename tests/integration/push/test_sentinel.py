"""Sentinels that promote a replica while messages are on their way."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.backoff import ConstantBackoff
from redis.retry import Retry

from deliveries.backlog.connection import client_of
from deliveries.models import Delivery
from tests.integration.push.test_wipes import TOPIC, inversions, publish
from tests.ports import wait_for
from tests.receiver import Receiver
from tests.restapi import Api
from tests.sentinels import Group, watched_by_sentinels
from tests.workers import Worker

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.any_database]


@pytest.fixture
def group(redis_url: str, tmp_path: Path, settings: Any) -> Iterator[Group]:
    with watched_by_sentinels(tmp_path) as group:
        settings.REDIS_URL = group.url
        yield group
        client_of(settings.REDIS_URL).close()


@contextmanager
def killed(group: Group) -> Iterator[None]:
    group.servers[0].stop()
    yield


@contextmanager
def frozen(group: Group) -> Iterator[None]:
    """Freeze the primary until it is replaced; it then learns that it is a replica."""
    os.kill(group.servers[0].pid, signal.SIGSTOP)
    yield
    os.kill(group.servers[0].pid, signal.SIGCONT)


@contextmanager
def asked(group: Group) -> Iterator[None]:
    """Ask the Sentinels for a failover. The primary never stops answering."""
    with redis.Redis(port=group.sentinels[0]) as client:
        client.sentinel_failover("main")
    yield


@pytest.mark.parametrize("fault", [killed, frozen, asked])
def test_a_failover_is_waited_out_and_keys_keep_their_order(
    fault: Callable[[Group], AbstractContextManager[None]], group: Group, receiver: Receiver
) -> None:
    api = Api()
    api.put("topics/orders", {})
    for name, is_ordered in (("ordered", True), ("plain", False)):
        push = {"pushConfig": {"pushEndpoint": f"{receiver.url}/{name}"}, "enableMessageOrdering": is_ordered}
        api.create(f"subscriptions/{name}", {"topic": TOPIC} | push)
    with Worker(group.url), Worker(group.url, name="maintenance", queue="maintenance", beat=True) as maintenance:
        publish(range(30))
        receiver.wait(60)
        with fault(group):
            publish(range(30, 35))
            wait_for(lambda: group.primary() == group.ports[1], what="the promotion")
            publish(range(35, 40))
        wait_for(lambda: not Delivery.objects.exists(), what="the last ack")
        assert not inversions([request for request in receiver.requests if request.path == "/ordered"])
        wait_for(lambda: "pong" in maintenance.celery("inspect", "ping"), what="Celery's control")


def test_a_replica_that_becomes_the_primary_is_emptied_once(group: Group) -> None:
    client = client_of(group.url)

    def has_moved() -> bool:
        """Whether what the client writes arrives at the new primary; for a moment, the old one still takes it."""
        with suppress(redis.RedisError):
            client.set("ph:new", 1)
        return bool(replica.exists("ph:new"))

    client.set("ph:lane", 1)
    client.set("deliveries.local", 1)
    client.set("of others", 1)
    # Sentinels cut a server's connections when they give it another role.
    patient = Retry(ConstantBackoff(0.1), 20)
    with redis.Redis.from_url(group.servers[1].url, password="secret", retry=patient) as replica:
        wait_for(lambda: replica.dbsize() == 4, what="the replica")
        with asked(group):
            wait_for(lambda: replica.role()[0] == b"master", what="the promotion")
        wait_for(has_moved, what="the new primary")
        assert set(replica.scan_iter()) == {b"of others", b"ph:primary", b"ph:new"}
        client.connection_pool.disconnect()
        assert client.exists("ph:new")
