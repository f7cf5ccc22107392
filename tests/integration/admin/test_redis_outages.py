"""While Redis hangs or is full, each page says so, and has waited for it once at most."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from django.test import Client
from redis.retry import Retry

from deliveries.backlog import connection
from deliveries.models import GaugeRound
from pushhub.common.clock import utcnow
from subscriptions.models import Subscription, Topic
from tests.redisoutages import full, hanging
from tests.redisserver import RedisServer
from tests.restapi import Api, root_client

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.any_database]

TOPIC = "projects/shop/topics/orders"
DELIVERY = "/admin/deliveries/delivery/"


@pytest.fixture
def own_redis(redis_url: str, settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RedisServer]:
    # However long the machine takes for a page, it is the same page.
    monkeypatch.setattr(connection, "PAUSE_SECONDS", 3600)
    # A page that asked by the ordinary clients would be found out sooner than after ten seconds.
    monkeypatch.setattr(connection, "SOCKET_TIMEOUT_SECONDS", 1)
    with RedisServer(tmp_path) as server:
        settings.REDIS_URL = server.url
        yield server


@pytest.fixture
def pages(own_redis: RedisServer) -> list[str]:
    """Return the pages about messages, of a message that waits in two subscriptions, and then those of other things."""
    api = Api()
    api.create("topics/orders")
    for name in ("one", "two"):
        config = {"pushConfig": {"pushEndpoint": "http://127.0.0.1:40009/"}}
        api.create(f"subscriptions/{name}", {"topic": TOPIC, **config})
    [message_id] = api.post("topics/orders:publish", {"messages": [{"data": "aGVsbG8="}]}).body["messageIds"]
    GaugeRound.objects.create(at=utcnow().replace(second=0, microsecond=0))
    pk = Subscription.objects.get(subscription_id="one").pk
    return [
        "/admin/",
        f"{DELIVERY}overview/",
        "/admin/subscriptions/subscription/",
        f"/admin/subscriptions/topic/{Topic.objects.get().pk}/overview/",
        f"{DELIVERY}state/{pk}/",
        f"{DELIVERY}state/{pk}/live/",
        f"{DELIVERY}act/{pk}/diagnose/",
        f"/admin/deliveries/message/way/{message_id}/",
        f"/admin/deliveries/segment/charts/{pk}/",
        "/admin/deliveries/segment/",
        f"{DELIVERY}rejected/",
        f"{DELIVERY}demo/?project=shop",
    ]


class Waits:
    """Counts the calls that Redis has not answered in time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        call = Retry.call_with_retry

        def counted(*args: Any, **options: Any) -> Any:
            try:
                return call(*args, **options)
            except redis.TimeoutError:
                self.count += 1
                raise

        monkeypatch.setattr(Retry, "call_with_retry", counted)

    def take(self) -> int:
        """Return how many there were, and let the next page wait again."""
        count, self.count = self.count, 0
        return count


def opened(client: Client, page: str) -> str:
    answer = client.post(page) if "/act/" in page else client.get(page)
    assert answer.status_code == 200, page
    return answer.content.decode()


def forget_the_wait(server: RedisServer) -> None:
    retry: Any = connection.impatient_client_of(server.url, "page").get_retry()
    retry._not_before = 0.0


def test_a_page_waits_once_for_a_redis_that_hangs_and_says_so(
    pages: list[str], own_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = root_client()
    faults = []
    waits = Waits(monkeypatch)
    with hanging(own_redis):
        for page in pages:
            forget_the_wait(own_redis)
            is_said = "Redis does not answer" in opened(client, page)
            if (is_said, count := waits.take()) != (True, 1):
                faults.append((page, is_said, count))
    assert faults == []


def test_a_page_about_messages_takes_a_full_redis_for_what_it_is(pages: list[str], own_redis: RedisServer) -> None:
    client = root_client()
    with full(own_redis):
        silent = [page for page in pages[:8] if "Redis has no memory left" not in opened(client, page)]
    assert silent == []
    assert not [page for page in pages if "no memory" in opened(client, page)]
