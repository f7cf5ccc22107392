"""What was made for a lane and arrives after the lane was made anew (common.lua), because of a wipe or a seek."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from deliveries.backlog.backlog import Backlog
from deliveries.backlog.codes import Mode, Place
from deliveries.backlog.records import Late, Leases, Page, PageRequest, Settlement
from deliveries.rules.outcome import Verdict
from deliveries.rules.taskmessage import generation_of, parse_own
from tests.integration.backlog.test_backlog import (
    FIRST,
    LANE,
    fetch,
    fetched_ids,
    held,
    ids,
    offer,
    requested_page,
    task,
)
from tests.integration.backlog.test_backlog import backlog as backlog
from tests.lanes import configure, lane_change, lane_state, page_requests

KEY = "k" * 24


@pytest.fixture(params=["wipe", "forget"])
def remove(request: pytest.FixtureRequest, backlog: Backlog) -> Callable[[], object]:
    """Remove the lane from Redis: with everything else, or alone."""
    return backlog.client.flushall if request.param == "wipe" else lambda: backlog.forget(LANE)


def make_anew(backlog: Backlog, *, ordered: bool, mode: Mode = Mode.PUSH) -> PageRequest:
    """Do what a rebuild does, and return the request for the first page."""
    configure(backlog, LANE, mode=mode, action="known", ordered=ordered)
    [request] = page_requests(backlog, region=LANE.region)
    return request


def offer_keyed(backlog: Backlog, request: PageRequest, *message_ids: int, is_last: bool = False) -> None:
    """Offer a page of messages with the same ordering key."""
    messages = [(message_id, task(message_id, generation=request.generation)) for message_id in message_ids]
    orderings = [KEY] * len(messages)
    backlog.offer_pages([Page(request, messages, next_id=message_ids[-1] + 1, is_last=is_last, orderings=orderings)])


def settle(backlog: Backlog, verdict: Verdict, message_id: int, *, generation: str) -> Late | None:
    settlement = Settlement()
    settlement.add(str(message_id), verdict, 1.0, generation=generation)
    if verdict in (Verdict.NACK, Verdict.RELEASE):
        settlement.returned += [0, task(message_id, attempt=2, generation=generation)]
    return backlog.settle({LANE: settlement}, dice=0.5, finished={})[LANE].late


def place_of(backlog: Backlog, message_id: int) -> bytes | None:
    place: bytes | None = backlog.client.hget(LANE.places_key, str(message_id))
    return place


def test_a_lane_that_is_made_anew_has_another_generation(backlog: Backlog, remove: Callable[[], object]) -> None:
    configure(backlog, LANE, mode=Mode.PUSH, action="new")
    first = lane_state(backlog, LANE).generation
    remove()
    offer(backlog, FIRST)
    second = lane_state(backlog, LANE).generation
    configure(backlog, LANE, mode=Mode.PUSH, action="known")
    assert lane_state(backlog, LANE).generation == second
    assert len({first, second, ""}) == 3


def test_the_messages_of_a_lane_carry_its_generation(backlog: Backlog) -> None:
    # Given a generation that is drawn for a lane
    drawing = Backlog(backlog.client, limit=10, draw_generation=lambda: "drawn")
    configure(drawing, LANE, mode=Mode.PUSH, action="new")
    # When messages are offered, to the lane as it is and behind others
    offer(backlog, *ids(4))
    offer(backlog, *ids(1, start=4))
    # Then all have it
    messages = fetch(backlog)[0] + backlog.client.lrange(f"{LANE.root}:b", 0, -1)
    task_ids = [parts[0] for message in messages if (parts := parse_own(message))]
    assert list(map(generation_of, task_ids)) == ["drawn"] * 5


def test_a_page_that_was_read_before_a_wipe_overtakes_no_message(backlog: Backlog) -> None:
    # Given a lane whose first message is pushed while two wait for it, and a worker that reads the three after them
    first = requested_page(backlog, ordered=True)
    offer_keyed(backlog, first, *ids(3), is_last=True)
    assert fetched_ids(backlog) == ids(1)
    offer(backlog, FIRST + 3)
    [late] = page_requests(backlog, region=LANE.region)
    # When Redis is wiped, a publish makes the lane anew, and the page arrives
    backlog.client.flushall()
    offer(backlog, FIRST + 6, ordered=True)
    offer_keyed(backlog, late, *ids(3, start=3))
    # Then nothing is pushed before the database has been read from the start
    assert fetched_ids(backlog, batch="2") == []


@pytest.mark.parametrize("ordered", [True, False])
def test_a_late_page_with_the_number_of_the_requested_one_does_not_stand_for_it(
    backlog: Backlog, remove: Callable[[], object], ordered: bool
) -> None:
    # Given a page that is being read, and a lane that was made anew and asks for its first page, under the same number
    late = requested_page(backlog, ordered=ordered)
    remove()
    request = make_anew(backlog, ordered=ordered)
    assert request.number == late.number
    # When the late page arrives and says that the database has no more
    offer_keyed(backlog, late, *ids(3, start=3), is_last=True)
    # Then the lane still waits for the page that it asked for
    state = lane_state(backlog, LANE)
    assert (state.spilled, state.cursor) == (True, 0)
    assert fetched_ids(backlog) == []
    offer_keyed(backlog, request, *ids(6), is_last=True)
    assert fetched_ids(backlog) == (ids(1) if ordered else ids(3))


@pytest.mark.parametrize("verdict", [Verdict.ACK, Verdict.NACK, Verdict.RELEASE, Verdict.DROP, Verdict.DEAD_LETTER])
def test_a_late_result_leaves_the_token_and_the_key_to_the_worker_that_has_them(
    backlog: Backlog, remove: Callable[[], object], verdict: Verdict
) -> None:
    # Given a message that one worker pushes, and that another pushes for the lane that was made anew
    before = requested_page(backlog, ordered=True)
    offer_keyed(backlog, before, *ids(2), is_last=True)
    assert fetched_ids(backlog, worker="one") == ids(1)
    remove()
    now = make_anew(backlog, ordered=True)
    offer_keyed(backlog, now, *ids(2), is_last=True)
    assert fetched_ids(backlog, worker="two") == ids(1)
    # When the first worker has a result
    settle(backlog, verdict, FIRST, generation=before.generation)
    # Then the next message of the key waits for the result of the other, and the window has learnt nothing
    assert held(backlog) == 1
    assert place_of(backlog, FIRST) == Place.OUTSTANDING.encode()
    assert fetched_ids(backlog, batch="2") == []
    assert lane_state(backlog, LANE).window == 3
    settle(backlog, Verdict.ACK, FIRST, generation=now.generation)
    assert fetched_ids(backlog, batch="3") == ids(1, start=1)


@pytest.mark.parametrize("verdict", [Verdict.ACK, Verdict.DROP, Verdict.DEAD_LETTER])
def test_what_a_late_result_has_ended_is_named_if_it_waits_and_forgotten_on_demand(
    backlog: Backlog, remove: Callable[[], object], verdict: Verdict
) -> None:
    # Given five messages that are pushed, and a lane that was made anew, whose window has room for three of them
    before = requested_page(backlog, ordered=False)
    lane_change(backlog, LANE, window=5)
    offer_keyed(backlog, before, *ids(5), is_last=True)
    assert fetched_ids(backlog) == ids(5)
    remove()
    now = make_anew(backlog, ordered=False)
    offer_keyed(backlog, now, *ids(5), is_last=True)
    assert fetched_ids(backlog, worker="two") == ids(3)
    # When one of those ends, and one that waits
    results = [settle(backlog, verdict, message_id, generation=before.generation) for message_id in (FIRST, FIRST + 4)]
    # Then the latter is named, and nothing has changed
    assert results == [None, Late(now.generation, [FIRST + 4])]
    assert place_of(backlog, FIRST + 4) == Place.WAITING.encode()
    # And what waits can be forgotten in this generation
    for generation in (before.generation, now.generation):
        backlog.remove(LANE, [FIRST, FIRST + 4], generation=generation, only_waiting=True)
        is_kept = generation != now.generation
        assert (place_of(backlog, FIRST + 4) is not None) == is_kept
    assert place_of(backlog, FIRST) == Place.OUTSTANDING.encode()
    assert held(backlog) == 3


def test_results_of_two_generations_are_settled_in_one_call(backlog: Backlog) -> None:
    # Given three messages in a lane that was made anew
    before = requested_page(backlog, ordered=False).generation
    backlog.client.flushall()
    request = make_anew(backlog, ordered=False)
    offer_keyed(backlog, request, *ids(3), is_last=True)
    assert fetched_ids(backlog) == ids(3)
    # When a worker has results for the lanes of before and of now, and of a message of an older version
    settlement = Settlement()
    for message_id, generation in zip(ids(3), (before, request.generation, ""), strict=True):
        settlement.add(str(message_id), Verdict.NACK, 1.0, generation=generation)
        settlement.returned += [60_000, f"task {message_id}"]
    backlog.settle({LANE: settlement}, dice=0.5, finished={})
    # Then all but the first count, and each has its own message
    places = [place_of(backlog, message_id) for message_id in ids(3)]
    assert places == [Place.OUTSTANDING.encode(), Place.RETRYING.encode(), Place.RETRYING.encode()]
    messages = backlog.client.hmget(f"{LANE.root}:m", list(map(str, ids(3))))
    assert messages == [None, b"task %d" % (FIRST + 1), b"task %d" % (FIRST + 2)]


def test_a_dead_workers_batch_of_another_generation_is_not_put_back(backlog: Backlog) -> None:
    # Given a worker that died with a message, and another that pushes it for the lane that was made anew
    configure(backlog, LANE, mode=Mode.PUSH, action="new")
    offer(backlog, FIRST)
    backlog.beat("dead")
    fetch(backlog, worker="dead")
    backlog.forget(LANE)
    request = make_anew(backlog, ordered=False)
    offer_keyed(backlog, request, FIRST, is_last=True)
    assert fetched_ids(backlog, worker="alive") == ids(1)
    # When the dead worker is noticed
    backlog.client.zadd("ph:workers", {"dead": 1})
    # Then the message does not go out once more
    assert backlog.beat("alive").put_back == 0
    assert fetched_ids(backlog, worker="alive", batch="2") == []


def test_tokens_that_were_lost_in_another_generation_are_not_taken_back(backlog: Backlog) -> None:
    before = requested_page(backlog, ordered=True).generation
    backlog.forget(LANE)
    request = make_anew(backlog, ordered=True)
    offer_keyed(backlog, request, FIRST, is_last=True)
    assert fetched_ids(backlog) == ids(1)
    assert backlog.repair(LANE, ids(1), generation=before) == 0
    assert held(backlog) == 1
    assert backlog.repair(LANE, ids(1), generation=request.generation) == 1


@pytest.fixture
def lease_of_before(backlog: Backlog, remove: Callable[[], object]) -> Leases:
    """Leases of two messages of a key; then the lane was made anew, and both were leased again, as often as before."""
    configure(backlog, LANE, mode=Mode.PULL, action="new", ordered=True)
    before = page_and_lease(backlog)
    remove()
    page_and_lease(backlog)
    return before


def page_and_lease(backlog: Backlog) -> Leases:
    configure(backlog, LANE, mode=Mode.PULL, action="spill", ordered=True)
    [request] = page_requests(backlog, region=LANE.region)
    offer_keyed(backlog, request, *ids(2), is_last=True)
    leases = backlog.lease(LANE, count=2, duration_ms=600_000, countdown_ms=(0, 0))
    assert leases is not None
    assert [(delivery.message_id, delivery.times) for delivery in leases.deliveries] == pairs(2)
    return leases


def pairs(count: int) -> list[tuple[int, int]]:
    return [(message_id, 1) for message_id in ids(count)]


def test_a_lease_of_another_generation_has_ended(backlog: Backlog, lease_of_before: Leases) -> None:
    generation = lease_of_before.generation
    assert backlog.lost(LANE, pairs(2), generation=generation) == set(ids(2))
    for duration_ms in (60_000, 0):
        ended = backlog.extend(LANE, pairs(2), generation=generation, duration_ms=duration_ms, countdown_ms=(0, 0))
        assert ended == set(ids(2))
    ends_ms = int(backlog.client.zscore(f"{LANE.root}:l", str(FIRST)) or 0)
    backlog.unlease(LANE, [(FIRST, 1, ends_ms)], generation=generation)
    backlog.remove(LANE, ids(1), generation=generation)
    assert [place_of(backlog, message_id) for message_id in ids(2)] == [Place.LEASED.encode()] * 2


def test_an_ack_of_another_generation_comes_too_late_in_an_ordered_lane(
    backlog: Backlog, lease_of_before: Leases
) -> None:
    """Earlier messages of its key may be delivered again, and then so is this one."""
    generation = lane_state(backlog, LANE).generation
    assert backlog.acknowledge(LANE, pairs(2), generation=lease_of_before.generation) == (set(), set(ids(2)))
    assert backlog.acknowledge(LANE, pairs(2), generation=generation) == (set(ids(2)), set())


def test_a_lease_of_an_older_version_counts_in_each_generation(backlog: Backlog) -> None:
    """Processes of a version without generations hand out ack ids for the lanes of newer ones while both run."""
    configure(backlog, LANE, mode=Mode.PULL, action="new", ordered=True)
    leases = page_and_lease(backlog)
    wrong = [(message_id, 2) for message_id in ids(2)]
    assert backlog.lost(LANE, pairs(2), generation="") == set()
    assert backlog.lost(LANE, wrong, generation="") == set(ids(2))
    extended = backlog.extend(LANE, pairs(2), generation="", duration_ms=60_000, countdown_ms=(0, 0))
    assert extended == set()
    ends_ms = int(backlog.client.zscore(f"{LANE.root}:l", str(FIRST + 1)) or 0)
    assert ends_ms != leases.ends_ms
    backlog.unlease(LANE, [(FIRST + 1, 1, ends_ms)], generation="")
    assert place_of(backlog, FIRST + 1) == Place.RETRYING.encode()
    assert backlog.acknowledge(LANE, pairs(2), generation="") == ({FIRST}, {FIRST + 1})


def test_of_a_late_page_and_its_repetition_the_second_repeats_no_message(backlog: Backlog) -> None:
    # Given a page that two workers have read, as the first was late
    late = requested_page(backlog, ordered=True)
    lane_change(backlog, LANE, paging_until_ms=1)
    configure(backlog, LANE, mode=Mode.PUSH, action="known", ordered=True)
    assert page_requests(backlog, region=LANE.region) == [late]
    # When one arrives, its first message is acked, and the other arrives
    offer_keyed(backlog, late, *ids(2), is_last=True)
    assert fetched_ids(backlog) == ids(1)
    settle(backlog, Verdict.ACK, FIRST, generation=late.generation)
    assert fetched_ids(backlog, batch="2") == ids(1, start=1)
    offer_keyed(backlog, late, *ids(2), is_last=True)
    # Then the first message doesn't come after the second
    settle(backlog, Verdict.ACK, FIRST + 1, generation=late.generation)
    assert fetched_ids(backlog, batch="3") == []


@pytest.mark.parametrize(
    "read_again",
    [
        lambda backlog: configure(backlog, LANE, mode=Mode.PUSH, action="spill", ordered=True),
        lambda backlog: backlog.repair(LANE, ids(1), generation=lane_state(backlog, LANE).generation),
    ],
    ids=["the audit", "a lost token"],
)
def test_a_page_is_dropped_if_an_ordered_lane_must_read_the_rows_before_it_again(
    backlog: Backlog, read_again: Callable[[Backlog], object]
) -> None:
    # Given a lane whose first message is pushed while the second waits for it, and a worker that reads the third
    first = requested_page(backlog, ordered=True)
    offer_keyed(backlog, first, *ids(2), is_last=True)
    assert fetched_ids(backlog) == ids(1)
    offer(backlog, FIRST + 2)
    [late] = page_requests(backlog, region=LANE.region)
    # When the lane has to read everything again, and the page arrives
    read_again(backlog)
    settle(backlog, Verdict.ACK, FIRST, generation=late.generation)
    offer_keyed(backlog, late, FIRST + 2, is_last=True)
    # Then the third message doesn't go out before the second
    messages, _, _, pages = fetch(backlog, batch="2")
    assert messages == []
    [request] = PageRequest.parse_all(pages)
    offer_keyed(backlog, request, *ids(2, start=1), is_last=True)
    assert fetched_ids(backlog, batch="3") == ids(1, start=1)
