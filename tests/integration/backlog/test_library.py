"""The library of verbs on a real Redis: beside others, in a Redis that is full, and without traces of earlier calls."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from deliveries.backlog.backlog import Backlog
from deliveries.backlog.codes import Mode, Place
from deliveries.backlog.connection import client_of
from deliveries.backlog.records import Lane, Offer, OfferedLane, OfferedMessage, Settlement, bell_key, work_key
from deliveries.backlog.scripts import LIBRARY_PREFIX, MOST_LIBRARIES, library
from deliveries.rules.ids import EPOCH_MS, first_id_at
from deliveries.rules.outcome import Verdict
from deliveries.rules.taskmessage import escape_message, queue_name
from tests.lanes import are_known, configure

LANE, OTHER = Lane(7, "here"), Lane(8, "here")
FIRST = first_id_at(EPOCH_MS + 1_000_000)


@pytest.fixture
def backlog(redis_url: str) -> Backlog:
    return Backlog(client_of(redis_url), limit=10)


@pytest.fixture
def others(backlog: Backlog) -> Iterator[list[str]]:
    """Load libraries as older versions of PushHub would have, and one that is not PushHub's."""
    backlog.client.function_flush()
    names = [f"{LIBRARY_PREFIX}{number}" for number in range(MOST_LIBRARIES)]
    for name in [*names, "neighbours"]:
        backlog.client.function_load(
            f"#!lua name={name}\nredis.register_function('of_{name}', function() return 1 end)"
        )
    yield names
    backlog.client.function_flush()


def offer(backlog: Backlog, lane: Lane = LANE) -> None:
    text = escape_message({"messageId": str(FIRST), "publishTime": "t"})
    backlog.offer([Offer(lane.region, [OfferedLane(lane, Mode.PUSH)], [OfferedMessage(FIRST, text)])])


def has(backlog: Backlog, name: str) -> bool:
    return bool(backlog.client.function_list(name))


def test_libraries_of_older_versions_go_when_they_are_many(backlog: Backlog, others: list[str]) -> None:
    offer(backlog)
    assert not any(has(backlog, name) for name in others)
    assert has(backlog, "neighbours") and has(backlog, library().name)


def test_a_version_that_still_runs_keeps_its_library(backlog: Backlog, others: list[str]) -> None:
    backlog.client.function_delete(others.pop())
    offer(backlog)
    assert all(has(backlog, name) for name in others)


def test_a_full_redis_settles_messages_and_takes_no_new_ones(backlog: Backlog) -> None:
    configure(backlog, LANE, mode=Mode.PUSH, action="new")
    offer(backlog)
    backlog.scripts.fetch(keys=[queue_name("here"), work_key("w")], args=["here", "1", 9, 10])
    settlement = Settlement()
    settlement.add(str(FIRST), Verdict.ACK, 1.0)
    backlog.client.config_set("maxmemory", 1)
    try:
        with pytest.raises(redis.OutOfMemoryError):
            offer(backlog, OTHER)
        assert backlog.settle({LANE: settlement}, dice=0.5, finished={})
    finally:
        backlog.client.config_set("maxmemory", 0)
    assert are_known(backlog, LANE, [FIRST]) == [False]
    assert not backlog.client.exists(f"{OTHER.root}:s")


def test_a_nack_counts_if_redis_has_lost_the_library_meanwhile(backlog: Backlog) -> None:
    # Given the last message of a batch, and a newer version that has taken the library away
    configure(backlog, LANE, mode=Mode.PUSH, action="new")
    offer(backlog)
    backlog.scripts.fetch(keys=[queue_name("here"), work_key("w")], args=["here", "1", 9, 10])
    backlog.client.function_flush()
    # When it is nacked
    settlement = Settlement()
    settlement.add(str(FIRST), Verdict.NACK, 1.0, batch="w/1")
    settlement.returned += [60_000, "the next attempt"]
    backlog.settle({LANE: settlement}, dice=0.5, finished={work_key("w"): ["1"]})
    # Then it is retried, and its token is free
    assert backlog.client.hget(LANE.places_key, str(FIRST)) == Place.RETRYING.encode()
    assert not backlog.client.exists(work_key("w"))


def test_a_call_leaves_nothing_to_the_next_one(backlog: Backlog) -> None:
    # Given results of a worker that takes messages next, so that nobody need be rung
    configure(backlog, LANE, mode=Mode.PUSH, action="new")
    backlog.scripts.settle(keys=[LANE.root], args=[10, 0.5, 1, FIRST, "a", 1.0, "", "", ""])
    backlog.client.delete(bell_key("here"))
    # When the next call brings a message that is due
    offer(backlog)
    # Then it rings
    assert backlog.client.exists(bell_key("here"))
