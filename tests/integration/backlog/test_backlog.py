"""The verbs on a real Redis: the place of a delivery after each, and the effect of repeated, late and lost calls."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest
import redis

from deliveries.backlog import workerverbs
from deliveries.backlog.backlog import Backlog
from deliveries.backlog.codes import Mode
from deliveries.backlog.connection import client_of
from deliveries.backlog.records import (
    Lane,
    Offer,
    OfferedLane,
    OfferedMessage,
    Page,
    PageRequest,
    Settlement,
    pull_bell,
    work_key,
)
from deliveries.backlog.scripts import call_all
from deliveries.rules.flow import Flow
from deliveries.rules.ids import EPOCH_MS, first_id_at
from deliveries.rules.limits import Limits
from deliveries.rules.outcome import Verdict
from deliveries.rules.taskmessage import TaskTemplate, escape_message, queue_name
from tests.lanes import are_known, configure, lane_change, lane_state, low_queue, mark_alive, page_requests
from tests.ports import wait_for

LANE = Lane(7, "here")
FIRST = first_id_at(EPOCH_MS + 1_000_000)


@pytest.fixture
def backlog(redis_url: str) -> Backlog:
    return Backlog(client_of(redis_url), limit=10)


def task(message_id: int, *, attempt: int = 1, lane: Lane = LANE, generation: str = "") -> str:
    template = TaskTemplate(
        subscription_id=lane.subscription_id, region=lane.region, attempt=attempt, generation=generation
    )
    return template.render(str(message_id), text(message_id))


def tasks(backlog: Backlog, message_ids: Iterable[int], *, lane: Lane = LANE) -> list[str]:
    """Return the task messages of deliveries in the lane that Redis has."""
    generation = lane_state(backlog, lane).generation
    return [task(message_id, lane=lane, generation=generation) for message_id in message_ids]


def text(message_id: int) -> str:
    return escape_message({"messageId": str(message_id), "publishTime": "t"})


def offer(backlog: Backlog, *ids: int, lane: Lane = LANE, ordered: bool = False) -> None:
    """Offer messages; nobody knows which ones are before them in their ordering keys."""
    lanes = [OfferedLane(lane, Mode.PUSH, ordered=ordered)]
    backlog.offer([Offer(lane.region, lanes, [OfferedMessage(i, text(i)) for i in ids])])


_batches = itertools.count()


def fetch(backlog: Backlog, *, worker: str = "w", batch: str = "", count: int = 100) -> list[Any]:
    batch = batch or f"batch {next(_batches)}"
    reply: list[Any] = backlog.scripts.fetch(
        keys=[queue_name(LANE.region), work_key(worker)], args=[LANE.region, batch, count, backlog.limit]
    )
    return reply


def ids_of(reply: list[Any]) -> list[int]:
    return [int(message.split(b'"id":"')[1].split(b".")[0]) for message in reply[0]]


def fetched_ids(backlog: Backlog, **kwargs: Any) -> list[int]:
    return ids_of(fetch(backlog, **kwargs))


def spare_after_ack(backlog: Backlog, *ids: int) -> int:
    """Ack deliveries, and return how many tokens of the lane are spare then."""
    settlement = Settlement()
    for message_id in ids:
        settlement.add(str(message_id), Verdict.ACK)
    return backlog.settle({LANE: settlement}, dice=0.5, finished={})[LANE].spare


def settle(
    backlog: Backlog, verdict: Verdict, *ids: int, delay_ms: int = 0, batch: str | None = None, attempt: int = 1
) -> None:
    settlement = Settlement()
    for message_id in ids:
        settlement.add(str(message_id), verdict, 1.0, attempt=attempt)
        if verdict in (Verdict.NACK, Verdict.RELEASE):
            settlement.returned += [delay_ms, task(message_id, attempt=attempt + 1)]
    backlog.settle({LANE: settlement}, dice=0.5, finished={work_key("w"): [batch] if batch else []})


def ids(count: int, *, start: int = 0) -> list[int]:
    return [FIRST + i for i in range(start, start + count)]


def held(backlog: Backlog) -> int:
    return lane_state(backlog, LANE).outstanding


def requested_page(backlog: Backlog, *, ordered: bool) -> PageRequest:
    """Return the request for the first page of a lane that is spilled from FIRST on."""
    configure(backlog, LANE, mode=Mode.PUSH, action="new", ordered=ordered)
    configure(backlog, LANE, mode=Mode.PUSH, action="spill", from_id=FIRST, ordered=ordered)
    lane_change(backlog, LANE, cursor=FIRST)
    [request] = page_requests(backlog, region=LANE.region)
    return request


def offer_page(backlog: Backlog, request: PageRequest, *message_ids: int, is_last: bool = False) -> None:
    messages = [(message_id, task(message_id)) for message_id in message_ids]
    backlog.offer_pages(
        [Page(request, messages, next_id=message_ids[-1] + 1, is_last=is_last, orderings=[""] * len(messages))]
    )


def test_an_offer_sends_as_many_messages_as_the_first_window(backlog: Backlog) -> None:
    configure(backlog, LANE, mode=Mode.PUSH, action="new")
    offer(backlog, *ids(5))
    assert fetched_ids(backlog) == ids(3)
    assert held(backlog) == 3


def test_an_ack_gives_its_token_back_and_widens_the_window(backlog: Backlog) -> None:
    configure(backlog, LANE, mode=Mode.PUSH, action="new")
    offer(backlog, *ids(9))
    fetch(backlog)
    settle(backlog, Verdict.ACK, *ids(3))
    assert fetched_ids(backlog) == ids(6, start=3), "3 acks make the window 6"


def test_settling_twice_is_harmless(backlog: Backlog) -> None:
    configure(backlog, LANE, mode=Mode.PUSH, action="new")
    offer(backlog, *ids(4))
    fetch(backlog)
    settle(backlog, Verdict.ACK, *ids(1))
    settle(backlog, Verdict.ACK, *ids(1))
    assert held(backlog) == 3
    assert lane_state(backlog, LANE).window == 4


@pytest.mark.parametrize("first", [Verdict.ACK, Verdict.NACK])
def test_two_attempts_at_a_message_that_end_together_give_one_token_back(backlog: Backlog, first: Verdict) -> None:
    # Given three messages that are out
    configure(backlog, LANE, mode=Mode.PUSH, action="new")
    offer(backlog, *ids(3))
    fetch(backlog)
    # When one of them has two results, as its worker had been given up and got it again
    settlement = Settlement()
    settlement.add(str(FIRST), first, 1.0)
    settlement.add(str(FIRST), Verdict.ACK, 1.0)
    settlement.returned += [0, task(FIRST, attempt=2)] if first is Verdict.NACK else []
    backlog.settle({LANE: settlement}, dice=0.5, finished={})
    # Then the other two hold their tokens, and it does not come again
    assert (held(backlog), fetched_ids(backlog)) == (2, [])


@pytest.mark.parametrize("verdict", [Verdict.NACK, Verdict.RELEASE])
@pytest.mark.parametrize("count", [1, 2])
def test_a_result_that_is_told_again_does_not_end_the_next_attempt(
    backlog: Backlog, verdict: Verdict, count: int
) -> None:
    # Given a batch of which one message is sent back, and the reply is lost
    configure(backlog, LANE, mode=Mode.PUSH, action="new")
    offer(backlog, *ids(count))
    fetch(backlog, batch="1")
    settlement = Settlement()
    settlement.add(str(FIRST), verdict, 1.0, batch="w/1")
    settlement.returned += [0, task(FIRST)]
    finished = {work_key("w"): ["1"] if count == 1 else []}
    backlog.settle({LANE: settlement}, dice=0.5, finished=finished)
    # When it has been fetched again before the worker repeats the call
    assert fetched_ids(backlog, batch="2") == [FIRST]
    backlog.settle({LANE: settlement}, dice=0.5, finished=finished)
    # Then it is not fetched once more
    assert fetched_ids(backlog, batch="3") == []
    assert held(backlog) == count


def test_a_nack_that_a_stock_worker_tells_again_does_not_end_the_next_attempt(backlog: Backlog) -> None:
    configure(backlog, LANE, mode=Mode.PUSH, action="new")
    offer(backlog, FIRST)
    fetch(backlog)
    backlog.client.sadd("ph:stock:stock", f"{FIRST}.{LANE.subscription_id}.{LANE.region}#1")
    settlement = Settlement()
    settlement.add(str(FIRST), Verdict.NACK, 1.0, batch="stock/#1")
    settlement.returned += [0, task(FIRST, attempt=2)]
    backlog.settle({LANE: settlement}, dice=0.5, finished={})
    assert fetched_ids(backlog) == [FIRST]
    backlog.settle({LANE: settlement}, dice=0.5, finished={})
    assert (held(backlog), fetched_ids(backlog)) == (1, [])


def test_a_nack_waits_its_countdown_and_comes_back_before_the_backlog(backlog: Backlog) -> None:
    configure(backlog, LANE, mode=Mode.PUSH, action="new")
    offer(backlog, *ids(4))
    fetch(backlog)
    settle(backlog, Verdict.NACK, FIRST, delay_ms=0)
    settle(backlog, Verdict.ACK, FIRST + 1, FIRST + 2)
    assert fetched_ids(backlog, batch="2")[0] == FIRST


def test_a_nack_with_a_countdown_is_woken_when_it_is_due(backlog: Backlog) -> None:
    configure(backlog, LANE, mode=Mode.PUSH, action="new")
    offer(backlog, FIRST)
    fetch(backlog)
    settle(backlog, Verdict.NACK, FIRST, delay_ms=60_000)
    messages, wait_ms, _, _ = fetch(backlog)
    assert messages == []
    assert 50_000 < wait_ms <= 60_000


def test_a_release_goes_back_to_the_front_and_costs_nothing(backlog: Backlog) -> None:
    configure(backlog, LANE, mode=Mode.PUSH, action="new")
    offer(backlog, *ids(5))
    fetch(backlog)
    flow = lane_state(backlog, LANE).flow
    settle(backlog, Verdict.RELEASE, *ids(3))
    assert fetched_ids(backlog, batch="2") == ids(3)
    # Except that sending them has earned a retry something twice
    assert lane_state(backlog, LANE).flow._replace(retry_credit=0) == flow._replace(retry_credit=0)


def test_an_offer_beyond_the_limit_spills_and_a_page_brings_the_rest_in_order(backlog: Backlog) -> None:
    configure(backlog, LANE, mode=Mode.PUSH, action="new")
    offer(backlog, *ids(14))
    offer(backlog, *ids(2, start=14))
    state = lane_state(backlog, LANE)
    assert (state.spilled, state.cursor) == (True, FIRST + 10), "deliveries after a spill are refused too"
    seen = []
    for batch in range(6):
        reply = fetch(backlog, batch=str(batch))
        seen += ids_of(reply)
        settle(backlog, Verdict.ACK, *ids_of(reply))
        if pages := reply[3]:
            [request] = PageRequest.parse_all(pages)
            rest = ids(6, start=10)
            backlog.offer_pages([Page(request, [(i, task(i)) for i in rest], next_id=rest[-1] + 1, is_last=True)])
    assert seen == ids(16)
    assert not lane_state(backlog, LANE).spilled


def test_an_offer_behind_waiting_messages_changes_nothing_but_the_backlog_and_its_size(backlog: Backlog) -> None:
    configure(backlog, LANE, mode=Mode.PUSH, action="new")
    offer(backlog, *ids(5))
    before = backlog.client.hgetall(LANE.state_key)
    offer(backlog, *ids(8, start=5))
    after = backlog.client.hgetall(LANE.state_key)
    assert {name for name in after if after[name] != before[name]} == {b"held", b"bytes"}
    assert backlog.client.llen(f"{LANE.root}:b") == 10
    fetch(backlog)
    settle(backlog, Verdict.ACK, *ids(3))
    assert fetched_ids(backlog) == ids(6, start=3)


@pytest.mark.parametrize(
    ("mode", "ordered", "offered", "taken"),
    [(Mode.PUSH, 0, 6, 10), (Mode.PULL, 0, 6, 10), (Mode.IDLE, 0, 4, 5), (Mode.PUSH, 1, 4, 5)],
)
def test_what_a_lane_does_not_take_behind_waiting_messages_stays_in_the_database(
    backlog: Backlog, mode: Mode, ordered: int, offered: int, taken: int
) -> None:
    configure(backlog, LANE, mode=Mode.PULL, action="new")
    offer(backlog, *ids(5))
    lane_change(backlog, LANE, mode=int(mode), ordered=ordered)
    offer(backlog, *ids(offered, start=5))
    assert lane_state(backlog, LANE).spilled
    assert set(backlog.client.hkeys(LANE.places_key)) == {str(message_id).encode() for message_id in ids(taken)}


def test_each_offer_wakes_pullers(backlog: Backlog) -> None:
    configure(backlog, LANE, mode=Mode.PULL, action="new")
    for number in range(2):
        offer(backlog, FIRST + number)
        assert backlog.client.rpop(pull_bell(LANE.subscription_id)) == b"1"


def test_a_page_is_requested_from_one_worker_only(backlog: Backlog) -> None:
    configure(backlog, LANE, mode=Mode.PUSH, action="new")
    configure(backlog, LANE, mode=Mode.PUSH, action="spill", from_id=FIRST)
    generation = lane_state(backlog, LANE).generation
    assert page_requests(backlog, region=LANE.region) == [
        PageRequest(LANE, FIRST, number=1, read_to=0, generation=generation, rows=5, is_lean=False)
    ]
    assert page_requests(backlog, region=LANE.region) == []


def test_a_page_skips_deliveries_that_redis_has(backlog: Backlog) -> None:
    configure(backlog, LANE, mode=Mode.PUSH, action="new")
    offer(backlog, *ids(2))
    configure(backlog, LANE, mode=Mode.PUSH, action="spill", from_id=0)
    reply = fetch(backlog)
    [request] = PageRequest.parse_all(reply[3])
    offer_page(backlog, request, *ids(3), is_last=True)
    assert sorted(ids_of(reply) + fetched_ids(backlog)) == ids(3)


@pytest.mark.parametrize(
    ("refused", "cursor"),
    [(FIRST + 9, FIRST + 5), (FIRST + 2, FIRST + 2), (FIRST - 3, FIRST - 3)],
    ids=["behind the page", "within the page", "before the page"],
)
def test_a_row_that_is_spilled_while_a_page_is_read_is_read_later(backlog: Backlog, refused: int, cursor: int) -> None:
    # Given a spilled lane, for which a worker reads the five rows after the first
    request = requested_page(backlog, ordered=False)

    # When an offer is refused meanwhile, and the page arrives
    offer(backlog, refused)
    offer_page(backlog, request, *ids(5), is_last=True)

    # Then the lane reads on behind the page, but not behind the refused row, which the page may lack
    state = lane_state(backlog, LANE)
    assert (state.spilled, state.cursor) == (True, cursor)


@pytest.mark.parametrize(("published", "cursor"), [(FIRST + 3, FIRST), (FIRST + 9, FIRST + 5)])
def test_an_ordered_lane_reads_a_page_again_if_it_may_lack_what_was_published_meanwhile(
    backlog: Backlog, published: int, cursor: int
) -> None:
    """Steady publishing would else make it read the same page again and again."""
    request = requested_page(backlog, ordered=True)
    offer(backlog, published)
    offer_page(backlog, request, *ids(5), is_last=True)
    state = lane_state(backlog, LANE)
    assert (state.spilled, state.cursor) == (True, cursor)


def test_of_a_late_page_and_its_repetition_the_first_moves_the_cursor(backlog: Backlog) -> None:
    # Given a page that did not arrive in time, so that another worker is to read it, and a spill in between
    late = requested_page(backlog, ordered=False)
    offer(backlog, FIRST + 2)
    lane_change(backlog, LANE, paging_until_ms=1)
    backlog.client.sadd("ph:page", LANE.key)
    [repetition] = page_requests(backlog, region=LANE.region)
    assert repetition == late

    # When the late one arrives, the row that was spilled since the first request is read next
    offer_page(backlog, late, *ids(5))
    assert lane_state(backlog, LANE).cursor == FIRST + 2

    # And when the repetition arrives after the next request, it moves nothing
    backlog.client.sadd("ph:page", LANE.key)
    [following] = page_requests(backlog, region=LANE.region)
    assert following == replace(late, from_id=FIRST + 2, number=late.number + 1, read_to=FIRST + 5)
    offer_page(backlog, repetition, *ids(5), is_last=True)
    assert lane_state(backlog, LANE).cursor == FIRST + 2
    offer_page(backlog, following, *ids(8, start=2), is_last=True)
    assert not lane_state(backlog, LANE).spilled


def test_a_lane_unknown_to_redis_reads_the_database_before_it_takes_an_offer(backlog: Backlog) -> None:
    offer(backlog, FIRST)
    assert lane_state(backlog, LANE).spilled
    assert fetched_ids(backlog) == []


def test_ids_beyond_a_double_are_compared_exactly(backlog: Backlog) -> None:
    large = 2**62 + 1
    configure(backlog, LANE, mode=Mode.PUSH, action="new")
    configure(backlog, LANE, mode=Mode.PUSH, action="spill", from_id=large + 1)
    configure(backlog, LANE, mode=Mode.PUSH, action="spill", from_id=large)
    assert lane_state(backlog, LANE).cursor == large


def test_a_dead_workers_unsettled_messages_go_back_to_the_queue(backlog: Backlog) -> None:
    configure(backlog, LANE, mode=Mode.PUSH, action="new")
    backlog.beat("dead")
    offer(backlog, *ids(3))
    fetch(backlog, worker="dead")
    settle(backlog, Verdict.ACK, FIRST)
    backlog.client.zadd("ph:workers", {"dead": 1})
    assert backlog.beat("alive").put_back == 2
    assert sorted(fetched_ids(backlog, worker="alive")) == ids(2, start=1)
    assert held(backlog) == 2
    assert not backlog.client.exists(work_key("dead"))


def test_a_living_worker_puts_back_a_batch_that_never_arrived(backlog: Backlog) -> None:
    configure(backlog, LANE, mode=Mode.PUSH, action="new")
    offer(backlog, *ids(3))
    fetch(backlog, batch="lost")
    settle(backlog, Verdict.ACK, FIRST)
    assert backlog.put_back("w", ["never requested", "lost"]) == 2
    assert backlog.put_back("w", ["lost"]) == 0
    assert sorted(fetched_ids(backlog, batch="next")) == ids(2, start=1)
    assert held(backlog) == 2
    assert backlog.client.hkeys(work_key("w")) == [b"next"]


def test_a_fetch_that_is_repeated_after_a_lost_reply_gets_the_same_messages(backlog: Backlog) -> None:
    """Redis' client repeats a call whose connection broke. What the first one took would be with nobody."""
    configure(backlog, LANE, mode=Mode.PUSH, action="new")
    offer(backlog, *ids(3))
    assert [fetched_ids(backlog, batch="lost", count=2) for _ in range(2)] == [ids(2), ids(2)]
    assert fetched_ids(backlog, batch="next") == ids(1, start=2)
    assert backlog.put_back("w", ["lost", "next"]) == 3


