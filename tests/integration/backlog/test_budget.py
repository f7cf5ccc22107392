"""All lanes together have one budget of Redis' memory."""

from __future__ import annotations

from typing import Any

import pytest

from deliveries.backlog.backlog import Backlog
from deliveries.backlog.codes import STATE_CODES, Mode
from deliveries.backlog.connection import client_of
from deliveries.backlog.records import Lane, Offer, OfferedLane, OfferedMessage, PageRequest, Settlement
from deliveries.rules.outcome import Verdict
from deliveries.rules.taskmessage import escape_message
from tests.integration.backlog.test_backlog import (
    FIRST,
    LANE,
    fetched_ids,
    ids,
    offer,
    offer_page,
    page_requests,
    requested_page,
    settle,
)
from tests.lanes import are_known, configure, lane_change, lane_state

#: As common.lua has them.
HANDFUL, WINDOWS = 16, 8
#: More than any budget.
FULL = 10**12


@pytest.fixture
def backlog(redis_url: str) -> Backlog:
    return Backlog(client_of(redis_url), limit=1000)


def counted(backlog: Backlog) -> int:
    return int(backlog.client.get("ph:bytes") or 0)


def waiting(backlog: Backlog) -> int:
    count: Any = backlog.client.llen(f"{LANE.root}:b")
    return int(count)


def offer_texts(backlog: Backlog, lanes: list[Lane], texts: list[str]) -> None:
    messages = [OfferedMessage(*pair) for pair in zip(ids(len(texts)), texts, strict=True)]
    backlog.offer([Offer(LANE.region, [OfferedLane(lane, Mode.PUSH) for lane in lanes], messages)])


def text_of_size(size: int) -> str:
    return escape_message({"messageId": "1", "publishTime": "t", "data": "x" * size})


def taken(backlog: Backlog) -> int:
    """Return the bytes that Redis needs for its keys. Those of the server also change with what earlier tests left."""
    client = backlog.client
    return sum(client.memory_usage(key, samples=0) or 0 for key in client.scan_iter())


@pytest.mark.parametrize("size", [0, 700, 20_000])
def test_what_is_counted_is_near_what_redis_takes(backlog: Backlog, size: int) -> None:
    # Given lanes whose messages are offered in two steps, and some of which are nacked
    lanes = [Lane(number, LANE.region) for number in range(1, 11)]
    for lane in lanes:
        configure(backlog, lane, mode=Mode.PUSH, action="new")
    offer_texts(backlog, [LANE], [text_of_size(0)])  # Redis keeps the script
    backlog.client.delete("ph:bytes")
    empty = taken(backlog)
    offer_texts(backlog, lanes, [text_of_size(size)] * 10)
    offer_texts(backlog, lanes, [text_of_size(size)] * 200)
    # Then the count is near the memory that was taken
    assert 0.6 < counted(backlog) / (taken(backlog) - empty) < 1.6


def test_a_retry_counts_with_its_own_size(backlog: Backlog) -> None:
    configure(backlog, LANE, mode=Mode.PUSH, action="new")
    offer_texts(backlog, [LANE], [text_of_size(50_000)] * 3)
    before = counted(backlog)
    settle(backlog, Verdict.NACK, *fetched_ids(backlog), delay_ms=60_000)
    assert before > 150_000
    assert 3 * 500 < counted(backlog) < 3 * 2_000


def test_what_a_lane_leaves_to_the_database_is_no_longer_counted(backlog: Backlog) -> None:
    """An endpoint that goes down with large messages has small retries afterwards, and not the mean of both."""
    configure(backlog, LANE, mode=Mode.PUSH, action="new")
    offer_texts(backlog, [LANE], [text_of_size(50_000)] * 15)
    lane_change(backlog, LANE, backoff_level=5.5)
    settle(backlog, Verdict.NACK, *fetched_ids(backlog), delay_ms=60_000)
    assert waiting(backlog) == 0, "a handful of large messages is too much"
    assert 3 * 500 < counted(backlog) < 3 * 2_000


@pytest.mark.parametrize(
    "remove",
    [
        lambda backlog: backlog.forget(LANE),
        lambda backlog: configure(backlog, LANE, mode=Mode.IDLE, action="known"),
        lambda backlog: backlog.remove(LANE, ids(60)),
    ],
    ids=["forgotten", "paused", "removed"],
)
def test_nothing_is_counted_of_a_lane_that_is(backlog: Backlog, remove: Any) -> None:
    configure(backlog, LANE, mode=Mode.PUSH, action="new")
    offer(backlog, *ids(60))
    settle(backlog, Verdict.DROP, *fetched_ids(backlog))
    settle(backlog, Verdict.DROP, *fetched_ids(backlog))
    remove(backlog)
    settlement = Settlement()
    for message_id in ids(60):
        settlement.add(str(message_id), Verdict.DROP)
    backlog.settle({LANE: settlement}, dice=0.5, finished={})
    assert counted(backlog) == 0


