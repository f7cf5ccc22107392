"""An unexpected exception, once, in every call of the push worker's threads to the database or to Redis.

The calls are discovered: a first pass over the scenario notes from where each thread calls. Each further pass raises at
one of these places, once. Then every message must still arrive, and the worker must end with nothing outstanding.
"""

from __future__ import annotations

import gc
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from deliveries import activity
from deliveries.backlog.backlog import Backlog
from deliveries.backlog.default import default_backlog
from deliveries.backlog.lanes import configure_lane
from deliveries.backlog.records import Lane, work_key
from deliveries.backlog.scripts import load_library
from deliveries.models import Delivery, Message
from deliveries.publish.service import publish_message
from deliveries.push import heart, worker
from deliveries.push.sending import plans
from deliveries.push.worker import PushWorker
from deliveries.rules.payload import NewMessage
from deliveries.rules.taskmessage import parse_own, queue_name
from subscriptions.models import Subscription
from subscriptions.selectors import get_topic, push_settings_of
from tests.faults import outage_errors, watch
from tests.lanes import lane_state, mark_alive
from tests.ports import wait_for
from tests.receiver import Receiver, Request
from tests.restapi import Api

pytestmark = pytest.mark.django_db(transaction=True)

ROOT = str(Path(__file__).parents[3])
TOPIC, DOOMED, LETTERS = (f"projects/shop/topics/{name}" for name in ("orders", "doomed", "letters"))
LARGE = b"x" * 100_000
#: Frames of a place's name, counted from the call.
DEPTH = 3
#: The place of a statement that each thread executes only once, when its connection opens.
CONNECTING = "receivers.set_up_postgresql"


class Injected(Exception):
    """An exception that no code expects."""


class Faults:
    """Records the places where `thread` calls the database or Redis, and raises once at the armed place."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        #: How the names of the threads begin.
        self.thread = "no thread"
        self.places: set[str] = set()
        self.armed = ""
        #: Raised instead of Injected.
        self.errors: dict[str, BaseException] = {}
        watch(monkeypatch, self._note)

    def _note(self, owner: str, name: str) -> None:
        if not threading.current_thread().name.startswith(self.thread):
            return
        place = f"{_place()}: {name}"
        self.places.add(place)
        if place == self.armed:
            self.armed = ""
            raise self.errors.get(owner) or Injected(place)


def _place() -> str:
    frames = []
    frame = sys._getframe(3)
    while frame is not None and len(frames) < DEPTH:
        path = Path(frame.f_code.co_filename)
        if str(path).startswith((f"{ROOT}/deliveries", f"{ROOT}/subscriptions")):
            frames.append(f"{path.stem}.{frame.f_code.co_name}")
        frame = frame.f_back
    return " < ".join(frames)


class Stand:
    """A push worker in this process, which fetches as its transport does."""

    def __init__(self) -> None:
        self.worker = PushWorker(NoEvents(), "push@test", revoked=frozenset())
        self.worker.has_strategy = True

    def fetch(self) -> None:
        self.deliver(*self.request())

    def deliver(self, batch: str, reply: Any) -> None:
        messages, _, epoch, pages = reply
        self.worker.fetched(batch, messages, epoch=int(epoch), pages=pages)
        for message in messages:
            assert self.worker.take_delivery(*parse_own(message))
        self.worker.delivered()

    def request(self) -> tuple[str, Any]:
        """Request a batch. Return its name, and the reply."""
        work, batch, *arguments = self.worker.fetch_arguments("local", is_own=True)
        reply = default_backlog().scripts.fetch(keys=[queue_name("local"), work], args=["local", batch, *arguments])
        return batch, reply


class NoEvents:
    """Stands in for Celery's application, whose events nobody watches."""

    def connection_for_write(self) -> Any:
        raise OSError


@pytest.fixture
def stand(redis_url: str, settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stand]:
    settings.JOURNAL = str(tmp_path / "journal")
    monkeypatch.setattr(heart, "HEARTBEAT_SECONDS", 0.02)
    settings.DRAIN_SECONDS = 1
    threshold = gc.get_threshold()
    # Else the thread that calls first would load it, and not the same one each time.
    load_library(default_backlog().client)
    it = Stand()
    it.worker.start()
    yield it
    it.worker.drain()
    gc.unfreeze()
    gc.set_threshold(*threshold)


