"""Ids of an ordering key are in the order of its publishes, whatever the clocks of the processes that publish say."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from django.db import connection

from deliveries.backlog.default import default_backlog
from deliveries.backlog.paging import page_in
from deliveries.backlog.records import Lane, key_digest
from deliveries.models import LostOffer, Message
from deliveries.publish import storing
from deliveries.publish.service import publish_message
from deliveries.publish.storing import Request, commit_requests, owed_by, take_message_ids
from deliveries.rules.ids import MessageIds, publish_time_ms
from deliveries.rules.payload import NewMessage
from deliveries.store import fanout, statements
from deliveries.store.lostoffers import note_lost
from deliveries.store.sql import fetch_rows
from subscriptions.models import Subscription, Topic
from subscriptions.selectors import get_topic, subscriptions_of_topic
from tests.lanes import lane_change, page_requests
from tests.restapi import Api

pytestmark = [pytest.mark.django_db(transaction=True)]

AHEAD_MS = 120_000


@pytest.fixture
def topic(api: Api) -> Iterator[Topic]:
    """Yield a topic whose last message of the key "a" was published by a process with a clock two minutes ahead."""
    api.create("topics/orders")
    api.create("subscriptions/all", {"topic": "projects/shop/topics/orders"})
    ahead = MessageIds(node=1).take(1, now_ms=time.time_ns() // 1_000_000 + AHEAD_MS)
    topic = get_topic(name="projects/shop/topics/orders")
    Message.objects.create(pk=ahead[0], topic=topic, region="local", data=b"first", ordering_key="a")
    yield topic


def last_id() -> int:
    return max(Message.objects.filter(ordering_key="a").values_list("pk", flat=True))


def publish(topic: Topic, key: str, count: int = 1) -> list[int]:
    messages = [NewMessage(b"later", {}, key)] * count
    return [int(name) for name in publish_message(topic=topic, messages=messages)]


def test_a_later_message_of_a_key_has_a_larger_id(topic: Topic) -> None:
    before = last_id()
    ids = publish(topic, "a", 3) + publish(topic, "a", 2)
    assert ids == sorted({before, *ids})[1:]


def test_other_messages_keep_the_time_of_their_publish(topic: Topic) -> None:
    """Of other keys, without a key, and of other topics."""
    [after] = publish(topic, "a")
    others = publish(topic, "b") + publish(topic, "")
    limit = time.time_ns() // 1_000_000 + 1000
    assert publish_time_ms(after) > limit
    assert max(map(publish_time_ms, others)) <= limit


def test_requests_that_are_committed_together_keep_their_order(topic: Topic) -> None:
    before = last_id()
    subscribers = subscriptions_of_topic(topic.pk)
    requests = [
        Request(topic, messages, "local", owed_by(subscribers, messages))
        for key in ("a", "b", "a")
        for messages in [[NewMessage(b"x", {}, key)] * 2]
    ]
    published = commit_requests(requests)
    first, other, second = (list(stored.ids) for stored in published)
    assert [before, *first, *second] == sorted({before, *first, *second})
    assert max(other) < before
    befores = [list(stored.befores) for stored in published]
    assert befores == [[before, first[0]], [0, other[0]], [first[1], second[0]]], "each knows the one before it"


def test_the_last_message_of_a_key_is_found_without_reading_those_of_others(
    topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    if connection.vendor != "sqlite":
        pytest.xfail("PostgreSQL chooses by its statistics")
    plans: list[str] = []

    def explain(text: str, parameters: Sequence[object]) -> list[Any]:
        plans.extend(row[3] for row in fetch_rows(f"EXPLAIN QUERY PLAN {text}", parameters))
        return fetch_rows(text, parameters)

    monkeypatch.setattr(statements, "fetch_rows", explain)
    assert statements.last_of_keys([(topic.pk, "a"), (topic.pk, "new")]).ids == {(topic.pk, "a"): last_id()}
    assert "SEARCH m USING COVERING INDEX message_key (topic_id=? AND ordering_key=? AND id>?)" in plans


@pytest.mark.usefixtures("redis_url")
def test_messages_of_an_ordered_subscription_are_in_redis_with_their_publish(api: Api) -> None:
    topic = "projects/shop/topics/orders"
    api.create("topics/orders")
    for name in ("ordered", "filtered"):
        push = {"pushConfig": {"pushEndpoint": "http://127.0.0.1:1024/"}, "enableMessageOrdering": True}
        api.create(
            f"subscriptions/{name}", {"topic": topic, "filter": "attributes:a" if name == "filtered" else "", **push}
        )
    ordered, filtered = (
        Lane(Subscription.objects.get(subscription_id=name).pk, "local") for name in ("ordered", "filtered")
    )
    ids = [
        message_id
        for attributes in ({"a": ""}, {}, {"a": ""})
        for message_id in publish_message(topic=get_topic(name=topic), messages=[NewMessage(b"x", attributes, "a")] * 2)
    ]
    # The last two follow two that the filtered subscription never gets, so it reads the database.
    assert default_backlog().missing({ordered: ids, filtered: ids[:2]}) == {}
    assert default_backlog().missing({filtered: ids[4:]}) == {filtered: ids[4:]}
    read_pages()
    assert default_backlog().missing({filtered: ids[4:]}) == {}


@pytest.mark.usefixtures("redis_url")
def test_a_message_waits_for_a_lost_one_of_its_key_though_redis_has_one_that_was_published_meanwhile(api: Api) -> None:
    api.create("topics/orders")
    push = {"pushConfig": {"pushEndpoint": "http://127.0.0.1:1024/"}, "enableMessageOrdering": True}
    api.create("subscriptions/ordered", {"topic": "projects/shop/topics/orders", **push})
    lane, topic = Lane(Subscription.objects.get().pk, "local"), get_topic(name="projects/shop/topics/orders")
    # Given two publishes of a key that overlap, so that neither knows of the other; the offer of the first is lost
    [lost_id] = take_message_ids(1)
    [heard_id] = publish(topic, "a")
    statements.insert_messages_with(
        [(lost_id, topic.pk, "local", b"lost", "{}", "a")], [(lost_id, lane.subscription_id, "local", 0, "")]
    )
    note_lost([LostOffer(subscription_id=lane.subscription_id, region="local", message_id=lost_id)])
    # When the key's next message is published
    [next_id] = publish(topic, "a")
    # Then it comes with the lost one and behind it
    assert default_backlog().missing({lane: [lost_id, heard_id, next_id]}) == {lane: [lost_id, next_id]}
    read_pages()
    behind = default_backlog().client.lrange(f"{lane.root}:q:{key_digest('a')}", 0, -1)
    assert list(map(int, behind)) == [lost_id, next_id]


@pytest.mark.usefixtures("redis_url")
@pytest.mark.parametrize("is_ordered", [False, True])
def test_messages_with_smaller_ids_than_others_of_their_publish_are_read(
    topic: Topic, api: Api, is_ordered: bool
) -> None:
    # Given a backlog in the database that has been read up to the id from the future
    push = {"pushConfig": {"pushEndpoint": "http://127.0.0.1:1024/"}, "enableMessageOrdering": is_ordered}
    api.create("subscriptions/pushed", {"topic": "projects/shop/topics/orders", **push})
    lane = Lane(Subscription.objects.get(subscription_id="pushed").pk, "local")
    lane_change(default_backlog(), lane, spilled=1)
    publish(topic, "a")
    read_pages()
    lane_change(default_backlog(), lane, spilled=1)

    # When one publish has a message of that key and then one with an id of now
    messages = [NewMessage(b"x", {}, key) for key in ("a", "b")]
    ids = publish_message(topic=topic, messages=messages)
    read_pages()

    # Then both are read
    assert int(ids[0]) > int(ids[1])
    assert default_backlog().missing({lane: ids}) == {}


def read_pages() -> None:
    """Do what a worker does with the lanes that want a page."""
    while requests := page_requests(default_backlog(), region="local"):
        page_in(requests)


def test_a_large_publish_comes_after_the_last_message_of_its_key(topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    before = last_id()
    monkeypatch.setattr(storing, "SLICE_ROWS", 1)
    monkeypatch.setattr(fanout, "SLICE_ROWS", 1)
    ids = publish(topic, "a", 3)
    assert [before, *ids] == sorted({before, *ids})