def test_over_the_budget_a_lane_keeps_a_few_windows_full(backlog: Backlog) -> None:
    configure(backlog, LANE, mode=Mode.PUSH, action="new")
    backlog.client.incrby("ph:bytes", FULL)
    # Given a lane with a window of 3, which takes what it can, and nothing behind that
    offer(backlog, *ids(60))
    assert fetched_ids(backlog) == ids(3)
    assert waiting(backlog) == 3 * WINDOWS - 3
    assert (lane_state(backlog, LANE).spilled, lane_state(backlog, LANE).cursor) == (True, FIRST + 3 * WINDOWS)
    # When acks have doubled the window, then it reads on from there, without large payloads
    settle(backlog, Verdict.ACK, *ids(3))
    [request] = page_requests(backlog, region=LANE.region)
    assert (request.from_id, request.rows, request.is_lean) == (FIRST + 3 * WINDOWS, 6 * WINDOWS // 2, True)


@pytest.mark.parametrize(("latency_ms", "kept"), [(900, 60 - 3), (1100, 3 * WINDOWS)])
def test_behind_an_endpoint_that_takes_seconds_a_lane_keeps_a_few_windows(
    backlog: Backlog, latency_ms: float, kept: int
) -> None:
    configure(backlog, LANE, mode=Mode.PUSH, action="new")
    lane_change(backlog, LANE, results_seen=1, ack_ratio=1, latency_ms=latency_ms)
    offer(backlog, *ids(10))
    offer(backlog, *ids(50, start=10))
    assert waiting(backlog) == kept


def test_an_ordered_lane_reads_on_behind_an_endpoint_that_takes_seconds(backlog: Backlog) -> None:
    """All messages of a few windows may be of one key."""
    configure(backlog, LANE, mode=Mode.PUSH, action="new", ordered=True)
    lane_change(backlog, LANE, results_seen=1, ack_ratio=1, latency_ms=1100)
    offer(backlog, *ids(1))
    [request] = page_requests(backlog, region=LANE.region)
    assert request.rows == backlog.limit // 2


def test_over_the_budget_nothing_joins_a_backlog_and_no_large_message_is_taken(backlog: Backlog) -> None:
    configure(backlog, LANE, mode=Mode.PUSH, action="new")
    lane_change(backlog, LANE, results_seen=1, ack_ratio=1)
    offer(backlog, *ids(40))
    backlog.client.incrby("ph:bytes", FULL)
    offer(backlog, *ids(5, start=40))
    assert waiting(backlog) == 37
    other = Lane(8, LANE.region)
    configure(backlog, other, mode=Mode.PUSH, action="new")
    offer_texts(backlog, [other], [text_of_size(100), text_of_size(5000), text_of_size(100)])
    assert are_known(backlog, other, ids(3)) == [True, False, False]


def test_a_page_that_was_requested_before_redis_was_full_is_read_again_without_large_payloads(
    backlog: Backlog,
) -> None:
    request = requested_page(backlog, ordered=False)
    assert not request.is_lean
    backlog.client.incrby("ph:bytes", FULL)
    offer_page(backlog, request, *ids(20))
    assert are_known(backlog, LANE, ids(20)) == [False] * 20
    [again] = page_requests(backlog, region=LANE.region)
    assert (again.from_id, again.number, again.is_lean) == (request.from_id, request.number + 1, True)
    offer_page(backlog, again, *ids(8))
    assert all(are_known(backlog, LANE, ids(8)))


def test_a_pull_lane_over_the_budget_keeps_in_proportion_to_its_leases(backlog: Backlog) -> None:
    configure(backlog, LANE, mode=Mode.PULL, action="new")
    backlog.client.incrby("ph:bytes", FULL)
    offer(backlog, *ids(60))
    assert waiting(backlog) == HANDFUL
    leases = backlog.lease(LANE, count=HANDFUL, duration_ms=60_000, countdown_ms=(0, 0))
    assert leases is not None
    assert isinstance(leases.page, PageRequest)
    assert (len(leases.deliveries), leases.page.rows) == (HANDFUL, HANDFUL * WINDOWS // 2)


def test_a_lane_that_an_older_version_wrote_is_counted_when_it_is_used(backlog: Backlog) -> None:
    configure(backlog, LANE, mode=Mode.PUSH, action="new")
    offer(backlog, *ids(40))
    client = backlog.client
    client.hdel(LANE.state_key, STATE_CODES["held"], STATE_CODES["held_bytes"])
    client.delete("ph:bytes")
    offer(backlog, *ids(5, start=40))
    assert 45 * 500 < counted(backlog) < 45 * 2_000
