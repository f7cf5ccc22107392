"""Message ordering: per key in publish order, whatever is nacked, lapses, is wiped or killed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deliveries.backlog.backlog import Backlog
from deliveries.backlog.codes import STATE_CODES, Mode
from deliveries.backlog.connection import client_of
from deliveries.backlog.records import (
    Late,
    Offer,
    OfferedLane,
    OfferedMessage,
    Page,
    PageRequest,
    Settlement,
    key_digest,
    work_key,
)
from deliveries.models import Delivery
from deliveries.publish.service import publish_message
from deliveries.rules.outcome import Verdict
from deliveries.rules.payload import NewMessage
from deliveries.rules.taskmessage import generation_of, parse_body, parse_own, queue_name
from subscriptions.selectors import get_topic
from tests.integration.backlog.test_backlog import FIRST, LANE, task, text
from tests.lanes import are_known, configure, lane_change, lane_state, page_requests
from tests.ports import wait_for
from tests.receiver import Receiver, Request
from tests.restapi import Api
from tests.workers import Worker

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
        #: The key of each message, and the last message of each key that was pushed since the subscription pushes.
        self.keys: list[str] = []
        self.pushed_to: dict[str, int] = {}
        #: The lane's generation when its messages were fetched or leased last.
        self.generation = ""
        #: Messages that hold a token.
        self.pushed: set[int] = set()
        #: Messages that workers push for earlier generations of the lane, with the generation of each.
        self.pushed_before: list[tuple[int, str]] = []
        self.late: list[Late] = []
        #: Requests for pages that workers have not read yet, and pages that they have read and not offered yet.
        self.requests: list[PageRequest] = []
        self.pages: list[Page] = []
        #: Leases that hold: message to how often it was leased, and to whom.
        self.leased: dict[int, tuple[int, str]] = {}
        #: Acknowledged by a puller, but kept until the earlier ones are.
        self.acknowledged: set[int] = set()
        #: Leases that have ended without an ack: message, how often it was leased, and in which generation.
        self.ended: list[tuple[int, int, str]] = []
        self.published = 0
        #: The message before each in its key, 0 for none.
        self.befores: dict[int, int] = {}
        #: Messages that have their ids and are not committed yet, with their keys. Others overtake them.
        self.uncommitted: dict[int, str] = {}
        self.batches = 0
        #: What other lanes take of Redis.
        self.others_bytes = 0
        self._known_generation = ""

    @property
    def out(self) -> list[int]:
        return sorted({*self.pushed, *self.leased})

    def configure(self, action: Any = "known", from_id: int = 0) -> None:
        self._known_generation = ""
        configure(self.backlog, LANE, mode=self.mode, action=action, from_id=from_id, ordered=True)

    def publish(self, keys: list[str]) -> None:
        first = FIRST + self.published
        self.publish_unheard(keys)
        self._offer(range(first, FIRST + self.published))

    def _offer(self, message_ids: Iterable[int]) -> None:
        messages = [OfferedMessage(i, text(i), key_digest(self.keys[i - FIRST]), self.befores[i]) for i in message_ids]
        self.backlog.offer([Offer(LANE.region, [OfferedLane(LANE, self.mode, ordered=True)], messages)])

    def publish_unheard(self, keys: list[str]) -> None:
        """Publish without an offer, as if Redis were unavailable; the next publisher offers these messages too."""
        for key in keys:
            # Who publishes to a key waits for the answer to the message before.
            own = "" if key in self.uncommitted.values() else key
            self.rows[self._next_id(own)] = own

    def begin_publish(self, choice: int) -> None:
        """Publish a message whose commit takes long."""
        key = "abc"[choice % 3]
        if key not in self.uncommitted.values():
            self.uncommitted[self._next_id(key)] = key

    def commit(self, _: int = 0) -> None:
        """Commit what has begun, and offer it."""
        for message_id in list(self.uncommitted):
            self.rows[message_id] = self.uncommitted.pop(message_id)
            self._offer([message_id])

    def _next_id(self, key: str) -> int:
        """Return an id, and note the last message of the key that the database has: of the settled it has half."""
        message_id = FIRST + self.published
        earlier = [other for other in range(FIRST, message_id) if key and self.keys[other - FIRST] == key]
        stored = [other for other in earlier if other in self.rows or other % 2]
        self.befores[message_id] = max(stored, default=0)
        self.keys.append(key)
        self.published += 1
        return message_id

    def page(self) -> None:
        """Do what a worker does with a lane that wants its next page."""
        while requests := page_requests(self.backlog, region=LANE.region):
            self.backlog.offer_pages(map(self.page_for, requests))

    def claim_pages(self, _: int = 0) -> None:
        """Take the lane's requests for pages, which are read later."""
        self.requests += page_requests(self.backlog, region=LANE.region)

    def read_pages(self, _: int = 0) -> None:
        """Read the pages that the lane wants. They arrive later, or too late."""
        self.claim_pages()
        self.pages += map(self.page_for, self.requests)
        self.requests.clear()

    def offer_pages(self, _: int = 0) -> None:
        self.backlog.offer_pages(self.pages)
        self.pages.clear()

    def page_for(self, request: PageRequest) -> Page:
        """Do as `page_in` does up to the offer."""
        if request.is_of_keys:
            return self._read_keys(request)
        rows = [message_id for message_id in sorted(self.rows) if message_id >= request.from_id][: request.rows]
        is_known = dict(zip(rows, are_known(self.backlog, LANE, rows), strict=True))
        fresh = [message_id for message_id in rows if message_id > request.read_to or not is_known[message_id]]
        fresh = [it for it in fresh if it < request.keys.get(key_digest(self.rows[it]), it + 1)]
        next_id = rows[-1] + 1 if rows else request.from_id
        return self.page_of(request, fresh, next_id, is_last=len(rows) < request.rows)

    def _read_keys(self, request: PageRequest) -> Page:
        found: list[int] = []
        next_ids: dict[str, int | str] = {}
        for key, first in request.keys.items():
            rows = [it for it in sorted(self.rows) if it >= first and key_digest(self.rows[it]) == key]
            found += rows[: request.rows]
            next_ids[key] = rows[request.rows] if len(rows) > request.rows else ""
        return self.page_of(request, found, next_ids)

    def page_of(
        self, request: PageRequest, rows: list[int], next_id: int | dict[str, int | str], *, is_last: bool = False
    ) -> Page:
        messages = [(message_id, task(message_id, generation=request.generation)) for message_id in rows]
        return Page(request, messages, next_id, is_last, [key_digest(self.rows[message_id]) for message_id in rows])

    def miss_pages(self, _: int = 0) -> None:
        """Let so much time pass that the pages which are on their way are requested again."""
        if float(self.backlog.client.hget(LANE.state_key, STATE_CODES["paging_until_ms"]) or 0):
            lane_change(self.backlog, LANE, paging_until_ms=1)
            self.configure()

    def take(self, choice: int = 0) -> None:
        """Take every message that may go out, by a worker's fetch or a puller's lease."""
        self.page()
        fetched = self._fetch()
        self.generation = self._generation_now()
        if self.mode == Mode.PULL:
            self._release(fetched)
            self._lease(PULLERS[choice % len(PULLERS)])
            return
        for message_id in fetched:
            assert not self._earlier(message_id), f"{message_id} went out too early"
            assert message_id not in self.pushed, f"{message_id} went out while a worker had it"
            self.pushed.add(message_id)

    def _note_push(self, message_id: int) -> None:
        """Check that no message of a key is pushed again once a later one was."""
        key = self.keys[message_id - FIRST]
        if key and self.mode == Mode.PUSH:
            assert message_id >= self.pushed_to.get(key, 0), f"{message_id} went out again after later ones"
            self.pushed_to[key] = message_id

    def _fetch(self) -> list[int]:
        self.batches += 1
        reply: list[Any] = self.backlog.scripts.fetch(
            keys=[queue_name("here"), work_key("w")], args=["here", self.batches, 100, self.backlog.limit]
        )
        self.backlog.offer_pages(map(self.page_for, PageRequest.parse_all(reply[3])))
        return [message_id for message in reply[0] if (message_id := self._fetched(message)) is not None]

    def _fetched(self, message: bytes) -> int | None:
        """Return the id of a message that a worker may push for the lane as it is now."""
        task_id, body = parse_own(message) or ("", "")
        message_id, generation = parse_body(body).message_id, generation_of(task_id)
        if generation != self._generation_now():
            # It waited in the queue while the lane was forgotten.
            self.pushed_before.append((message_id, generation))
            return None
        self._note_push(message_id)
        if message_id in self.rows:
            return message_id
        # It was acked after its page was read.
        self._settle(Verdict.DROP, message_id)
        return None

    def _release(self, message_ids: list[int]) -> None:
        """Release deliveries, as a worker does that finds no endpoint any more."""
        for message_id in message_ids:
            settlement = Settlement()
            settlement.add(str(message_id), Verdict.RELEASE, 1.0, generation=self.generation)
            settlement.returned += [0, task(message_id, generation=self.generation)]
            self.backlog.settle({LANE: settlement}, dice=0.0, finished={})

    def _lease(self, puller: str, count: int = 7) -> None:
        leases = self.backlog.lease(LANE, count=count, duration_ms=10**9, countdown_ms=(0, 0), puller=puller)
        assert leases is not None
        self.generation = leases.generation
        if leases.page is not None:
            self.backlog.offer_pages([self.page_for(leases.page)])
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
        key = self.keys[message_id - FIRST]
        return sorted(other for other in self.rows if self.rows[other] == key) if key else [message_id]

    def ack(self, message_id: int) -> None:
        if message_id in self.leased:
            times, _ = self.leased.pop(message_id)
            self.acknowledged.add(message_id)
            late = self._acknowledge(message_id, times, self.generation)
            assert not late
            return
        self.pushed.remove(message_id)
        self.rows.pop(message_id, None)
        self._settle(Verdict.ACK, message_id)

    def ack_late(self, choice: int) -> None:
        """Let a puller acknowledge a message whose lease has ended."""
        if not self.ended:
            return
        message_id, times, generation = self.ended[choice % len(self.ended)]
        if message_id not in self.rows or message_id in self.acknowledged:
            return
        waits = any(other not in self.acknowledged for other in self._earlier(message_id))
        late = self._acknowledge(message_id, times, generation)
        assert late or generation == self._generation_now(), "the ack of another generation counted"
        if not late and waits:
            # Redis has forgotten the lease since a move.
            assert message_id not in self.leased

    def _generation_now(self) -> str:
        """Return the lane's generation, which a new lane gets and keeps."""
        if not self._known_generation:
            generation: bytes = self.backlog.client.hget(LANE.state_key, STATE_CODES["generation"])
            self._known_generation = generation.decode()
        return self._known_generation

    def ack_before(self, choice: int) -> None:
        """Let a worker ack a message that it pushes for an earlier generation: the database counts the ack."""
        if self.pushed_before:
            message_id, generation = self.pushed_before.pop(choice % len(self.pushed_before))
            self.rows.pop(message_id, None)
            if late := self._settle(Verdict.ACK, message_id, generation=generation):
                self.late.append(late)

    def forget_late(self, _: int = 0) -> None:
        """Forget what was acked for earlier generations and waits (late.py)."""
        for generation, message_ids in self.late:
            ended = [message_id for message_id in message_ids if message_id not in self.rows]
            self.backlog.remove(LANE, ended, generation=generation, only_waiting=True)
        self.late.clear()

    def nack_before(self, choice: int) -> None:
        """Let a worker nack a message that it pushes for an earlier generation."""
        if self.pushed_before:
            message_id, generation = self.pushed_before.pop(choice % len(self.pushed_before))
            self._settle(Verdict.NACK, message_id, generation=generation)

    def _acknowledge(self, message_id: int, times: int, generation: str) -> bool:
        owed_no_more, late = self.backlog.acknowledge(LANE, [(message_id, times)], generation=generation)
        for other in owed_no_more:
            self.rows.pop(other, None)
            self.acknowledged.discard(other)
            self.leased.pop(other, None)
            self.pushed.discard(other)
        self.backlog.remove(LANE, sorted(owed_no_more), generation=generation)
        return bool(late)

    def nack(self, message_id: int) -> None:
        if message_id in self.leased:
            times, _ = self.leased[message_id]
            leases = [(message_id, times)]
            self.backlog.extend(LANE, leases, generation=self.generation, duration_ms=0, countdown_ms=(0, 0))
            self._end_leases(message_id)
        else:
            self.pushed.remove(message_id)
            self._settle(Verdict.NACK, message_id)

    def lapse(self, message_id: int) -> None:
        if message_id in self.leased:
            self.backlog.client.zadd(f"{LANE.root}:l", {str(message_id): 1})
            self._end_leases(message_id)
            if self.mode == Mode.PULL:
                self._lease("", count=0)
            else:
                self.configure()

    def give_back(self, message_id: int) -> None:
        """End a stream whose client has not read the message."""
        if message_id in self.leased:
            times, _ = self.leased[message_id]
            ends = self.backlog.client.zscore(f"{LANE.root}:l", str(message_id))
            assert isinstance(ends, float)
            self.backlog.unlease(LANE, [(message_id, times, int(ends))], generation=self.generation)
            self._end_leases(message_id)

    def _end_leases(self, message_id: int) -> None:
        """End the lease of a message, and the leases of the later messages of its key."""
        self._end_lease(message_id)  # even if the database owes it no more
        for other in self._of_key(message_id):
            if other >= message_id:
                self._end_lease(other)

    def _end_lease(self, message_id: int) -> None:
        self.acknowledged.discard(message_id)
        if message_id in self.leased:
            times, _ = self.leased.pop(message_id)
            self.ended.append((message_id, times, self.generation))

    def _settle(self, verdict: Verdict, message_id: int, *, generation: str | None = None) -> Late | None:
        generation = self._generation_now() if generation is None else generation
        settlement = Settlement()
        settlement.add(str(message_id), verdict, 1.0, generation=generation)
        if verdict is Verdict.NACK:
            settlement.returned += [0, task(message_id, generation=generation)]
        return self.backlog.settle({LANE: settlement}, dice=0.0, finished={})[LANE].late

    def lose(self, message_id: int) -> None:
        """Lose a message with a worker of another kind; the audit takes its token back."""
        if message_id in self.pushed:
            self.backlog.repair(LANE, [message_id], generation=self.generation)
            self.pushed.remove(message_id)

    def go_down(self, choice: int) -> None:
        """Let the endpoint nack once more, so that it counts as down."""
        if self.pushed:
            lane_change(self.backlog, LANE, backoff_level=DOWN_LEVEL - 0.5, backoff_since_ms=0, resume_ms=0)
            self.nack(sorted(self.pushed)[choice % len(self.pushed)])

    def starve(self, _: int = 0) -> None:
        """Let a lane that has nothing to send but what is parked have waited for so long that it reads on."""
        self.configure()
        if float(self.backlog.client.hget(LANE.state_key, STATE_CODES["starved_ms"]) or 0):
            lane_change(self.backlog, LANE, starved_ms=1)
            self.configure()

    def end_pause(self, _: int = 0) -> None:
        lane_change(self.backlog, LANE, resume_ms=0)
        self.configure()

    def check_count(self) -> None:
        """Check that Redis counts the messages of the lane, that the bytes of all lanes are the sum of theirs, and that
        the lane has kept its generation.
        """
        with self.backlog.client.pipeline(transaction=False) as pipe:
            pipe.hmget(LANE.state_key, [STATE_CODES[name] for name in ("held", "held_bytes", "generation")])
            pipe.hlen(LANE.places_key).get("ph:bytes")
            (held, own_bytes, generation), places, all_bytes = pipe.execute()
        assert int(held or 0) == places
        assert int(all_bytes or 0) == int(own_bytes or 0) + self.others_bytes
        assert (int(held or 0) > 0) == (int(own_bytes or 0) > 0)
        assert self._known_generation in ("", generation.decode())

    def fill_redis(self, _: int = 0) -> None:
        """Let other lanes take the whole budget, or give it back."""
        more = 10**12 if self.others_bytes == 0 else -self.others_bytes
        self.backlog.client.incrby("ph:bytes", more)
        self.others_bytes += more

    def wipe(self, _: int = 0) -> None:
        self._make_anew(self.backlog.client.flushall)
        self.backlog.client.incrby("ph:bytes", self.others_bytes)

    def forget(self, _: int = 0) -> None:
        """Do what a seek does with the lane. Its messages stay in the queue."""
        self._make_anew(lambda: self.backlog.forget(LANE))

    def _make_anew(self, remove: Callable[[], object]) -> None:
        remove()
        self.pushed_before += [(message_id, self.generation) for message_id in sorted(self.pushed)]
        self.pushed.clear()
        for message_id in [*self.leased, *self.acknowledged]:
            self._end_lease(message_id)
        self.configure()

    def move(self, _: int = 0) -> None:
        self.mode = Mode.PULL if self.mode == Mode.PUSH else Mode.PUSH
        self.pushed_to.clear()
        self.configure()
        if self.mode == Mode.PUSH:
            kept: set[str] = set()
            for message_id in sorted([*self.leased, *self.acknowledged]):
                key = self.keys[message_id - FIRST]
                if key and key in kept:
                    self._end_lease(message_id)
                kept.add(key)


