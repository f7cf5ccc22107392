"""Offers to ordered lanes: a lane takes one if it lacks no earlier message of the keys, and else reads the database."""

from __future__ import annotations

import pytest

from deliveries.backlog.backlog import Backlog
from deliveries.backlog.codes import Mode
from deliveries.backlog.records import Lane, Offer, OfferedLane, OfferedMessage, Page, PageRequest, key_digest
from deliveries.rules.outcome import Verdict
from tests.integration.backlog.test_backlog import FIRST, LANE, fetched_ids, ids, settle, task, text
from tests.integration.backlog.test_backlog import backlog as backlog
from tests.lanes import are_known, configure, lane_change, lane_state, page_requests

LAST = f"{LANE.root}:t"


@pytest.fixture
def lane(backlog: Backlog) -> Backlog:
    configure(backlog, LANE, mode=Mode.PUSH, action="new", ordered=True)
    return backlog


def keyed(message_id: int, key: str, before: int | None) -> OfferedMessage:
    return OfferedMessage(message_id, text(message_id), key_digest(key), before)


def offer_keyed(backlog: Backlog, *messages: OfferedMessage, lane: Lane = LANE) -> None:
    backlog.offer([Offer(lane.region, [OfferedLane(lane, Mode.PUSH, ordered=True)], messages)])


def takes(backlog: Backlog, *messages: OfferedMessage) -> bool:
    """Offer messages, and return whether the lane has taken them all, and not left them to the database."""
    offer_keyed(backlog, *messages)
    taken = are_known(backlog, LANE, [message.message_id for message in messages])
    assert all(taken) != lane_state(backlog, LANE).spilled
    return all(taken)


def test_messages_without_keys_and_first_ones_of_their_keys_are_taken(lane: Backlog) -> None:
    assert takes(lane, keyed(FIRST, "", 0), keyed(FIRST + 1, "a", 0), keyed(FIRST + 2, "b", 0))
    assert fetched_ids(lane) == ids(3)


def test_a_message_is_taken_behind_the_one_before_it_and_waits_for_that(lane: Backlog) -> None:
    assert takes(lane, keyed(FIRST, "a", 0), keyed(FIRST + 1, "a", FIRST))
    assert takes(lane, keyed(FIRST + 2, "a", FIRST + 1))
    assert fetched_ids(lane) == ids(1)
    settle(lane, Verdict.ACK, FIRST)
    assert fetched_ids(lane, batch="2") == ids(1, start=1)


def test_a_message_is_taken_behind_one_that_waits_however_long_ago_that_came(lane: Backlog) -> None:
    assert takes(lane, keyed(FIRST, "a", 0))
    lane.client.delete(LAST)
    assert takes(lane, keyed(FIRST + 1, "a", FIRST))


def test_a_message_is_taken_if_the_one_before_it_has_come_and_is_settled(lane: Backlog) -> None:
    assert takes(lane, keyed(FIRST, "a", 0))
    assert fetched_ids(lane) == ids(1)
    settle(lane, Verdict.ACK, FIRST)
    assert not any(are_known(lane, LANE, ids(1)))
    assert takes(lane, keyed(FIRST + 1, "a", FIRST))


@pytest.mark.parametrize("before", [FIRST + 1, None], ids=["that has not come", "that nobody knows"])
def test_behind_a_message_the_database_is_read(lane: Backlog, before: int | None) -> None:
    assert takes(lane, keyed(FIRST, "a", 0))
    assert not takes(lane, keyed(FIRST + 2, "a", before))
    [request] = page_requests(lane, region=LANE.region)
    assert request.from_id <= FIRST + 1


@pytest.mark.parametrize(
    "offered",
    [keyed(FIRST + 2, "a", FIRST + 1), keyed(FIRST + 2, "a", 0), keyed(FIRST + 5, "a", 0)],
    ids=["whose one before has not come", "before another one", "that has come itself"],
)
def test_a_message_that_comes_after_a_later_one_of_its_key_is_read(lane: Backlog, offered: OfferedMessage) -> None:
    # Given a message with an id from the future, as a clock was ahead, which is settled
    assert takes(lane, keyed(FIRST + 5, "a", 0))
    assert fetched_ids(lane) == ids(1, start=5)
    settle(lane, Verdict.ACK, FIRST + 5)
    # When one of the key comes that was published before it, then it doesn't pass for the next one
    assert not takes(lane, offered)


