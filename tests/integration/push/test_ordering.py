"""Message ordering: per key in publish order and one at a time, through nacks, lapses, wipes and kills."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deliveries.backlog.backlog import Backlog, Lane, PageRequest, Settlement, work_key
from deliveries.backlog.codes import Mode
from deliveries.backlog.connection import client_of
from deliveries.backlog.paging import digest
from deliveries.models import Delivery
from deliveries.publish.service import message_publish
from deliveries.rules.ids import EPOCH_MS, first_id_at
from deliveries.rules.outcome import Verdict
from deliveries.rules.payload import NewMessage
from deliveries.rules.taskmessage import TaskTemplate, body_parse, escaped, queue_name
from subscriptions.selectors import topic_get
from tests.lanes import lane_change, lane_state
from tests.ports import wait_for
from tests.receiver import Receiver, Request
from tests.restapi import Api
from tests.workers import Worker

LANE = Lane(7, "here")
FIRST = first_id_at(EPOCH_MS + 1_000_000)
TOPIC = "projects/shop/topics/orders"


class Model:
    """A lane of an ordered subscription: what the database has, and what may come next for each key."""

    def __init__(self, backlog: Backlog) -> None:
        self.backlog = backlog
        self.rows: dict[int, str] = {}
        self.out: dict[int, int] = {}
        self.published = 0
        self.mode = Mode.PUSH
        self.batches = 0

    def configure(self, action: Any = "known", from_id: int = 0) -> None:
        self.backlog.configure(LANE, mode=self.mode, action=action, from_id=from_id, ordered=True)

    def publish(self, keys: list[str]) -> None:
        first = FIRST + self.published
        for key in keys:
            self.rows[FIRST + self.published] = key
            self.published += 1
        self.configure("more", first)

    def publish_unheard(self, keys: list[str]) -> None:
        """Publish without an offer, as if Redis were unavailable: the next publisher offers these as well."""
        for key in keys:
            self.rows[FIRST + self.published] = key
            self.published += 1

    def page(self) -> None:
        """Do what a worker does with a lane that wants its next page."""
        while self.backlog.client.spop("ph:page"):
            state = lane_state(self.backlog, LANE)
            self._offer_page(PageRequest(LANE, state.cursor, state.spill_count))

    def _offer_page(self, request: PageRequest) -> None:
        found = [message_id for message_id in sorted(self.rows) if message_id >= request.from_id][:5]
        self.backlog.offer_page(
            request,
            [(message_id, task(message_id)) for message_id in found],
            next_id=found[-1] + 1 if found else request.from_id,
            complete=len(found) < 5,
            orderings=[digest(self.rows[message_id]) for message_id in found],
        )

    def take(self) -> None:
        """Take everything that may go out, by a worker's fetch or a puller's lease."""
        self.page()
        fetched = self._fetch()
        if self.mode == Mode.PUSH:
            taken = [(message_id, 0) for message_id in fetched]
        else:
            self._release(fetched)
            leases = self.backlog.lease(LANE, count=100, duration_ms=10**9, countdown_ms=(0, 0))
            assert leases is not None
            if leases.page is not None:
                self._offer_page(leases.page)
            taken = [(message_id, times) for message_id, _, times in leases.deliveries]
        for message_id, times in taken:
            self.check(message_id)
            self.out[message_id] = times

    def _fetch(self) -> list[int]:
        self.batches += 1
        reply = self.backlog.scripts.fetch(
            keys=[queue_name("here"), work_key("w")], args=["here", self.batches, 100, self.backlog.limit]
        )
        return [id_of(message) for message in reply[0]]

    def _release(self, message_ids: list[int]) -> None:
        """Release deliveries, as a worker does that finds no endpoint any more."""
        for message_id in message_ids:
            settlement = Settlement()
            settlement.add(str(message_id), Verdict.RELEASE, 1.0)
            settlement.returned += [0, task(message_id)]
            self.backlog.settle({LANE: settlement}, dice=0.0, finished={})

    def check(self, message_id: int) -> None:
        key = self.rows[message_id]
        if key:
            earlier = [other for other in self.rows if self.rows[other] == key and other < message_id]
            assert not earlier, f"{message_id} went out before {earlier}"

    def ack(self, message_id: int) -> None:
        del self.rows[message_id]
        self._settle(Verdict.ACK, message_id)

    def nack(self, message_id: int) -> None:
        self._settle(Verdict.NACK, message_id)

    def _settle(self, verdict: Verdict, message_id: int) -> None:
        times = self.out.pop(message_id)
        if times and verdict is Verdict.ACK:
            self.backlog.release(LANE, [message_id])
        elif times:
            self.backlog.extend(LANE, [(message_id, times)], duration_ms=0, countdown_ms=(0, 0))
        else:
            settlement = Settlement()
            settlement.add(str(message_id), verdict, 1.0)
            if verdict is Verdict.NACK:
                settlement.returned += [0, task(message_id)]
            self.backlog.settle({LANE: settlement}, dice=0.0, finished={})

    def lose(self, message_id: int) -> None:
        """Lose a message with a worker of another kind; the audit takes its token back."""
        if not self.out[message_id]:
            self.backlog.repair(LANE, [message_id])
            del self.out[message_id]

    def wipe(self) -> None:
        """Wipe Redis. What was outstanding is lost with it; late acks of pullers are not tried."""
        self.backlog.client.flushall()
        self.out.clear()
        self.configure()

    def move(self) -> None:
        self.mode = Mode.PULL if self.mode == Mode.PUSH else Mode.PUSH
        self.configure()


def task(message_id: int) -> str:
    template = TaskTemplate(subscription_id=LANE.subscription_id, region=LANE.region, attempt=1)
    return template.render(str(message_id), escaped({"messageId": str(message_id), "publishTime": "t"}))


def id_of(message: bytes) -> int:
    return body_parse(orjson.loads(message)["body"]).message_id


KEYS = st.lists(st.sampled_from(["a", "b", "c", ""]), min_size=1, max_size=6)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["publish", "publish", "publish_unheard"]), KEYS),
        st.tuples(st.sampled_from(["take", "take", "ack", "ack", "nack", "lose", "wipe", "move"]), st.integers(0, 50)),
    ),
    max_size=40,
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
@pytest.mark.django_db
def test_no_message_goes_out_before_an_earlier_one_of_its_key_is_acknowledged(
    redis_url: str, steps: list[tuple[str, Any]]
) -> None:
    client = client_of(redis_url)
    client.flushall()
    model = Model(Backlog(client, limit=6))
    model.configure("new")
    for step, value in steps:
        if step in ("publish", "publish_unheard"):
            getattr(model, step)(value)
        elif step in ("ack", "nack", "lose"):
            if model.out:
                getattr(model, step)(sorted(model.out)[value % len(model.out)])
        else:
            getattr(model, step)()
    model.configure("more", FIRST)  # as the audit does if nobody has published since
    # In the end everything arrives: nothing is stuck behind a key that nobody holds.
    lane_change(model.backlog, LANE, resume_ms=0, backoff_level=0, credit=1000)
    for _ in range(500):
        if not model.rows:
            break
        model.take()
        for message_id in list(model.out):
            model.ack(message_id)
    assert not model.rows
    assert [name for name in "dbzlamok" if client.exists(f"ph:{LANE.key}:{name}")] == []
    assert lane_state(model.backlog, LANE).parked == 0


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("disturbance", ["none", "kill", "wipe"])
def test_pushes_of_a_key_arrive_in_publish_order_through_nacks_and(
    disturbance: str, receiver: Receiver, redis_url: str
) -> None:
    """A message may be repeated, and then its key's later messages follow it again: none comes before its turn."""
    acked: dict[str, list[int]] = defaultdict(list)
    seen: dict[str, int] = defaultdict(int)

    def script(request: Request) -> int:
        message = request.json["message"]
        key, number = message["orderingKey"], int(message["attributes"]["n"])
        seen[f"{key}{number}"] += 1
        if number % 3 == 0 and seen[f"{key}{number}"] == 1:
            return 500
        acked[key].append(number)
        return 204

    receiver.default = script
    api = Api()
    api.put("topics/orders", {})
    push = {"pushConfig": {"pushEndpoint": receiver.url}}
    api.made("subscriptions/push", {"topic": TOPIC, "enableMessageOrdering": True} | push)
    with Worker(redis_url) as worker:
        for number in range(10):
            for key in "abc":
                publish(key, number)
        wait_for(lambda: len(receiver.requests) >= 8, timeout_seconds=60, what="some pushes")
        if disturbance == "wipe":
            client_of(redis_url).flushall()
        if disturbance == "kill":
            worker.kill()
            with Worker(redis_url, name="second"):
                all_acked()
        else:
            all_acked()
    for key in "abc":
        firsts = list(dict.fromkeys(acked[key]))
        assert firsts == list(range(10)), acked


def publish(key: str, number: int) -> None:
    message_publish(topic=topic_get(name=TOPIC), messages=[NewMessage(b"x", {"n": str(number)}, key)])


def all_acked() -> None:
    wait_for(lambda: not Delivery.objects.exists(), timeout_seconds=120, what="the last ack")