def test_a_finished_batch_is_no_longer_recorded(backlog: Backlog) -> None:
    configure(backlog, LANE, mode=Mode.PUSH, action="new")
    offer(backlog, FIRST)
    fetch(backlog, batch="b")
    assert backlog.client.hkeys(work_key("w")) == [b"b"]
    settle(backlog, Verdict.ACK, FIRST, batch="b")
    assert not backlog.client.exists(work_key("w"))


@pytest.mark.parametrize(
    "leave", [lambda b: configure(b, LANE, mode=Mode.IDLE, action="known"), lambda b: b.forget(LANE)]
)
def test_a_lane_that_leaves_push_sends_nothing_more(backlog: Backlog, leave: Callable[[Backlog], None]) -> None:
    configure(backlog, LANE, mode=Mode.PUSH, action="new")
    offer(backlog, *ids(8))
    fetch(backlog)
    leave(backlog)
    settle(backlog, Verdict.ACK, *ids(3))
    assert fetched_ids(backlog) == []


def test_a_lane_that_comes_back_to_push_reads_the_database_from_the_start(backlog: Backlog) -> None:
    configure(backlog, LANE, mode=Mode.PUSH, action="new")
    offer(backlog, *ids(8))
    fetch(backlog)
    configure(backlog, LANE, mode=Mode.IDLE, action="known")
    settle(backlog, Verdict.NACK, *ids(3))
    configure(backlog, LANE, mode=Mode.PUSH, action="known")
    assert fetch(backlog)[3][:2] == [b"7:here", b"0"]