def test_a_lane_that_reads_the_database_takes_nothing_until_it_has_read_all(lane: Backlog) -> None:
    # Given a page that was read before one more message was offered
    assert not takes(lane, keyed(FIRST + 1, "a", FIRST))
    [request] = page_requests(lane, region=LANE.region)
    assert not takes(lane, keyed(FIRST + 2, "b", 0))
    offer_rows(lane, request, {FIRST: "a", FIRST + 1: "a"})
    # When the next page has that one
    assert not takes(lane, keyed(FIRST + 3, "b", FIRST + 2))
    [request] = page_requests(lane, region=LANE.region)
    offer_rows(lane, request, {FIRST + 2: "b", FIRST + 3: "b"})
    # Then the lane knows the last message of each key, also when they are settled
    settle(lane, Verdict.ACK, *ids(4))
    assert not any(are_known(lane, LANE, ids(4)))
    assert takes(lane, keyed(FIRST + 4, "a", FIRST + 1), keyed(FIRST + 5, "b", FIRST + 3))


def offer_rows(backlog: Backlog, request: PageRequest, rows: dict[int, str]) -> None:
    """Offer the last page: messages and their keys."""
    messages = [(i, task(i, generation=request.generation)) for i in rows]
    backlog.offer_pages([Page(request, messages, max(rows) + 1, True, [key_digest(key) for key in rows.values()])])


def test_a_late_offer_is_not_taken_as_pages_have_had_its_message(lane: Backlog) -> None:
    # Given a lane that reads the database, where messages are whose offers have not come
    assert not takes(lane, keyed(FIRST + 3, "c", None))
    [request] = page_requests(lane, region=LANE.region)
    offer_rows(lane, request, dict(zip(ids(4), ["a", "b", "", "c"], strict=True)))
    lane_change(lane, LANE, window=4)
    configure(lane, LANE, mode=Mode.PUSH, action="known", ordered=True)
    assert fetched_ids(lane) == ids(4)
    settle(lane, Verdict.ACK, *ids(4))
    # When the offers come, then the messages don't go out again
    for late in (keyed(FIRST, "a", 0), keyed(FIRST + 1, "b", 0), keyed(FIRST + 2, "", 0)):
        assert not takes(lane, late)
        [request] = page_requests(lane, region=LANE.region)
        lane.offer_pages([Page(request, [], request.from_id, True, [])])
        assert not lane_state(lane, LANE).spilled
    assert fetched_ids(lane, batch="2") == []


def test_an_unknown_lane_is_made_as_an_ordered_one_that_reads_the_database(backlog: Backlog) -> None:
    offer_keyed(backlog, keyed(FIRST, "a", 0))
    state = lane_state(backlog, LANE)
    assert (state.ordered, state.spilled, state.cursor) == (True, True, 0)


def test_a_plain_lane_that_is_offered_the_same_messages_keeps_nothing_of_their_keys(lane: Backlog) -> None:
    plain = Lane(8, LANE.region)
    configure(lane, plain, mode=Mode.PUSH, action="new")
    lanes = [OfferedLane(LANE, Mode.PUSH, ordered=True), OfferedLane(plain, Mode.PUSH)]
    for number, key in enumerate("aab"):
        lane.offer([Offer(LANE.region, lanes, [keyed(FIRST + number, key, FIRST + number - 1 if number == 1 else 0)])])
    assert all(are_known(lane, LANE, ids(3)) + are_known(lane, plain, ids(3)))
    assert lane.client.exists(f"{LANE.root}:o", LAST) == 2
    assert lane.client.exists(f"{plain.root}:o", f"{plain.root}:t") == 0


def test_a_lane_knows_the_last_messages_of_a_bounded_number_of_keys(backlog: Backlog) -> None:
    backlog = Backlog(backlog.client, limit=20_000)
    configure(backlog, LANE, mode=Mode.PUSH, action="new", ordered=True)
    lane_change(backlog, LANE, results_seen=1, ack_ratio=1)
    offer_keyed(backlog, *(keyed(i, str(i), 0) for i in ids(10_100)))
    assert lane_state(backlog, LANE).spilled is False
    assert backlog.client.hlen(LAST) == 10_000
    assert 0 < backlog.client.ttl(LAST) <= 90
    backlog.forget(LANE)
    assert not backlog.client.exists(LAST)
