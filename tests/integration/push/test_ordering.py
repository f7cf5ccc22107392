"""Message ordering: per key in publish order, whatever is nacked, lapses, is wiped or killed."""

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
    """A lane with one ordered subscription: what the database has, and what may come next of each key.

    An endpoint gets a message when no earlier one of its key is owed. A puller gets it when the earlier ones are all
    held by the same puller, or acknowledged.
    """

    def __init__(self, backlog: Backlog, mode: Mode) -> None:
        self.backlog = backlog
        self.mode = mode
        self.rows: dict[int, str] = {}
        #: Messages that hold a token.
        self.pushed: set[int] = set()
        #: Leases that hold: message to how often it was leased, and to whom.
        self.leased: dict[int, tuple[int, str]] = {}
        #: Acknowledged by a puller, but kept until the earlier ones are.
        self.acknowledged: set[int] = set()
        #: Leases that have ended without an ack.
        self.ended: list[tuple[int, int]] = []
        self.published = 0
        self.batches = 0

    @property
    def out(self) -> list[int]:
        return sorted({*self.pushed, *self.leased})

    def configure(self, action: Any = "known", from_id: int = 0) -> None:
        self.backlog.configure(LANE, mode=self.mode, action=action, from_id=from_id, ordered=True)

    def publish(self, keys: list[str]) -> None:
        first = FIRST + self.published
        self.publish_unheard(keys)
        self.configure("more", first)

    def publish_unheard(self, keys: list[str]) -> None:
        """Publish without an offer, as if Redis were unavailable; the next publisher offers these messages too."""
        for key in keys:
            self.rows[FIRST + self.published] = key
            self.published += 1

    def page(self) -> None:
        """Do what a worker does with a lane that wants its next page."""
        while requests := PageRequest.parse_all(self._fetch_reply(count=0)[3]):
            for request in requests:
                self._offer_page(request)

    def _offer_page(self, request: PageRequest) -> None:
        page = [message_id for message_id in sorted(self.rows) if message_id >= request.from_id][:5]
        self.backlog.offer_page(
            request,
            [(message_id, task(message_id)) for message_id in page],
            next_id=page[-1] + 1 if page else request.from_id,
            complete=len(page) < 5,
            orderings=[digest(self.rows[message_id]) for message_id in page],
        )

    def take(self, choice: int = 0) -> None:
        """Take every message that may go out, by a worker's fetch or a puller's lease."""
        self.page()
        fetched = self._fetch()
        if self.mode == Mode.PULL:
            self._release(fetched)
            self._lease(PULLERS[choice % len(PULLERS)])
            return
        for message_id in fetched:
            assert not self._earlier(message_id), f"{message_id} went out too early"
            self.pushed.add(message_id)

    def _fetch(self) -> list[int]:
        reply = self._fetch_reply(count=100)
        for request in PageRequest.parse_all(reply[3]):
            self._offer_page(request)
        return [id_of(message) for message in reply[0]]

    def _fetch_reply(self, *, count: int) -> list[Any]:
        self.batches += 1
        reply: list[Any] = self.backlog.scripts.fetch(
            keys=[queue_name("here"), work_key("w")], args=["here", self.batches, count, self.backlog.limit]
        )
        return reply

    def _release(self, message_ids: list[int]) -> None:
        """Release deliveries, as a worker does that finds no endpoint any more."""
        for message_id in message_ids:
            settlement = Settlement()
            settlement.add(str(message_id), Verdict.RELEASE, 1.0)
            settlement.returned += [0, task(message_id)]
            self.backlog.settle({LANE: settlement}, dice=0.0, finished={})

    def _lease(self, puller: str, count: int = 7) -> None:
        leases = self.backlog.lease(LANE, count=count, duration_ms=10**9, countdown_ms=(0, 0), puller=puller)
        assert leases is not None
        if leases.page is not None:
            self._offer_page(leases.page)
        for delivery in leases.deliveries:
            message_id = delivery.message_id
            assert message_id not in self.out
            assert message_id not in self.acknowledged
            for earlier in self._earlier(message_id):
                holder = self.leased[earlier][1] if earlier in self.leased else puller
                assert holder == puller, f"{message_id} went to {puller} while {holder} holds {earlier}"
                assert earlier in self.leased or earlier in self.acknowledged, f"{message_id} went out before {earlier}"
            self.leased[message_id] = delivery.times, puller

    def _earlier(self, message_id: int) -> list[int]:
        return [other for other in self._of_key(message_id) if other < message_id]

    def _of_key(self, message_id: int) -> list[int]:
        key = self.rows[message_id]
        return sorted(other for other in self.rows if self.rows[other] == key) if key else [message_id]

    def ack(self, message_id: int) -> None:
        if message_id in self.leased:
            times, _ = self.leased.pop(message_id)
            self.acknowledged.add(message_id)
            late = self._acknowledge(message_id, times)
            assert not late
            return
        self.pushed.remove(message_id)
        del self.rows[message_id]
        self._settle(Verdict.ACK, message_id)

    def ack_late(self, choice: int) -> None:
        """Let a puller acknowledge a message whose lease has ended."""
        if not self.ended:
            return
        message_id, times = self.ended[choice % len(self.ended)]
        if message_id not in self.rows or message_id in self.acknowledged:
            return
        waits = any(other not in self.acknowledged for other in self._earlier(message_id))
        late = self._acknowledge(message_id, times)
        if not late and waits:
            # Redis has forgotten the lease since a wipe or a move.
            assert message_id not in self.leased

    def _acknowledge(self, message_id: int, times: int) -> bool:
        owed_no_more, late = self.backlog.acknowledge(LANE, [(message_id, times)])
        for other in owed_no_more:
            self.rows.pop(other)
            self.acknowledged.discard(other)
            self.leased.pop(other, None)
            self.pushed.discard(other)
        self.backlog.release(LANE, sorted(owed_no_more))
        return bool(late)

    def nack(self, message_id: int) -> None:
        if message_id in self.leased:
            times, _ = self.leased[message_id]
            self.backlog.extend(LANE, [(message_id, times)], duration_ms=0, countdown_ms=(0, 0))
            self._end_leases(message_id)
        else:
            self.pushed.remove(message_id)
            self._settle(Verdict.NACK, message_id)

    def lapse(self, message_id: int) -> None:
        if message_id in self.leased:
            self.backlog.client.zadd(f"ph:{LANE.key}:l", {str(message_id): 1})
            self._end_leases(message_id)
            if self.mode == Mode.PULL:
                self._lease("", count=0)
            else:
                self.configure()

    def give_back(self, message_id: int) -> None:
        """End a stream whose client has not read the message."""
        if message_id in self.leased:
            times, _ = self.leased[message_id]
            ends = self.backlog.client.zscore(f"ph:{LANE.key}:l", str(message_id))
            assert isinstance(ends, float)
            self.backlog.unlease(LANE, [(message_id, times, int(ends))])
            self._end_leases(message_id)

    def _end_leases(self, message_id: int) -> None:
        """End the lease of a message, and the leases of the later messages of its key."""
        for other in self._of_key(message_id):
            if other >= message_id:
                self._end_lease(other)

    def _end_lease(self, message_id: int) -> None:
        self.acknowledged.discard(message_id)
        if message_id in self.leased:
            times, _ = self.leased.pop(message_id)
            self.ended.append((message_id, times))

    def _settle(self, verdict: Verdict, message_id: int) -> None:
        settlement = Settlement()
        settlement.add(str(message_id), verdict, 1.0)
        if verdict is Verdict.NACK:
            settlement.returned += [0, task(message_id)]
        self.backlog.settle({LANE: settlement}, dice=0.0, finished={})

    def lose(self, message_id: int) -> None:
        """Lose a message with a worker of another kind; the audit takes its token back."""
        if message_id in self.pushed:
            self.backlog.repair(LANE, [message_id])
            self.pushed.remove(message_id)

    def wipe(self, _: int = 0) -> None:
        self.backlog.client.flushall()
        self.pushed.clear()
        for message_id in [*self.leased, *self.acknowledged]:
            self._end_lease(message_id)
        self.configure()

    def move(self, _: int = 0) -> None:
        self.mode = Mode.PULL if self.mode == Mode.PUSH else Mode.PUSH
        self.configure()
        if self.mode == Mode.PUSH:
            firsts = {self._of_key(message_id)[0] for message_id in self.leased}
            for message_id in [*self.leased, *self.acknowledged]:
                if message_id not in firsts:
                    self._end_lease(message_id)