def test_a_wipe_is_reported_until_redis_is_rebuilt(backlog: Backlog) -> None:
    assert backlog.beat().was_wiped
    mark_alive(backlog)
    assert not backlog.beat().was_wiped
    backlog.client.flushall()
    assert backlog.beat().was_wiped


def test_workers_learn_which_subscriptions_changed(backlog: Backlog) -> None:
    backlog.announce_change(5)
    backlog.announce_change(6)
    assert backlog.changed_since(1) == [6]
    assert fetch(backlog)[2] == b"2"


def test_changes_of_settings_take_bounded_room(backlog: Backlog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workerverbs, "CHANGES_KEPT", 2)
    for subscription_id in range(5):
        backlog.announce_change(subscription_id)
    assert backlog.changed_since(3) == [3, 4]
    assert backlog.changed_since(0) == [3, 4]


def test_no_worker_learns_of_an_epoch_before_the_change(backlog: Backlog) -> None:
    def announce() -> None:
        for subscription_id in range(1000):
            backlog.announce_change(subscription_id)

    thread = threading.Thread(target=announce)
    thread.start()
    while thread.is_alive():
        epoch = int(fetch(backlog)[2])
        assert len(backlog.changed_since(0)) >= epoch
    thread.join()


def test_a_ring_wakes_a_sleeper_and_a_drained_queue_does_not(backlog: Backlog) -> None:
    configure(backlog, LANE, mode=Mode.PUSH, action="new")
    offer(backlog, *ids(2))
    assert backlog.client.lpop("ph:bell:here") == b"1"
    fetch(backlog)
    assert backlog.client.lpop("ph:bell:here") is None


