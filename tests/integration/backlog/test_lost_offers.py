"""A publisher that Redis did not hear: the order of its keys stays, whichever process publishes next."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
import redis
from django.db import connection
from django.test.utils import CaptureQueriesContext

from deliveries import tasks
from deliveries.backlog import paging, reconcile
from deliveries.backlog.default import default_backlog
from deliveries.models import LostOffer
from deliveries.publish import storing
from deliveries.store import lostoffers, sql
from tests.restapi import Api

TOPIC = "projects/shop/topics/orders"
Cut = Callable[[], AbstractContextManager[None]]


@pytest.fixture
def ordered(redis_url: str, api: Api) -> Api:
    """A subscription with message ordering, whose lane has read its backlog to the end."""
    api.put("topics/orders", {})
    api.put("subscriptions/sorted", {"topic": TOPIC, "enableMessageOrdering": True})
    return api


@pytest.fixture
def cut_off(monkeypatch: pytest.MonkeyPatch) -> Cut:
    """Returns a block in which Redis does not answer publishers."""

    def fail(*_: Any, **__: Any) -> None:
        raise redis.ConnectionError("away")

    @contextmanager
    def cut() -> Any:
        with monkeypatch.context() as patch:
            patch.setattr(default_backlog(), "configure_all", fail)
            patch.setattr(default_backlog(), "offer", fail)
            yield

    return cut


def publish(api: Api, key: str) -> str:
    answer = api.post("topics/orders:publish", {"messages": [{"data": "aGk=", "orderingKey": key}]})
    return str(answer.body["messageIds"][0])


def publish_unheard(api: Api, monkeypatch: pytest.MonkeyPatch, cut_off: Cut) -> str:
    """Publish a message of key "k" with a lower id than another message that was committed and read sooner."""
    [early] = storing.take_message_ids(1)
    publish(api, "other")
    pull_and_acknowledge(api)
    with cut_off(), monkeypatch.context() as patch:
        patch.setattr(storing, "take_message_ids", lambda _: [early])
        assert publish(api, "k") == str(early)
    return str(early)


def pull_and_acknowledge(api: Api) -> list[str]:
    request = {"maxMessages": 10, "returnImmediately": True}
    received = api.post("subscriptions/sorted:pull", request).body.get("receivedMessages", [])
    if received:
        api.post("subscriptions/sorted:acknowledge", {"ackIds": [each["ackId"] for each in received]})
    return [each["message"]["messageId"] for each in received]


def test_a_later_message_of_the_key_waits_for_the_one_that_redis_was_not_told_of(
    ordered: Api, monkeypatch: pytest.MonkeyPatch, cut_off: Cut
) -> None:
    # Given a lane that has read beyond a message before it was committed, and was not told of it
    unheard = publish_unheard(ordered, monkeypatch, cut_off)
    # When another process publishes the key's next message
    following = publish(ordered, "k")
    # Then they come in order, and nothing remains to be looked at
    assert pull_and_acknowledge(ordered) == [unheard, following]
    assert not LostOffer.objects.exists()


def test_the_audit_finds_the_message_if_nobody_publishes(
    ordered: Api, monkeypatch: pytest.MonkeyPatch, cut_off: Cut
) -> None:
    unheard = publish_unheard(ordered, monkeypatch, cut_off)
    assert pull_and_acknowledge(ordered) == []
    assert tasks.sweep_messages()["lost"] == 0
    monkeypatch.setattr(reconcile, "GRACE_MS", -1000)
    assert reconcile.audit() == 1
    assert pull_and_acknowledge(ordered) == [unheard]
    assert tasks.sweep_messages()["lost"] == 1
    assert not LostOffer.objects.exists()


def test_a_lane_without_ordering_notes_nothing(ordered: Api, cut_off: Cut) -> None:
    ordered.put("topics/plain", {})
    ordered.put("subscriptions/plain", {"topic": "projects/shop/topics/plain"})
    with cut_off():
        ordered.post("topics/plain:publish", {"messages": [{"data": "aGk=", "orderingKey": "k"}]})
    assert not LostOffer.objects.exists()


def test_a_lane_begins_anew_once_for_all_that_was_lost(
    ordered: Api, monkeypatch: pytest.MonkeyPatch, cut_off: Cut
) -> None:
    # Given more messages of which Redis was not told than a page has
    monkeypatch.setattr(paging, "PAGE_ROWS", 2)
    with cut_off():
        unheard = [publish(ordered, "k") for _ in range(6)]
    assert LostOffer.objects.count() == 6
    begun = []
    configure = paging.configure_lane

    def note_and_configure(*arguments: Any, **options: Any) -> None:
        begun.append(arguments)
        configure(*arguments, **options)

    monkeypatch.setattr(paging, "configure_lane", note_and_configure)
    # When the lane reads them
    following = publish(ordered, "k")
    came = []
    while messages := pull_and_acknowledge(ordered):
        came += messages
    # Then they come in order
    assert came == [*unheard, following]
    assert len(begun) == 1
    assert not LostOffer.objects.exists()


def test_a_publish_looks_at_one_note_however_many_there_are(
    ordered: Api, cut_off: Cut, monkeypatch: pytest.MonkeyPatch
) -> None:
    with cut_off():
        for _ in range(5):
            publish(ordered, "k")
    seen = []
    read = lostoffers.fetch_rows

    def note_and_read(*arguments: Any) -> list[Any]:
        rows = read(*arguments)
        seen.append(len(rows))
        return rows

    monkeypatch.setattr(lostoffers, "fetch_rows", note_and_read)
    with cut_off():
        publish(ordered, "k")
    assert seen == [1]


def test_many_notes_are_forgotten_in_parts(ordered: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    LostOffer.objects.bulk_create(LostOffer(subscription_id=1, region="local", message_id=i + 1) for i in range(5))
    monkeypatch.setattr(sql, "IN_CHUNK", 2)
    with CaptureQueriesContext(connection) as queries:
        assert lostoffers.sweep_settled() == 5
    assert len([query for query in queries if query["sql"].startswith("DELETE")]) == 3
    assert not LostOffer.objects.exists()
