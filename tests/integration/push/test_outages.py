"""A database outage longer than any timeout ends no worker, loses no result and needs no intervention."""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import pytest
from django.db import connection

from deliveries.models import Delivery
from deliveries.publish.service import publish_message
from deliveries.rules.payload import NewMessage
from subscriptions.selectors import get_topic
from tests.ports import wait_for
from tests.proxy import Proxy
from tests.receiver import Receiver
from tests.restapi import Api
from tests.workers import Worker, database_url

pytestmark = pytest.mark.django_db(transaction=True)

TOPIC = "projects/shop/topics/orders"


class SqliteOutage:
    """Block all writers by another process that never ends its transaction, until they time out."""

    url = ""

    def __init__(self) -> None:
        self.url = database_url()
        self._file = str(connection.settings_dict["NAME"])

    @contextmanager
    def lasting(self) -> Iterator[None]:
        holder = sqlite3.connect(self._file, isolation_level=None, timeout=60)
        holder.execute("BEGIN IMMEDIATE")
        try:
            yield
        finally:
            holder.execute("ROLLBACK")
            holder.close()


class PostgresqlOutage:
    """Remove the server's socket and all its connections."""

    def __init__(self, proxy: Proxy, folder: str) -> None:
        config = connection.settings_dict
        self.url = f"postgres://{config['USER']}@{quote(folder, safe='')}/{config['NAME']}"
        self._proxy = proxy

    @contextmanager
    def lasting(self) -> Iterator[None]:
        self._proxy.cut()
        try:
            yield
        finally:
            self._proxy.mend()


@pytest.fixture
def outage() -> Iterator[SqliteOutage | PostgresqlOutage]:
    if connection.vendor == "sqlite":
        yield SqliteOutage()
        return
    port = connection.settings_dict["PORT"] or 5432
    with tempfile.TemporaryDirectory() as folder:
        name = f".s.PGSQL.{port}"
        with Proxy(Path(folder) / name, f"{connection.settings_dict['HOST']}/{name}") as proxy:
            yield PostgresqlOutage(proxy, folder)


def publish(count: int) -> list[str]:
    return publish_message(topic=get_topic(name=TOPIC), messages=[NewMessage(b"x", {})] * count)


def test_results_wait_for_the_database_however_long_it_is_away(
    redis_url: str, receiver: Receiver, outage: SqliteOutage | PostgresqlOutage
) -> None:
    api = Api()
    api.put("topics/orders", {})
    api.put("subscriptions/push", {"topic": TOPIC, "pushConfig": {"pushEndpoint": receiver.url}})
    with Worker(redis_url, PUSHHUB_DATABASE_URL=outage.url) as worker:
        publish(1)
        wait_for(lambda: not Delivery.objects.exists(), what="a first ack")
        published = publish(3)
        with outage.lasting():
            wait_for(lambda: " WARNING pushhub.common.jobs: the database " in worker.log, what="a thread noticing")
            wait_for(lambda: len(receiver.requests) >= 4, what="pushes during the outage")
        wait_for(lambda: not Delivery.objects.exists(), what="the results of the outage")
        later = publish(2)
        wait_for(lambda: not Delivery.objects.exists(), what="a push after the outage")
        assert worker.process.poll() is None
    received = {request.json["message"]["messageId"] for request in receiver.requests}
    assert {*published, *later} <= received