def test_the_retry_set_does_not_grow_beyond_the_limit_and_a_window(backlog: Backlog) -> None:
    configure(backlog, LANE, mode=Mode.PUSH, action="new")
    for start in range(0, 40, 4):
        offer(backlog, *ids(4, start=start))
    for batch in range(60):
        settle(backlog, Verdict.NACK, *fetched_ids(backlog, batch=str(batch)), delay_ms=3_600_000)
        lane_change(backlog, LANE, resume_ms=0)
        configure(backlog, LANE, mode=Mode.PUSH, action="known")
    assert backlog.client.zcard("ph:7:here:z") <= backlog.limit + 3


def test_a_subscriptions_own_limits_hold(backlog: Backlog) -> None:
    configure(backlog, LANE, mode=Mode.PUSH, action="new", limits=Limits(max_outstanding=2))
    offer(backlog, *ids(5))
    assert fetched_ids(backlog) == ids(2)
    configure(backlog, LANE, mode=Mode.PUSH, action="known", limits=Limits(rate=0.001, burst=1))
    settle(backlog, Verdict.ACK, *ids(2))
    assert len(fetched_ids(backlog)) == 1, "the bucket holds one, and the next drops in a thousand seconds"
    assert 900_000 < fetch(backlog)[1] <= 1_000_000


def backing_off(backlog: Backlog, *, push_config: int) -> None:
    """Create a lane that is pausing because of its nacks, with three messages that wait for a retry in an hour."""
    configure(
        backlog, LANE, mode=Mode.PUSH, action="new", push_config=push_config, limits=Limits(rate=1000, burst=1000)
    )
    offer(backlog, *ids(3))
    settle(backlog, Verdict.NACK, *fetched_ids(backlog), delay_ms=3_600_000)
    in_a_minute_ms = time.time() * 1000 + 60_000
    pause = {"backoff_level": 9, "backoff_since_ms": 0, "resume_ms": in_a_minute_ms, "retry_credit": 9}
    lane_change(backlog, LANE, **pause, gap_ms=4000, window=1)


def test_new_push_requests_end_the_backoff_and_the_retries_wait(backlog: Backlog) -> None:
    """Given an endpoint that nacked everything, when another takes its place, then all retries go there at once."""
    backing_off(backlog, push_config=1)
    before = lane_state(backlog, LANE).flow

    configure(backlog, LANE, mode=Mode.PUSH, action="known", push_config=2, limits=Limits(rate=1000, burst=1000))

    assert fetched_ids(backlog) == ids(3)
    flow = lane_state(backlog, LANE).flow
    assert flow.backoff_since_ms > 0, "nacks of the old endpoint no longer count"
    assert flow.bucket_filled_ms >= before.bucket_filled_ms, "the rate limit's bucket stays"
    # And the lane has learned nothing yet, but that three retries are on their way
    kept = {name: getattr(flow, name) for name in ("round_began_ms", "backoff_since_ms", "bucket_filled_ms")}
    limits = {"bucket_tokens": flow.bucket_tokens, "rate": 1000, "burst": 1000}
    assert flow == Flow(round_peak=3, retries_out=3, **kept, **limits)


def test_a_lane_that_begins_anew_sends_nothing_twice(backlog: Backlog) -> None:
    """Given a message on its way and two that wait for a retry, when the lane begins anew, then only these two go."""
    backing_off(backlog, push_config=1)
    lane_change(backlog, LANE, resume_ms=0)
    offer(backlog, FIRST + 3)
    assert fetched_ids(backlog) == [FIRST + 3]

    configure(backlog, LANE, mode=Mode.PUSH, action="anew", push_config=1)
    assert fetched_ids(backlog) == ids(2), "two more have room in a window of three"
    assert held(backlog) == 3


def retry_within(backlog: Backlog, milliseconds: int, *message_ids: int) -> None:
    backlog.client.zadd(f"{LANE.root}:z", {str(i): time.time() * 1000 + milliseconds for i in message_ids})


def test_a_lane_in_backoff_reads_a_page_only_if_redis_has_no_message_that_may_go_out_next(backlog: Backlog) -> None:
    # Given a lane that pauses for a minute, with a retry that is due before, and more in the database
    backing_off(backlog, push_config=1)
    retry_within(backlog, 50_000, FIRST)
    configure(backlog, LANE, mode=Mode.PUSH, action="spill", from_id=FIRST + 3, push_config=1)
    assert page_requests(backlog, region=LANE.region) == []
    # When all retries are due later than the pause ends, the lane asks for a page
    retry_within(backlog, 600_000, FIRST)
    configure(backlog, LANE, mode=Mode.PUSH, action="known", push_config=1)
    [request] = page_requests(backlog, region=LANE.region)
    assert request.from_id == FIRST + 3
    # And none while a message waits, or is out
    offer_page(backlog, request, FIRST + 3)
    configure(backlog, LANE, mode=Mode.PUSH, action="known", push_config=1)
    assert page_requests(backlog, region=LANE.region) == []
    lane_change(backlog, LANE, resume_ms=0)
    configure(backlog, LANE, mode=Mode.PUSH, action="known", push_config=1)
    assert page_requests(backlog, region=LANE.region) == []
    assert fetched_ids(backlog) == [FIRST + 3]


