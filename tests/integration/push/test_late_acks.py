"""Acks that come after Redis has lost its data, of messages that the lanes made anew would send again."""

from __future__ import annotations

import threading
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from deliveries.backlog import late
from deliveries.backlog.connection import client_of
from deliveries.backlog.default import default_backlog
from deliveries.backlog.reconcile import rebuild
from deliveries.backlog.records import Lane
from deliveries.models import Delivery
from deliveries.store import lanerows
from subscriptions.models import Subscription
from tests.integration.pull.test_pull import Puller, ids
from tests.integration.push.test_delivery import ids_received, publish, subscribe
from tests.lanes import lane_change
from tests.ports import wait_for
from tests.receiver import Receiver, Request
from tests.restapi import Api
from tests.workers import Worker

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("redis_url")]

#: The first push window.
FIRST_TOKENS = 3


def lane() -> Lane:
    return Lane(Subscription.objects.get().pk, "local")


def waiting_in_redis() -> int:
    return int(default_backlog().client.llen(f"{lane().root}:b"))


def test_a_message_that_was_acked_after_a_wipe_is_not_pushed_again(
    api: Api, receiver: Receiver, redis_url: str
) -> None:
    # Given 20 messages whose pushes are not answered yet
    may_answer = [threading.Event(), threading.Event()]

    def answer(request: Request) -> int:
        is_second = ids_received(receiver)[request.json["message"]["messageId"]] - 1
        assert may_answer[is_second].wait(600)
        return 204

    receiver.default = answer
    subscribe(api, receiver)
    lane_change(default_backlog(), lane(), window=20)
    published = publish(20)
    with Worker(redis_url):
        receiver.wait(20)
        # When Redis is wiped, the lane made anew pushes what its window allows, and then the first pushes are answered
        client_of(redis_url).flushall()
        receiver.wait(20 + FIRST_TOKENS)
        wait_for(lambda: waiting_in_redis() == 20 - FIRST_TOKENS, what="the page")
        may_answer[0].set()
        wait_for(lambda: not Delivery.objects.exists() and not waiting_in_redis(), what="the acks")
        may_answer[1].set()
        wait_for(lambda: not default_backlog().client.exists(lane().places_key), what="the other acks")
    # Then no other comes again
    assert ids_received(receiver) == Counter(published) + Counter(published[:FIRST_TOKENS])


@pytest.fixture
def puller(api: Api) -> Puller:
    return Puller(api, retainAckedMessages=True)


@pytest.fixture
def pulled(puller: Puller, redis_url: str) -> list[dict[str, Any]]:
    """Pull three messages. Then Redis is wiped, the first is pulled again, and the others wait."""
    publish(3)
    pulled = puller.pull()
    client_of(redis_url).flushall()
    rebuild()
    assert ids(puller.pull(1)) == ids(pulled)[:1]
    assert waiting_in_redis() == 2
    return pulled


def test_a_message_that_was_acked_after_a_wipe_is_not_pulled_again(
    puller: Puller, pulled: list[dict[str, Any]]
) -> None:
    puller.ack(*pulled)
    assert not Delivery.objects.exists()
    assert puller.pull() == []


def seek_back(puller: Puller) -> None:
    """Seek to before all messages. The first is pulled, the others wait in Redis."""
    assert puller.api.post(f"{puller.path}:seek", {"time": "1970-01-01T00:00:00Z"}).status == 200
    assert len(puller.pull(1)) == 1
    assert waiting_in_redis() == 2


def test_acks_of_before_a_seek_leave_what_it_has_brought_back(puller: Puller, pulled: list[dict[str, Any]]) -> None:
    seek_back(puller)
    puller.ack(*pulled)
    puller.lapse()
    assert sorted(ids(puller.pull())) == sorted(ids(pulled))


def test_a_seek_brings_back_what_redis_is_about_to_forget(
    puller: Puller, pulled: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The acks have left the database, and no message was owed any more."""

    def look_and_seek(**arguments: Any) -> list[int]:
        owed = still_waiting(**arguments)
        assert owed == []
        seek_back(puller)
        return owed

    still_waiting = lanerows.still_waiting
    monkeypatch.setattr(late, "lanerows", SimpleNamespace(still_waiting=look_and_seek))
    puller.ack(*pulled)
    puller.lapse()
    assert sorted(ids(puller.pull())) == sorted(ids(pulled))
