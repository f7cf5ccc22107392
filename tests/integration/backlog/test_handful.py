"""A lane whose endpoint is down keeps a handful of messages in Redis; the database has the rest."""

from __future__ import annotations

import time
from typing import Any

import pytest

from deliveries.backlog.backlog import Backlog
from deliveries.backlog.codes import PULLER_AWAY_MS, Mode, Place
from deliveries.backlog.connection import client_of
from deliveries.backlog.records import Leases, Offer, OfferedLane, OfferedMessage, Page, PageRequest, Settlement
from deliveries.rules.outcome import Verdict
from deliveries.rules.taskmessage import escape_message
from tests.integration.backlog.test_backlog import (
    FIRST,
    LANE,
    fetch,
    fetched_ids,
    ids,
    ids_of,
    offer,
    offer_page,
    retry_within,
    task,
)
from tests.lanes import are_known, configure, lane_change, lane_state, page_requests

#: As common.lua has them.
HANDFUL, DOWN_LEVEL, WINDOWS = 16, 6, 8


@pytest.fixture
def backlog(redis_url: str) -> Backlog:
    return Backlog(client_of(redis_url), limit=100)


def nack(backlog: Backlog, *message_ids: int, delay_ms: int = 0) -> None:
    settlement = Settlement()
    for message_id in message_ids:
        settlement.add(str(message_id), Verdict.NACK, 1.0)
        settlement.returned += [delay_ms, task(message_id, attempt=2)]
    backlog.settle({LANE: settlement}, dice=0.5, finished={})


def go_down(backlog: Backlog, *message_ids: int) -> None:
    """Let the endpoint nack so often in a row that it counts as down, last these messages."""
    lane_change(backlog, LANE, backoff_level=DOWN_LEVEL - 1, backoff_since_ms=0, resume_ms=0)
    nack(backlog, *message_ids)


def waiting(backlog: Backlog) -> int:
    count: Any = backlog.client.llen(f"{LANE.root}:b")
    return int(count)


def places(backlog: Backlog) -> dict[int, str]:
    found: Any = backlog.client.hgetall(LANE.places_key)
    return {int(name): place.decode() for name, place in found.items()}


def page(backlog: Backlog, request: PageRequest, rows: list[int]) -> list[int]:
    """Offer the rows that a worker reads for a request, and return them."""
    read = [row for row in rows if row >= request.from_id][: request.rows]
    known = dict(zip(read, are_known(backlog, LANE, read), strict=True))
    messages = [(row, task(row)) for row in read if row > request.read_to or not known[row]]
    backlog.offer_pages([Page(request, messages, read[-1] + 1, is_last=len(read) < request.rows)])
    return read