def test_a_lane_asks_for_a_page_at_once_when_its_backoff_ends(backlog: Backlog) -> None:
    backing_off(backlog, push_config=1)
    retry_within(backlog, -1000, FIRST)
    configure(backlog, LANE, mode=Mode.PUSH, action="spill", from_id=FIRST + 3, push_config=1)
    lane_change(backlog, LANE, resume_ms=0)
    offer(backlog, FIRST + 3)
    configure(backlog, LANE, mode=Mode.PUSH, action="known", push_config=1)
    assert fetched_ids(backlog) == [FIRST]
    assert page_requests(backlog, region=LANE.region) == []
    settle(backlog, Verdict.ACK, FIRST)
    assert [request.from_id for request in page_requests(backlog, region=LANE.region)] == [FIRST + 3]


def test_more_lanes_that_want_pages_than_a_fetch_claims_are_claimed_without_a_pause(backlog: Backlog) -> None:
    for number in range(20):
        configure(backlog, Lane(number, "here"), mode=Mode.PUSH, action="known")
    claimed, waits = 0, []
    while claimed < 20:
        _, wait_ms, _, pages = fetch(backlog)
        claimed += len(PageRequest.parse_all(pages))
        waits.append(wait_ms)
    assert waits[:-1] == [0, 0]
    assert waits[-1] > 0


@pytest.mark.parametrize(("before", "after"), [(1, 1), (0, 1)], ids=["the same", "not known before"])
def test_other_settings_leave_the_backoff_as_it_is(backlog: Backlog, before: int, after: int) -> None:
    backing_off(backlog, push_config=before)

    configure(backlog, LANE, mode=Mode.PUSH, action="known", push_config=after)

    assert fetched_ids(backlog) == []
    state = lane_state(backlog, LANE)
    assert (state.flow.backoff_level, state.flow.window, state.push_config) == (9, 1, after)


def test_a_lane_that_is_resumed_sends_at_once(backlog: Backlog) -> None:
    backing_off(backlog, push_config=1)

    configure(backlog, LANE, mode=Mode.IDLE, action="known", push_config=1)
    configure(backlog, LANE, mode=Mode.PUSH, action="known", push_config=1)
    offer_page(backlog, page_requests(backlog, region=LANE.region)[0], *ids(3), is_last=True)

    assert fetched_ids(backlog) == ids(3)


def test_a_field_that_an_older_version_did_not_write_has_its_first_value(backlog: Backlog) -> None:
    configure(backlog, LANE, mode=Mode.PUSH, action="new")
    backlog.client.hdel("ph:7:here:s", "k", "cap")
    offer(backlog, *ids(2))
    assert fetched_ids(backlog) == ids(2)


def opened(backlog: Backlog, count: int) -> None:
    """Create a lane whose window has room for `count` messages, with as many waiting."""
    configure(backlog, LANE, mode=Mode.PUSH, action="new")
    lane_change(backlog, LANE, window=count, round_peak=count)
    offer(backlog, *ids(count))


def test_a_window_that_opens_wide_leaves_the_queue_short_for_its_neighbours(redis_url: str) -> None:
    backlog = Backlog(client_of(redis_url), limit=5000)
    opened(backlog, 2000)
    assert 0 < backlog.client.llen(low_queue("here")) <= 300


def test_a_queue_kept_full_by_one_lane_still_takes_a_few_messages_of_another(redis_url: str) -> None:
    backlog = Backlog(client_of(redis_url), limit=5000)
    backlog.client.lpush(low_queue("here"), *["somebody else's"] * 400)
    neighbour = Lane(8, "here")
    configure(backlog, neighbour, mode=Mode.PUSH, action="new")
    offer(backlog, *ids(3), lane=neighbour)
    assert backlog.client.llen(low_queue("here")) == 403


def test_a_window_that_opened_wide_is_filled_slice_by_slice(redis_url: str) -> None:
    backlog = Backlog(client_of(redis_url), limit=5000)
    opened(backlog, 1000)
    got: set[int] = set()

    def all_are_out() -> bool:
        got.update(fetched_ids(backlog, batch=str(len(got)), count=300))
        return len(got) == 1000

    wait_for(all_are_out, what="the last slice")
    assert held(backlog) == 1000


def test_tokens_that_come_back_go_out_again_at_once(redis_url: str) -> None:
    """The pace limits growth only: it does not slow down a lane at full speed."""
    backlog = Backlog(client_of(redis_url), limit=5000)
    opened(backlog, 250)
    out: set[int] = set()

    def all_are_out() -> bool:
        out.update(fetched_ids(backlog, batch=str(len(out)), count=300))
        return len(out) == 250

    wait_for(all_are_out, what="the first windowful")
    offer(backlog, *ids(250, start=250))
    assert backlog.client.llen(low_queue("here")) == 0
    lane_change(backlog, LANE, credit=0, pumped_ms=1e15)
    settle(backlog, Verdict.ACK, *ids(250))
    assert backlog.client.llen(queue_name("here")) == 250


def test_a_lane_that_was_cut_is_pumped_again_soon_although_its_page_is_on_the_way(redis_url: str) -> None:
    """Claiming a page used to postpone the lane's next pump by five seconds."""
    backlog = Backlog(client_of(redis_url), limit=1000)
    opened(backlog, 400)
    configure(backlog, LANE, mode=Mode.PUSH, action="spill", from_id=FIRST + 1000)
    assert fetch(backlog)[3], "the page was not claimed"
    wake = backlog.client.zscore("ph:wake", LANE.key)
    seconds, microseconds = backlog.client.time()
    assert lane_state(backlog, LANE).spilled
    assert wake is not None
    assert wake - (seconds * 1000 + microseconds / 1000) < 1000


def test_one_call_offers_to_many_lanes_with_the_task_messages_of_each(backlog: Backlog) -> None:
    # Given a lane that pushes, one that reads the database first as Redis doesn't know it, and one that is pulled
    pulled, unknown = Lane(81, "here"), Lane(8, "here")
    configure(backlog, LANE, mode=Mode.PUSH, action="new")
    configure(backlog, pulled, mode=Mode.PULL, action="new")
    lanes = [
        OfferedLane(LANE, Mode.PUSH),
        OfferedLane(unknown, Mode.PUSH, Limits(max_outstanding=2, rate=0.5, burst=7)),
        OfferedLane(pulled, Mode.PULL),
    ]
    # When all three are offered the same messages
    backlog.offer([Offer("here", lanes, [OfferedMessage(i, text(i)) for i in ids(12)])])
    # Then each lane has its own task messages, as the template renders them, up to the limit of ten
    queued = backlog.client.lrange(low_queue("here"), 0, -1) + backlog.client.lrange(f"{LANE.root}:b", 0, -1)[::-1]  # type: ignore[operator,index]
    assert sorted(message.decode() for message in queued) == tasks(backlog, ids(10))
    waiting = backlog.client.lrange(f"{pulled.root}:b", 0, -1)
    assert [message.decode() for message in waiting] == tasks(backlog, ids(10), lane=pulled)  # type: ignore[union-attr]
    for lane in (LANE, pulled):
        assert (lane_state(backlog, lane).spilled, lane_state(backlog, lane).cursor) == (True, ids(12)[10])
    # And the unknown lane has its settings, and reads the database from the start
    state = lane_state(backlog, unknown)
    assert (state.flow.cap, state.flow.rate, state.flow.burst) == (2, 0.5, 7)
    assert (state.mode, state.spilled, state.cursor) == (Mode.PUSH, True, 0)
    assert are_known(backlog, unknown, ids(1)) == [False]