PULLERS = ("one", "two")
#: What happens to one of the messages that are out.
OF_ONE = ["ack", "ack", "ack", "nack", "nack", "lapse", "give_back", "lose"]
#: A lane is made anew, and what was made for the lane before it arrives afterwards.
ANEW = ["wipe", "forget", "read_pages", "miss_pages", "offer_pages", "ack_before", "nack_before", "forget_late"]
#: Ids are given before the commit, so that a page may have read beyond a message.
SLOW = ["begin_publish", "commit", "claim_pages"]
#: A level of the push backoff at which an endpoint counts as down (common.lua).
DOWN_LEVEL = 6
KEYS = st.lists(st.sampled_from(["a", "b", "c", ""]), min_size=1, max_size=6)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["publish", "publish", "publish_unheard"]), KEYS),
        st.tuples(
            st.sampled_from(
                ["take"] * 4
                + OF_ONE
                + ["ack_late", "move", "go_down", "end_pause", "fill_redis", "starve", "starve"]
                + ANEW
                + SLOW
            ),
            st.integers(0, 50),
        ),
    ),
    min_size=10,
    max_size=40,
)


@pytest.mark.any_database
@pytest.mark.django_db
def test_a_page_that_began_behind_a_message_brings_no_later_one_of_its_key(redis_url: str) -> None:
    """Given a message whose commit took so long that a page begins behind it, then the page does not count."""
    client = client_of(redis_url)
    client.flushall()
    model = Model(Backlog(client, limit=80), Mode.PUSH)
    model.configure("new")
    model.begin_publish(0)
    model.publish([""])
    model.take()
    model.ack(FIRST + 1)
    model.publish([""])
    model.claim_pages()
    model.commit()
    model.publish(["a"])
    model.read_pages()
    model.offer_pages()
    model.take()
    assert [model.keys[message_id - FIRST] for message_id in model.out] == ["a", ""]