def test_an_endpoint_that_goes_down_leaves_its_backlog_to_the_database(backlog: Backlog) -> None:
    # Given 60 messages, of which two are out and one is retried later
    configure(backlog, LANE, mode=Mode.PUSH, action="new")
    offer(backlog, *ids(60))
    assert fetched_ids(backlog) == ids(3)
    nack(backlog, FIRST + 1, delay_ms=50_000)
    # When one more nack says that the endpoint is down
    go_down(backlog, FIRST)
    # Then Redis has only what is out or is retried, and the others are read from the database, a few at a time
    assert places(backlog) == {FIRST: Place.RETRYING, FIRST + 1: Place.RETRYING, FIRST + 2: Place.OUTSTANDING}
    assert waiting(backlog) == 0
    state = lane_state(backlog, LANE)
    assert (state.spilled, state.cursor) == (True, FIRST + 3)
    retry_within(backlog, 600_000, *ids(2))
    nack(backlog, FIRST + 2, delay_ms=600_000)
    [request] = page_requests(backlog, region=LANE.region)
    assert (request.from_id, request.rows, request.is_lean) == (FIRST + 3, HANDFUL // 2, True)


def test_a_lane_takes_more_than_a_few_messages_once_its_endpoint_has_acked(backlog: Backlog) -> None:
    # Given a lane of whose endpoint nothing is known
    configure(backlog, LANE, mode=Mode.PUSH, action="new")
    offer(backlog, *ids(60))
    assert (len(fetched_ids(backlog)), waiting(backlog)) == (3, 3 * WINDOWS - 3)
    assert lane_state(backlog, LANE).cursor == FIRST + 3 * WINDOWS
    # When it nacks, then the lane takes no more
    nack(backlog, FIRST, delay_ms=600_000)
    fetched_ids(backlog)
    assert page_requests(backlog, region=LANE.region) == []
    # But when it acks, then it reads on, as much as any lane
    settlement = Settlement()
    settlement.add(str(FIRST + 1), Verdict.ACK, 1.0)
    backlog.settle({LANE: settlement}, dice=0.5, finished={})
    [request] = page_requests(backlog, region=LANE.region)
    assert (request.from_id, request.rows, request.is_lean) == (FIRST + 3 * WINDOWS, 50, False)


def test_a_pull_lane_keeps_a_handful_until_a_puller_comes(backlog: Backlog) -> None:
    def lease() -> Leases:
        leases = backlog.lease(LANE, count=100, duration_ms=600_000, countdown_ms=(0, 0))
        assert leases is not None
        return leases

    # Given a pull lane without a puller
    configure(backlog, LANE, mode=Mode.PULL, action="new")
    offer(backlog, *ids(60))
    assert waiting(backlog) == HANDFUL
    # When a puller comes, then it gets them, and reads as many as for any lane
    leases = lease()
    assert leases.page is not None
    assert (len(leases.deliveries), leases.page.rows) == (HANDFUL, 50)
    offer_page(backlog, leases.page, *ids(60 - HANDFUL, start=HANDFUL), is_last=True)
    assert len(lease().deliveries) == 60 - HANDFUL
    # And what is published while it is there waits in Redis
    backlog.remove(LANE, ids(60))
    offer(backlog, *ids(60, start=60))
    assert waiting(backlog) == 60
    # But when it is away for long, then only a handful does
    assert len(lease().deliveries) == 60
    backlog.remove(LANE, ids(60, start=60))
    lane_change(backlog, LANE, pumped_ms=time.time() * 1000 - PULLER_AWAY_MS - 1000)
    offer(backlog, *ids(60, start=120))
    assert waiting(backlog) == HANDFUL


def test_a_lane_that_was_down_sends_each_message_once(backlog: Backlog) -> None:
    configure(backlog, LANE, mode=Mode.PUSH, action="new")
    offer(backlog, *ids(60))
    go_down(backlog, *fetched_ids(backlog))
    owed, sent = ids(60), []
    lane_change(backlog, LANE, resume_ms=0)
    for batch in range(1000):
        configure(backlog, LANE, mode=Mode.PUSH, action="known")
        reply = fetch(backlog, batch=str(batch))
        out = ids_of(reply)
        sent += out
        settlement = Settlement()
        for message_id in out:
            owed.remove(message_id)
            settlement.add(str(message_id), Verdict.ACK, 1.0)
        backlog.settle({LANE: settlement}, dice=0.5, finished={})
        for request in [*PageRequest.parse_all(reply[3]), *page_requests(backlog, region=LANE.region)]:
            page(backlog, request, owed)
        if not owed:
            break
    assert sent == ids(60)


def offer_rows(backlog: Backlog, request: PageRequest, *, failed: list[int], fresh: list[int], is_last: bool) -> None:
    """Offer a page of rows of which some have failed before."""
    messages = [(row, task(row, attempt=3 if row in failed else 1)) for row in sorted([*failed, *fresh])]
    last = max([request.from_id - 1, *failed, *fresh])
    backlog.offer_pages([Page(request, messages, last + 1, is_last=is_last)])


def backing_off_with_retries(backlog: Backlog, count: int, *, level: int = DOWN_LEVEL) -> None:
    """Let a lane in backoff have retries alone, and the database more: it reads from FIRST + `count` on."""
    configure(backlog, LANE, mode=Mode.PUSH, action="new")
    configure(backlog, LANE, mode=Mode.PUSH, action="spill", from_id=FIRST)
    lane_change(backlog, LANE, cursor=FIRST, backoff_level=level)
    [request] = page_requests(backlog, region=LANE.region)
    offer_rows(backlog, request, failed=ids(count), fresh=[], is_last=False)


def wake(backlog: Backlog) -> list[int]:
    """End the lane's pause, and return what goes out."""
    lane_change(backlog, LANE, resume_ms=0)
    configure(backlog, LANE, mode=Mode.PUSH, action="known")
    return fetched_ids(backlog, batch=str(time.monotonic_ns()))


def test_rows_that_have_failed_before_are_retries_and_the_lane_reads_on(backlog: Backlog) -> None:
    # Given a lane that Redis has lost
    configure(backlog, LANE, mode=Mode.PUSH, action="new")
    configure(backlog, LANE, mode=Mode.PUSH, action="spill", from_id=FIRST)
    lane_change(backlog, LANE, cursor=FIRST, resume_ms=time.time() * 1000 + 600_000)
    [request] = page_requests(backlog, region=LANE.region)
    # When the first rows have failed, then none of them waits as if it were new, and more is read until some do
    offer_rows(backlog, request, failed=ids(5), fresh=[], is_last=False)
    assert (set(places(backlog).values()), waiting(backlog)) == ({Place.RETRYING}, 0)
    [request] = page_requests(backlog, region=LANE.region)
    assert (request.from_id, request.is_probe) == (FIRST + 5, False)
    offer_rows(backlog, request, failed=ids(1, start=6), fresh=ids(1, start=5), is_last=True)
    assert [i for i, place in places(backlog).items() if place == Place.WAITING] == [FIRST + 5]
    # And they go out in turn
    assert sorted(wake(backlog)) == ids(3)


def test_a_lane_in_backoff_with_retries_alone_reads_one_message_that_has_not_failed(backlog: Backlog) -> None:
    backing_off_with_retries(backlog, 5)
    # A retry goes out, and it is the turn of another message
    assert wake(backlog) == ids(1)
    nack(backlog, FIRST)
    [request] = page_requests(backlog, region=LANE.region)
    assert (request.rows, request.is_probe, request.from_id) == (1, True, FIRST + 5)
    offer_rows(backlog, request, failed=[], fresh=[FIRST + 50], is_last=False)
    assert lane_state(backlog, LANE).cursor == FIRST + 5, "the rows in between are still to be read"
    assert wake(backlog) == [FIRST + 50]
    # When it fails, it is a retry's turn; once one is acked, the rows are read in order
    nack(backlog, FIRST + 50)
    assert page_requests(backlog, region=LANE.region) == []
    [sent] = wake(backlog)
    settlement = Settlement()
    settlement.add(str(sent), Verdict.ACK, 1.0)
    backlog.settle({LANE: settlement}, dice=0.5, finished={})
    [request] = page_requests(backlog, region=LANE.region)
    assert (request.is_probe, request.from_id, request.read_to) == (False, FIRST + 5, FIRST + 50)


def test_where_every_row_has_failed_retries_take_every_turn(backlog: Backlog) -> None:
    backing_off_with_retries(backlog, 5)
    assert wake(backlog) == ids(1)
    nack(backlog, FIRST, delay_ms=600_000)
    [request] = page_requests(backlog, region=LANE.region)
    offer_rows(backlog, request, failed=[], fresh=[], is_last=True)
    assert lane_state(backlog, LANE).spilled, "a probe says nothing of the rows that have failed"
    assert page_requests(backlog, region=LANE.region) == []
    assert wake(backlog) == ids(1, start=1)


def test_probes_that_fail_do_not_pile_up(backlog: Backlog) -> None:
    backing_off_with_retries(backlog, HANDFUL)
    assert wake(backlog) == ids(1)
    nack(backlog, FIRST)
    [request] = page_requests(backlog, region=LANE.region)
    offer_rows(backlog, request, failed=[], fresh=[FIRST + 50], is_last=False)
    assert wake(backlog) == [FIRST + 50]
    nack(backlog, FIRST + 50)
    assert sorted(places(backlog)) == ids(HANDFUL), "the row is read again from the cursor on"


def test_a_probe_that_fails_is_read_again_though_a_page_on_its_way_lacks_it(backlog: Backlog) -> None:
    # Given a probe that is out, and a page that was read meanwhile and so lacks its message
    backing_off_with_retries(backlog, HANDFUL, level=5)
    wake(backlog)
    nack(backlog, FIRST)
    [request] = page_requests(backlog, region=LANE.region)
    offer_rows(backlog, request, failed=[], fresh=[FIRST + 50], is_last=False)
    assert wake(backlog) == [FIRST + 50]
    lane_change(backlog, LANE, backoff_level=0, resume_ms=9e15)
    configure(backlog, LANE, mode=Mode.PUSH, action="known")
    [late] = page_requests(backlog, region=LANE.region)
    # When the probe fails, and the page arrives
    lane_change(backlog, LANE, backoff_level=5)
    nack(backlog, FIRST + 50)
    assert FIRST + 50 not in places(backlog)
    offer_rows(backlog, late, failed=[FIRST + 60], fresh=[], is_last=True)
    # Then the next page begins with that message
    state = lane_state(backlog, LANE)
    assert (state.spilled, state.cursor) == (True, FIRST + 50)


def test_a_handful_stays_where_it_is(backlog: Backlog) -> None:
    configure(backlog, LANE, mode=Mode.PUSH, action="new")
    offer(backlog, *ids(3 + HANDFUL))
    go_down(backlog, *fetched_ids(backlog))
    assert waiting(backlog) == HANDFUL
    assert not lane_state(backlog, LANE).spilled


def test_a_lane_whose_endpoint_is_down_takes_a_handful_of_new_messages(backlog: Backlog) -> None:
    configure(backlog, LANE, mode=Mode.PUSH, action="new")
    offer(backlog, *ids(4))
    go_down(backlog, *fetched_ids(backlog))
    # Behind another message, and beyond the handful
    offer(backlog, *ids(10, start=4))
    offer(backlog, *ids(40, start=14))
    assert waiting(backlog) == HANDFUL
    assert (lane_state(backlog, LANE).spilled, lane_state(backlog, LANE).cursor) == (True, FIRST + 3 + HANDFUL)


def test_a_larger_message_for_an_endpoint_that_is_down_stays_in_the_database(backlog: Backlog) -> None:
    configure(backlog, LANE, mode=Mode.PUSH, action="new")
    offer(backlog, *ids(3))
    go_down(backlog, *fetched_ids(backlog))
    large = escape_message({"messageId": str(FIRST + 4), "publishTime": "t", "data": "x" * 3000})
    small = escape_message({"messageId": str(FIRST + 3), "publishTime": "t"})
    backlog.offer(
        [
            Offer(
                LANE.region,
                [OfferedLane(LANE, Mode.PUSH)],
                [OfferedMessage(FIRST + 3, small), OfferedMessage(FIRST + 4, large)],
            )
        ]
    )
    assert waiting(backlog) == 1
    assert (lane_state(backlog, LANE).spilled, lane_state(backlog, LANE).cursor) == (True, FIRST + 4)


def test_a_page_that_is_on_its_way_when_an_endpoint_goes_down_is_read_again(backlog: Backlog) -> None:
    # Given a lane with 40 messages, for which a worker reads the next
    configure(backlog, LANE, mode=Mode.PUSH, action="new")
    lane_change(backlog, LANE, results_seen=1, ack_ratio=1)
    offer(backlog, *ids(40))
    out = fetched_ids(backlog)
    configure(backlog, LANE, mode=Mode.PUSH, action="spill", from_id=FIRST + 40)
    [late] = page_requests(backlog, region=LANE.region)
    # When the endpoint goes down and the page arrives
    go_down(backlog, *out)
    offer_page(backlog, late, *ids(20, start=40))
    # Then its messages don't get before those that wait in the database
    assert sorted(places(backlog)) == ids(3)
    assert lane_state(backlog, LANE).cursor == FIRST + 3


def test_offers_behind_a_pause_do_not_pump_the_lane(backlog: Backlog) -> None:
    """A pause is over at a time that the lane has set already: a publish to many lanes that are down stays cheap."""
    configure(backlog, LANE, mode=Mode.PUSH, action="new")
    offer(backlog, *ids(60))
    go_down(backlog, *fetched_ids(backlog))
    lane_change(backlog, LANE, resume_ms=time.time() * 1000 + 60_000)
    before = backlog.client.hgetall(LANE.state_key)
    backlog.client.delete("ph:wake")
    offer(backlog, *ids(5, start=60))
    assert not backlog.client.exists("ph:wake")
    after = backlog.client.hgetall(LANE.state_key)
    assert {name for name in after if after[name] != before.get(name)} <= {b"from"}


def test_offers_behind_others_in_the_database_cost_little(backlog: Backlog) -> None:
    # Given a lane that has read a part of what waits in the database
    configure(backlog, LANE, mode=Mode.PUSH, action="new")
    offer(backlog, *ids(60))
    before = backlog.client.hgetall(LANE.state_key)
    backlog.client.config_resetstat()
    # When more is published, then the lane notes from where on at most, and its state isn't even read
    offer(backlog, *ids(5, start=60))
    assert "cmdstat_hgetall" not in backlog.client.info("commandstats")
    after = backlog.client.hgetall(LANE.state_key)
    assert {name for name in after if after[name] != before.get(name)} <= {b"from"}
    assert (lane_state(backlog, LANE).cursor, waiting(backlog)) == (FIRST + 3 * WINDOWS, 3 * WINDOWS - 3)
    # But one that was committed late, before what it has read, makes it go back
    backlog.client.hdel(LANE.places_key, FIRST + 1)
    offer(backlog, FIRST + 1)
    assert lane_state(backlog, LANE).cursor == FIRST + 1