def publish(topic: str, *payloads: bytes) -> set[str]:
    return set(publish_message(topic=get_topic(name=topic), messages=[NewMessage(payload, {}) for payload in payloads]))


def scenario(stand: Stand, receiver: Receiver) -> None:
    """Deliver with acks, a nack, a large payload, a dead letter, a page of the backlog, and a wiped Redis."""
    letters = Message.objects.filter(topic__topic_id="letters").count()
    client = default_backlog().client
    client.flushall()
    mark_alive(default_backlog())
    activity._noted.clear()
    stand.worker.stages.engine.plans.forget_all()
    stand.worker.pager._projects.clear()
    known = Subscription.objects.get(subscription_id="push")
    settings = push_settings_of(known.pk)
    assert settings is not None
    configure_lane(Lane(known.pk, "local"), settings, action="new")
    published = publish(TOPIC, b"ack", b"nack", LARGE) | publish(DOOMED, b"dead")
    client.delete("ph:alive")
    wait_for(lambda: client.exists("ph:alive"), what="the rebuild")

    def is_settled() -> bool:
        stand.fetch()
        return not Delivery.objects.exists() and not stand.worker.stages.outstanding

    wait_for(is_settled, timeout_seconds=600, what="the end of every delivery")
    assert published <= {request.json["message"]["messageId"] for request in receiver.requests}
    assert Message.objects.filter(topic__topic_id="letters").count() == letters + 1
    lanes = default_backlog().lanes()
    assert [lane_state(default_backlog(), lane).outstanding for lane in lanes] == [0] * len(lanes)


@pytest.fixture
def receiver(api: Api) -> Iterator[Receiver]:
    """The endpoint of three subscriptions. It nacks `nack` once and `dead` always."""
    nacked: set[str] = set()

    def answer(request: Request) -> int:
        message = request.json["message"]
        data, name = message["data"], message["messageId"]
        if data == "ZGVhZA==" or (data == "bmFjaw==" and name not in nacked):
            nacked.add(name)
            return 503
        return 204

    for topic in ("orders", "doomed", "letters"):
        api.create(f"topics/{topic}")
    with Receiver(answer) as receiver:
        config = {"pushConfig": {"pushEndpoint": receiver.url}}
        api.create("subscriptions/push", {"topic": TOPIC, **config})
        api.create("subscriptions/paged", {"topic": TOPIC, **config})
        policy = {"deadLetterTopic": LETTERS, "maxDeliveryAttempts": 5}
        quick = {"minimumBackoff": "0.01s", "maximumBackoff": "0.01s"}
        api.create(
            "subscriptions/doomed", {"topic": DOOMED, "deadLetterPolicy": policy, "retryPolicy": quick, **config}
        )
        yield receiver