def test_an_error_in_one_lane_keeps_no_other_from_its_messages(backlog: Backlog) -> None:
    other = Lane(8, "here")
    configure(backlog, other, mode=Mode.PUSH, action="new")
    backlog.client.set(f"{LANE.root}:s", "not a hash")
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        backlog.offer(
            [
                Offer(
                    "here",
                    [OfferedLane(lane, Mode.PUSH) for lane in (LANE, other)],
                    [OfferedMessage(FIRST, text(FIRST))],
                )
            ]
        )
    assert are_known(backlog, other, ids(1)) == [True]


def test_a_call_offers_a_bounded_number_of_deliveries(backlog: Backlog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Redis serves no other client during a call."""
    round_trips: list[int] = []

    def counting(client: Any, script: Any, calls: Any, **more: Any) -> Any:
        # Besides the limit, generation, parts, number of fields and lanes' settings, the arguments are pairs.
        round_trips.append(sum(len(keys) * (len(args) - 13 - len(keys)) // 2 for keys, args in calls))
        return call_all(client, script, calls, **more)

    backlog = Backlog(backlog.client, limit=1000)
    lanes = [Lane(100 + number, "here") for number in range(40)]
    for lane in lanes:
        configure(backlog, lane, mode=Mode.PULL, action="new")
        lane_change(backlog, lane, pumped_ms=time.time() * 1000)
    monkeypatch.setattr("deliveries.backlog.backlog.call_all", counting)
    offered = [OfferedLane(lane, Mode.PULL) for lane in lanes]
    backlog.offer([Offer("here", offered, [OfferedMessage(i, text(i)) for i in ids(300)])])
    assert sum(round_trips) == 40 * 300
    assert max(round_trips) <= 1000
    for lane in lanes:
        places = backlog.client.lrange(f"{lane.root}:b", 0, -1)
        assert [message.decode() for message in places] == tasks(backlog, ids(300), lane=lane)  # type: ignore[union-attr]


def test_a_large_message_is_offered_to_few_lanes_in_a_call(backlog: Backlog, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    monkeypatch.setattr(
        "deliveries.backlog.backlog.call_all", lambda client, script, parts: calls.append(len(parts[0][0]))
    )
    offered = [OfferedLane(Lane(100 + number, "here"), Mode.PULL) for number in range(6)]
    backlog.offer([Offer("here", offered, [OfferedMessage(FIRST, "x" * 400_000)])])
    assert calls == [2, 2, 2]


def test_scripts_that_redis_lost_are_loaded_again_in_the_middle_of_a_batch(backlog: Backlog) -> None:
    other = Lane(8, "here")
    for lane in (LANE, other):
        configure(backlog, lane, mode=Mode.PUSH, action="new")
    pairs = [OfferedMessage(i, text(i)) for i in ids(1)]
    backlog.client.function_flush()
    backlog.offer([Offer("here", [OfferedLane(lane, Mode.PUSH)], pairs) for lane in (LANE, other)])
    assert [are_known(backlog, lane, ids(1)) for lane in (LANE, other)] == [[True], [True]]
    fetch(backlog, batch="1")
    backlog.client.function_flush()
    settle(backlog, Verdict.ACK, *ids(1), batch="1")
    assert are_known(backlog, LANE, ids(1)) == [False]
    assert not backlog.client.exists(work_key("w")), "the finished batch is forgotten as well"


def test_an_error_of_redis_in_a_batch_is_raised(backlog: Backlog) -> None:
    backlog.client.set(f"{LANE.root}:s", "not a hash")
    with pytest.raises(redis.ResponseError):
        offer(backlog, *ids(1))


def rings(backlog: Backlog) -> int:
    """Return whether the bell has been rung since the last call; several rings count as one."""
    bell = f"ph:bell:{LANE.region}"
    rung = int(backlog.client.llen(bell))  # type: ignore[arg-type]
    backlog.client.delete(bell)
    return rung


def test_the_earliest_retry_wakes_a_sleeping_worker(backlog: Backlog) -> None:
    """A worker without a due lane sleeps for seconds, but countdowns begin at 100 ms."""
    configure(backlog, LANE, mode=Mode.PUSH, action="new")
    offer(backlog, *ids(1))
    fetch(backlog)
    rings(backlog)
    settle(backlog, Verdict.NACK, *ids(1), delay_ms=800)
    assert rings(backlog)


def test_a_lane_that_is_due_later_than_another_rings_no_bell(backlog: Backlog) -> None:
    other = Lane(8, "here")
    for lane in (LANE, other):
        configure(backlog, lane, mode=Mode.PUSH, action="new")
    offer(backlog, *ids(1))
    fetch(backlog)
    backlog.client.zadd("ph:wake", {other.key: time.time() * 1000 + 500})
    rings(backlog)
    settle(backlog, Verdict.NACK, *ids(1), delay_ms=1500)
    assert not rings(backlog)


def test_an_overdue_lane_does_not_keep_others_from_ringing(backlog: Backlog) -> None:
    """The worker that should wake the lane is late, or more lanes are due than a fetch wakes."""
    configure(backlog, LANE, mode=Mode.PUSH, action="new")
    offer(backlog, *ids(1))
    fetch(backlog)
    backlog.client.zadd("ph:wake", {"8:here": 1})
    rings(backlog)
    settle(backlog, Verdict.NACK, *ids(1), delay_ms=800)
    assert rings(backlog)


def test_200_lanes_that_are_due_beside_distant_ones_are_woken_in_fetches_without_a_pause(backlog: Backlog) -> None:
    # Given 200 lanes whose retry is due, and 50 whose retry is a minute away
    due, distant = ([Lane(first + i, "here") for i in range(count)] for first, count in ((100, 200), (500, 50)))
    for lane in (*due, *distant):
        configure(backlog, lane, mode=Mode.PUSH, action="new")
        offer(backlog, FIRST, lane=lane)
    fetch(backlog, count=1000)
    for lane in (*due, *distant):
        settlement = Settlement()
        settlement.add(str(FIRST), Verdict.NACK, 1.0)
        settlement.returned += [200 if lane in due else 60_000, task(FIRST, attempt=2, lane=lane)]
        backlog.settle({lane: settlement}, dice=0.5, finished={})
    client = backlog.client
    wait_for(lambda: client.zcount("ph:wake", "-inf", time.time() * 1000) == len(due), what="the due time")
    # When a worker fetches for as long as it is told to ask again at once
    taken, waits = [], [0]
    while waits[-1] == 0:
        messages, wait_ms, *_ = fetch(backlog, batch=str(len(waits)), count=1000)
        taken += messages
        waits.append(wait_ms)
    # Then it has every retry that was due, 8 lanes at a time, and knows when the distant retries are due
    assert len(taken) == len(due)
    assert len(waits) - 1 == 25
    assert waits[-1] > 30_000


def test_others_get_their_turn_while_many_lanes_are_settled(backlog: Backlog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Redis answers nobody else while it runs what came in one round trip."""
    sent = []
    send = redis.connection.AbstractConnection.send_packed_command

    def sending(self: Any, command: Any, **kwargs: Any) -> None:
        sent.append(b"".join(command).count(b"FCALL"))
        send(self, command, **kwargs)

    settlements = {}
    for number in range(20):
        settlements[Lane(100 + number, "here")] = settlement = Settlement()
        settlement.add(str(FIRST), Verdict.ACK, 1.0)
    monkeypatch.setattr(redis.connection.AbstractConnection, "send_packed_command", sending)
    assert len(backlog.settle(settlements, dice=0.5, finished={})) == 20
    assert [count for count in sent if count] == [8, 8, 4]


def test_messages_that_a_puller_nacks_together_come_back_at_different_times(redis_url: str) -> None:
    # Given ten leases of a subscription whose retry policy says 1 s to 8 s
    backlog = Backlog(client_of(redis_url), limit=10, dice=lambda: 0.5)
    configure(backlog, LANE, mode=Mode.PULL, action="new")
    offer(backlog, *ids(10))
    countdown_ms = 1000, 8000
    leases = backlog.lease(LANE, count=10, duration_ms=60_000, countdown_ms=countdown_ms)
    assert leases is not None
    # When they are nacked together
    held_leases = [(delivery.message_id, delivery.times) for delivery in leases.deliveries]
    ended = backlog.extend(LANE, held_leases, generation=leases.generation, duration_ms=0, countdown_ms=countdown_ms)
    assert ended == set()
    # Then their countdowns are within the jitter, and no two are equal
    due = [score for _, score in backlog.client.zrange(f"{LANE.root}:z", 0, -1, withscores=True)]
    assert len(set(due)) == 10
    assert 100 < max(due) - min(due) <= 250


@pytest.mark.parametrize("end", ["nack", "unlease"])
def test_a_lease_that_ends_after_its_lane_has_begun_to_push_wakes_a_worker(backlog: Backlog, end: str) -> None:
    # Given a leased message of a subscription that gets an endpoint
    configure(backlog, LANE, mode=Mode.PULL, action="new")
    offer(backlog, FIRST)
    leases = backlog.lease(LANE, count=1, duration_ms=600_000, countdown_ms=(0, 0))
    assert leases is not None
    configure(backlog, LANE, mode=Mode.PUSH, action="known")
    assert fetched_ids(backlog) == []
    rings(backlog)
    # When its puller gives it back
    if end == "nack":
        pair = (FIRST, 1)
        backlog.extend(LANE, [pair], generation=leases.generation, duration_ms=0, countdown_ms=(0, 0))
    else:
        backlog.unlease(LANE, [(FIRST, 1, leases.ends_ms)], generation=leases.generation)
    # Then it is pushed at once, and not when the lease would have lapsed
    assert rings(backlog)
    assert fetched_ids(backlog) == [FIRST]


def test_a_lane_that_is_due_after_the_longest_sleep_rings_no_bell(backlog: Backlog) -> None:
    configure(backlog, LANE, mode=Mode.PUSH, action="new")
    offer(backlog, *ids(1))
    fetch(backlog)
    rings(backlog)
    settle(backlog, Verdict.NACK, *ids(1), delay_ms=60_000)
    assert not rings(backlog)


def test_a_fetch_returns_when_the_next_lane_is_due_and_rings_no_bell_for_it(backlog: Backlog) -> None:
    configure(backlog, LANE, mode=Mode.PUSH, action="new", limits=Limits(rate=2, burst=1))
    offer(backlog, *ids(3))
    fetch(backlog)
    rings(backlog)
    backlog.client.zadd("ph:wake", {LANE.key: 1})
    _, wait_ms, *_ = fetch(backlog)
    assert 0 < wait_ms <= 500
    assert not rings(backlog)


def test_tokens_are_spare_while_nothing_waits_for_them(backlog: Backlog) -> None:
    configure(backlog, LANE, mode=Mode.PUSH, action="new")

    # Given a window of 3 and five messages
    offer(backlog, *ids(5))
    first, second, third = fetched_ids(backlog)

    # Then none is spare while the other two messages wait for tokens, and the free ones are when nothing waits
    assert spare_after_ack(backlog, first) == 0
    assert spare_after_ack(backlog, second) == 0
    fourth, fifth = fetched_ids(backlog)
    assert spare_after_ack(backlog, third, fourth) == 7 - 1
    assert spare_after_ack(backlog, fifth) == 8


def test_no_token_is_spare_while_more_than_half_are_in_use(backlog: Backlog) -> None:
    configure(backlog, LANE, mode=Mode.PUSH, action="new")
    offer(backlog, *ids(3))
    first, second, third = fetched_ids(backlog)
    configure(backlog, LANE, mode=Mode.PUSH, action="known", limits=Limits(max_outstanding=3))
    assert spare_after_ack(backlog, first) == 0
    assert spare_after_ack(backlog, second) == 2
    assert spare_after_ack(backlog, third) == 3


def test_an_ordered_lane_has_one_spare_token_at_most(backlog: Backlog) -> None:
    """The next message of a key waits for the result of the one before, however large the window is."""
    request = requested_page(backlog, ordered=True)
    messages = [(i, task(i)) for i in ids(3)]
    backlog.offer_pages([Page(request, messages, next_id=FIRST + 3, is_last=True, orderings=["a", "b", ""])])
    assert spare_after_ack(backlog, *fetched_ids(backlog)) == 1


def test_no_token_of_an_ordered_lane_is_spare_while_a_message_waits_for_its_key(backlog: Backlog) -> None:
    request = requested_page(backlog, ordered=True)
    messages = [(i, task(i)) for i in ids(3)]
    backlog.offer_pages([Page(request, messages, next_id=FIRST + 3, is_last=True, orderings=["a", "a", "a"])])
    assert spare_after_ack(backlog, *fetched_ids(backlog)) == -1
    assert spare_after_ack(backlog, *fetched_ids(backlog)) == 1, "the last message of the key is out"


def test_a_lane_that_an_older_version_wrote_still_works(backlog: Backlog) -> None:
    # Given a lane with the fields of the previous release, in a wide window
    configure(backlog, LANE, mode=Mode.PUSH, action="new")
    key = LANE.state_key
    kept = {name: value for name in ("mode", "out", "cur", "spill", "seq") if (value := backlog.client.hget(key, name))}
    old = {"w": 5000, "r": 1, "l": 20, "n": 1000, "g": 7, "v": 2.4, "k": 5, "resume": 0, "peak": 3, "b": 0, "bt": 0}
    backlog.client.delete(key)
    backlog.client.hset(key, mapping={**kept, **old, "cap": 0, "rate": 0, "burst": 0, "paging": 0})

    # When messages are offered and acked
    offer(backlog, *ids(40))
    settle(backlog, Verdict.ACK, *fetched_ids(backlog))

    # Then the window is as wide as before, and the fields that are new have their first values
    state = lane_state(backlog, LANE)
    assert state.window == 5000
    assert state.flow.backoff_level == 0
    assert (state.flow.nack_share, state.flow.nack_share_seen) == (0, 20)
    assert backlog.client.hexists(key, "turn")


def nacked_in_a_pause(backlog: Backlog) -> None:
    """Nack what the worker holds; the retries are due, but the lane pauses for an hour."""
    message_ids = fetched_ids(backlog)
    lane_change(backlog, LANE, resume_ms=time.time() * 1000 + 3_600_000)
    settle(backlog, Verdict.NACK, *message_ids)


def test_in_backoff_a_retry_and_another_message_take_turns(backlog: Backlog) -> None:
    """Either may be the bad one: a lane of which only the retry went out would never see an ack."""
    configure(backlog, LANE, mode=Mode.PUSH, action="new")
    offer(backlog, FIRST)
    fetch(backlog)
    settle(backlog, Verdict.NACK, FIRST)
    backing_off_again = {"backoff_level": 9, "resume_ms": 0, "backoff_since_ms": 0}
    lane_change(backlog, LANE, **backing_off_again)
    offer(backlog, FIRST + 1)
    sent = []
    for _ in range(2):
        [message_id] = fetched_ids(backlog)
        sent.append(message_id)
        settle(backlog, Verdict.NACK, message_id, attempt=2)
        lane_change(backlog, LANE, **backing_off_again)
        configure(backlog, LANE, mode=Mode.PUSH, action="known")
    assert sent == [FIRST, FIRST + 1]


def test_the_lane_knows_which_results_and_tokens_are_those_of_retries(backlog: Backlog) -> None:
    configure(backlog, LANE, mode=Mode.PUSH, action="new")
    offer(backlog, *ids(3))
    nacked_in_a_pause(backlog)
    lane_change(backlog, LANE, resume_ms=0, window=3)
    configure(backlog, LANE, mode=Mode.PUSH, action="known")

    assert fetched_ids(backlog) == ids(3)
    assert lane_state(backlog, LANE).flow.retries_out == 3

    settlement = Settlement()
    for message_id, verdict in zip(ids(3), (Verdict.ACK, Verdict.DEAD_LETTER, Verdict.RELEASE), strict=True):
        settlement.add(str(message_id), verdict, attempt=2)
    settlement.returned = [0, task(ids(3)[2], attempt=2)]
    assert [result.code for result in settlement.results] == ["A", "D", "R"]
    backlog.settle({LANE: settlement}, dice=0.5, finished={})

    flow = lane_state(backlog, LANE).flow
    assert flow.retries_out == 0
    assert flow.retry_nacks == pytest.approx(0.5 * (7 / 8) ** 2 + 1 / 8)


def test_the_next_messages_of_ordering_keys_are_no_retries(redis_url: str) -> None:
    backlog = Backlog(client_of(redis_url), limit=1000)
    # Given an ordered lane that has learned that some messages are bad, and 40 keys of three messages
    request = requested_page(backlog, ordered=True)
    messages = [(message_id, task(message_id)) for message_id in ids(120)]
    keys = [f"key{number % 40}" for number in range(120)]
    lane_change(backlog, LANE, window=100, round_size=100, poisoned=1, retry_nacks=1)
    backlog.offer_pages([Page(request, messages, next_id=FIRST + 120, is_last=True, orderings=keys)])
    assert sorted(fetched_ids(backlog)) == ids(40)
    # When all keys are acknowledged, each sends its next message at once
    for start in (40, 80):
        settle(backlog, Verdict.ACK, *ids(40, start=start - 40))
        assert sorted(fetched_ids(backlog)) == ids(40, start=start)
    assert lane_state(backlog, LANE).flow.retries_out == 0


def test_messages_of_a_key_that_leave_together_let_the_one_behind_them_go(backlog: Backlog) -> None:
    request = requested_page(backlog, ordered=True)
    messages = [(message_id, task(message_id)) for message_id in ids(4)]
    backlog.offer_pages([Page(request, messages, next_id=FIRST + 4, is_last=True, orderings=["a"] * 4)])
    assert fetched_ids(backlog) == [FIRST]
    # The second was acknowledged late, by a worker that had been given up.
    settle(backlog, Verdict.ACK, FIRST, FIRST + 1)
    assert fetched_ids(backlog) == [FIRST + 2]


def test_retries_of_bad_messages_leave_most_tokens_to_other_messages(redis_url: str) -> None:
    backlog = Backlog(client_of(redis_url), limit=100)
    # Given a lane that has learned that some messages are bad, with twenty retries that are due
    configure(backlog, LANE, mode=Mode.PUSH, action="new")
    lane_change(backlog, LANE, window=20, round_size=20, results_seen=1000, ack_ratio=1)
    offer(backlog, *ids(20))
    nacked_in_a_pause(backlog)
    offer(backlog, *ids(40, start=20))
    # When it may send twenty messages
    lane_change(backlog, LANE, resume_ms=0, window=500, round_size=500, poisoned=1, retry_nacks=1, retry_credit=18)
    configure(backlog, LANE, mode=Mode.PUSH, action="known", limits=Limits(max_outstanding=20))
    # Then two of them are retries, and when these are settled two others
    assert fetched_ids(backlog) == [*ids(2), *ids(18, start=20)]
    settle(backlog, Verdict.DEAD_LETTER, *ids(2), attempt=2)
    assert fetched_ids(backlog) == ids(2, start=2)
    # And when no other message waits, no more than two at a time
    settle(backlog, Verdict.ACK, *ids(18, start=20))
    assert fetched_ids(backlog) == ids(18, start=38)
    settle(backlog, Verdict.ACK, *ids(18, start=38))
    assert fetched_ids(backlog) == ids(4, start=56)
    settle(backlog, Verdict.ACK, *ids(4, start=56))
    settle(backlog, Verdict.DEAD_LETTER, *ids(2, start=2), attempt=2)
    assert fetched_ids(backlog) == ids(2, start=4)