@pytest.mark.any_database
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
@pytest.mark.parametrize(
    ("mode", "limit", "backlog"),
    [(Mode.PUSH, 6, "aaaaaabc" * 3), (Mode.PULL, 6, "aaaaaabc" * 3), (Mode.PUSH, 80, "abca" * 10)],
)
@pytest.mark.django_db
def test_no_message_goes_out_while_an_earlier_one_of_its_key_waits(
    redis_url: str, mode: Mode, limit: int, backlog: str, steps: list[tuple[str, Any]]
) -> None:
    client = client_of(redis_url)
    client.flushall()
    model = Model(Backlog(client, limit=limit), mode)
    model.configure("new")
    if backlog:
        model.publish(list(backlog))
    for step, value in steps:
        if step in ("publish", "publish_unheard"):
            getattr(model, step)(value)
        elif step in OF_ONE:
            if model.out:
                getattr(model, step)(model.out[value % len(model.out)])
        else:
            getattr(model, step)(value)
        model.check_count()
    model.commit()
    model.read_pages()
    model.offer_pages()
    model.forget_late()
    # In the end everything arrives: nothing is stuck behind a key that nobody holds.
    lane_change(model.backlog, LANE, resume_ms=0, backoff_level=0, gap_ms=0, nack_share=0, credit=1000)
    if "publish_unheard" in [step for step, _ in steps]:
        model.configure("spill", FIRST)  # the audit finds what nobody has offered
    else:
        model.configure()
    for turn in range(500):
        if not model.rows:
            break
        model.take(turn)
        if not model.out:
            model.starve()
        for message_id in model.out:
            model.ack(message_id)
    assert not model.rows
    assert set(client.keys(f"{LANE.root}:*")) - {f"{LANE.root}:t".encode()} == {f"{LANE.root}:s".encode()}
    assert (lane_state(model.backlog, LANE).parked, lane_state(model.backlog, LANE).left) == (0, 0)
    model.check_count()


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("disturbance", ["none", "kill", "wipe", "freeze"])
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
        elif disturbance == "freeze":
            worker.suspend()
            with Worker(redis_url, name="second"):
                wait_for(lambda: sum(map(len, acked.values())) >= 20, what="pushes of the second worker")
                worker.resume()
                all_acked()
        else:
            all_acked()
    if disturbance != "wipe":
        for key in "abc":
            numbers = [message["attributes"]["n"] for message in pushed(receiver) if message["orderingKey"] == key]
            assert numbers == sorted(numbers), "no push comes after a later one of its key"
    for key in "abc":
        firsts = list(dict.fromkeys(acked[key]))
        assert firsts == list(range(10)), acked


def publish(key: str, number: int) -> None:
    publish_message(topic=get_topic(name=TOPIC), messages=[NewMessage(b"x", {"n": str(number)}, key)])


def pushed(receiver: Receiver) -> list[Any]:
    return [request.json["message"] for request in receiver.requests]


def all_acked() -> None:
    wait_for(lambda: not Delivery.objects.exists(), what="the last ack")