@pytest.mark.parametrize(
    ("thread", "least"),
    [("push-settler", 8), ("push-preparer", 3), ("push-pager", 8), ("push-heart", 1), ("push-engine", 0)],
)
def test_a_fault_in_any_call_of_a_thread_loses_nothing_and_stops_nothing(
    thread: str, least: int, receiver: Receiver, stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = Faults(monkeypatch)
    faults.thread = thread
    scenario(stand, receiver)
    places = sorted(place for place in faults.places if not place.startswith(CONNECTING))
    assert len(places) >= least, places
    for number, place in enumerate(places):
        for errors in ({}, outage_errors(number)):
            faults.armed, faults.errors = place, errors
            scenario(stand, receiver)
            assert not faults.armed, f"{place} was not reached"


def attempts_at(receiver: Receiver, subscription: str) -> int:
    name = f"projects/shop/subscriptions/{subscription}"
    return sum(request.json["subscription"] == name for request in receiver.requests)


def waits(subscription: str) -> bool:
    return Delivery.objects.filter(subscription__subscription_id=subscription).exists()


def fail(*args: Any, **kwargs: Any) -> Any:
    raise Injected


def test_results_that_can_never_be_stored_delay_only_their_own_lane(
    receiver: Receiver, stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a lane whose dead letters cannot be forwarded
    with monkeypatch.context() as broken:
        broken.setattr("deliveries.push.results.storing.forward_dead_letters", fail)
        publish(DOOMED, b"dead")
        publish(TOPIC, *[b"ack"] * 20)
        # Then the other lanes are served, and its message is sent again and again
        wait_for(lambda: stand.fetch() or (attempts_at(receiver, "doomed") > 5 and not waits("push")), what="both")
    # And once dead letters can be forwarded, its message becomes one
    wait_for(lambda: stand.fetch() or not Delivery.objects.exists(), what="the dead letter")
    assert Message.objects.filter(topic__topic_id="letters").count() == 1


def test_a_subscription_that_cannot_be_prepared_delays_no_other(
    receiver: Receiver, stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    book = stand.worker.stages.engine.plans
    make = book._make

    def make_or_fail(settings: Any, *, now: float) -> Any:
        return fail() if settings is not None and settings.name.endswith("/paged") else make(settings, now=now)

    # Given a subscription whose plan cannot be made, on the topic of another subscription
    with monkeypatch.context() as broken:
        broken.setattr(book, "_make", make_or_fail)
        publish(TOPIC, *[b"ack"] * 20)
        # Then the other subscription gets its messages
        wait_for(lambda: stand.fetch() or not waits("push"), what="the other's acks")
        assert attempts_at(receiver, "paged") == 0
    # And once the plan can be made, the first subscription gets them too
    wait_for(lambda: stand.fetch() or not Delivery.objects.exists(), what="every ack")


def test_a_plan_in_use_is_made_anew_before_it_ends(
    receiver: Receiver, stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    book, pk = stand.worker.stages.engine.plans, Subscription.objects.get(subscription_id="push").pk
    publish(TOPIC, b"ack")
    wait_for(lambda: stand.fetch() or not Delivery.objects.exists(), what="the first acks")
    first = book.get(pk, now=time.monotonic())
    publish(TOPIC, b"ack")
    wait_for(lambda: stand.fetch() or not Delivery.objects.exists(), what="the next acks")
    assert book.get(pk, now=time.monotonic()) is first is not None
    # When a message is pushed by a plan that ends soon
    monkeypatch.setattr(plans, "RENEWED_SECONDS", 3600.0)
    publish(TOPIC, b"ack")
    # Then it has another one
    wait_for(lambda: stand.fetch() or book.get(pk, now=time.monotonic()) not in (None, first), what="the next plan")


def test_a_batch_whose_reply_is_lost_is_fetched_again(
    receiver: Receiver, stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a batch that Redis has handed out, and a worker that never got the reply
    publish(TOPIC, *[b"ack"] * 5)

    def is_lost() -> bool:
        batch, (messages, _, epoch, pages) = stand.request()
        if not messages:
            stand.worker.fetched(batch, messages, epoch=int(epoch), pages=pages)
        return bool(messages)

    wait_for(is_lost, what="a batch to lose")
    # When the worker takes the reply for lost, every message arrives
    monkeypatch.setattr(worker, "LOST_SECONDS", 0.0)
    wait_for(lambda: stand.fetch() or not Delivery.objects.exists(), what="every ack")
    # And no record of a batch is left
    wait_for(lambda: not default_backlog().client.exists(work_key(stand.worker.name)), what="the end of the records")


def test_a_worker_pushes_no_ordered_message_that_came_with_a_lease_which_it_has_lost_meanwhile(
    api: Api, receiver: Receiver, stand: Stand
) -> None:
    api.create("topics/keyed")
    config = {"pushConfig": {"pushEndpoint": receiver.url}, "enableMessageOrdering": True}
    api.create("subscriptions/keyed", {"topic": "projects/shop/topics/keyed", **config})
    publish("projects/shop/topics/keyed", b"ack")
    reply: list[tuple[str, Any]] = []

    def has_arrived() -> bool:
        reply[:] = [stand.request()]
        if not reply[0][1][0]:
            stand.deliver(*reply[0])
        return bool(reply[0][1][0])

    # Given a worker that loses its lease while it fetches a message
    wait_for(has_arrived, what="the message")
    stand.worker.lose_lease()
    # When the reply arrives, then the message is not pushed
    stand.deliver(*reply[0])
    wait_for(lambda: not stand.worker.stages.outstanding, what="the end of the delivery")
    assert attempts_at(receiver, "keyed") == 0
    # But with the next lease it is
    wait_for(lambda: stand.fetch() or not waits("keyed"), what="the ack")
    assert attempts_at(receiver, "keyed") == 1


@pytest.fixture
def keyed(api: Api, receiver: Receiver, stand: Stand) -> list[str]:
    """Five messages of one key for a worker that consumes the queue and has pushed two of them."""
    api.create("topics/keyed")
    config = {"pushConfig": {"pushEndpoint": receiver.url}, "enableMessageOrdering": True}
    api.create("subscriptions/keyed", {"topic": "projects/shop/topics/keyed", **config})
    topic = get_topic(name="projects/shop/topics/keyed")
    published = publish_message(topic=topic, messages=[NewMessage(b"ack", {}, "k")] * 5)
    stand.worker.consumed = ("local",)
    # Whether messages wait for their keys is known when the first result is settled, so two messages are fetched
    wait_for(lambda: stand.fetch() or attempts_at(receiver, "keyed") > 1, what="the second message")
    return published


def test_the_next_messages_of_a_key_arrive_without_a_fetch(keyed: list[str], receiver: Receiver, stand: Stand) -> None:
    wait_for(lambda: not waits("keyed") and not stand.worker.stages.outstanding, what="every ack")
    assert [request.json["message"]["messageId"] for request in receiver.requests] == keyed
    wait_for(lambda: not default_backlog().client.exists(work_key(stand.worker.name)), what="the end of the records")


def test_the_next_message_of_a_key_whose_reply_is_lost_arrives_later(
    keyed: list[str], receiver: Receiver, stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost: list[Any] = []
    settle = Backlog.settle_and_take

    def lose_first_batch(*args: Any, takes: Any, **more: Any) -> Any:
        flows, taken = settle(*args, takes=takes, **more)
        if not lost and any(batch.messages for batch in taken):
            lost.extend(taken)
            raise redis.ConnectionError("the reply is lost")
        return flows, taken

    monkeypatch.setattr(Backlog, "settle_and_take", lose_first_batch)
    wait_for(lambda: lost or not waits("keyed"), what="a lost reply")
    monkeypatch.setattr(worker, "LOST_SECONDS", 0.0)
    wait_for(lambda: stand.fetch() or not waits("keyed"), what="every ack")
    assert [request.json["message"]["messageId"] for request in receiver.requests] == keyed


def test_a_worker_takes_messages_only_of_regions_that_it_serves(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stand.worker, "adopt", lambda regions: None)  # its heart finds no region to adopt
    counts = {("local", 0): 3, ("near", 0): 3, ("far", 0): 3}
    assert stand.worker.takes(counts) == []
    stand.worker.consumed = ("local",)
    stand.worker.adopted = ("near",)
    assert [take.region for take in stand.worker.takes(counts)] == ["local", "near"]


def test_a_batch_that_was_requested_long_ago_is_forgotten(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    stand.request()
    monkeypatch.setattr(worker, "LOST_SECONDS", 0.0)
    assert stand.worker.requests.lost() == {0: ["1"]}
    monkeypatch.setattr(worker, "FORGOTTEN_SECONDS", 0.0)
    stand.worker.requests.lost()
    assert stand.worker.requests.lost() == {}


@pytest.mark.parametrize(("epoch", "keeps"), [(2, True), (3, False)], ids=["within what Redis keeps", "beyond"])
def test_a_worker_that_missed_too_many_changes_makes_all_plans_again(
    stand: Stand, monkeypatch: pytest.MonkeyPatch, epoch: int, keeps: bool
) -> None:
    monkeypatch.setattr(worker, "CHANGES_KEPT", 4)
    book = stand.worker.stages.engine.plans
    book.load([7])

    stand.worker.fetched("batch", [], epoch=epoch, pages=[])

    assert (book.get(7, now=time.monotonic()) is not None) is keeps