def task(message_id: int) -> str:
    template = TaskTemplate(subscription_id=LANE.subscription_id, region=LANE.region, attempt=1)
    return template.render(str(message_id), escaped({"messageId": str(message_id), "publishTime": "t"}))


def id_of(message: bytes) -> int:
    return body_parse(orjson.loads(message)["body"]).message_id


PULLERS = ("one", "two")
#: What happens to one of the messages that are out.
OF_ONE = ["ack", "ack", "ack", "nack", "nack", "lapse", "give_back", "lose"]
KEYS = st.lists(st.sampled_from(["a", "b", "c", ""]), min_size=1, max_size=6)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["publish", "publish", "publish_unheard"]), KEYS),
        st.tuples(st.sampled_from(["take"] * 4 + OF_ONE + ["ack_late", "wipe", "move"]), st.integers(0, 50)),
    ),
    max_size=40,
)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
@pytest.mark.parametrize("mode", [Mode.PUSH, Mode.PULL])
@pytest.mark.django_db
def test_no_message_goes_out_while_an_earlier_one_of_its_key_waits(
    redis_url: str, mode: Mode, steps: list[tuple[str, Any]]
) -> None:
    client = client_of(redis_url)
    client.flushall()
    model = Model(Backlog(client, limit=6), mode)
    model.configure("new")
    for step, value in steps:
        if step in ("publish", "publish_unheard"):
            getattr(model, step)(value)
        elif step in OF_ONE:
            if model.out:
                getattr(model, step)(model.out[value % len(model.out)])
        else:
            getattr(model, step)(value)
    model.configure("more", FIRST)  # the audit offers it if nobody has published since
    # In the end everything arrives: nothing is stuck behind a key that nobody holds.
    lane_change(model.backlog, LANE, resume_ms=0, backoff_level=0, credit=1000)
    for turn in range(500):
        if not model.rows:
            break
        model.take(turn)
        for message_id in model.out:
            model.ack(message_id)
    assert not model.rows
    assert set(client.keys(f"ph:{LANE.key}:*")) == {f"ph:{LANE.key}:s".encode()}
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
    api.create("subscriptions/push", {"topic": TOPIC, "enableMessageOrdering": True} | push)
    with Worker(redis_url) as worker:
        for number in range(10):
            for key in "abc":
                publish(key, number)
        wait_for(lambda: len(receiver.requests) >= 8, what="some pushes")
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
    wait_for(lambda: not Delivery.objects.exists(), what="the last ack")
