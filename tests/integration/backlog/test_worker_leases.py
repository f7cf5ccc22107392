"""The leases of push workers: who takes over messages of ordered lanes, and what late results still mean."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from deliveries.backlog.backlog import Backlog
from deliveries.backlog.codes import Mode, Place
from deliveries.backlog.connection import client_of
from deliveries.backlog.records import Health, Lane, Page, Settlement, Take, work_key
from deliveries.backlog.workerverbs import DEAD_AFTER_MS, LEASE_MS
from deliveries.rules.outcome import Verdict
from deliveries.rules.taskmessage import parse_body, parse_own, queue_name
from tests.integration.backlog.test_backlog import FIRST, LANE, ids, ids_of, offer, requested_page, task
from tests.lanes import configure, lane_change, lane_state, page_requests

PLAIN = Lane(8, LANE.region)
FROZEN, OTHER = "frozen/1", "other/1"


@pytest.fixture
def backlog(redis_url: str) -> Backlog:
    """Two messages of one key and one of another in an ordered lane, and one in a plain lane; two workers."""
    backlog = Backlog(client_of(redis_url), limit=10)
    request = requested_page(backlog, ordered=True)
    messages = [(message_id, task(message_id)) for message_id in ids(3)]
    backlog.offer_pages([Page(request, messages, next_id=FIRST + 3, is_last=True, orderings=["a", "a", "b"])])
    configure(backlog, PLAIN, mode=Mode.PUSH, action="new")
    offer(backlog, FIRST + 3, lane=PLAIN)
    for lease in (FROZEN, OTHER):
        assert beat(backlog, lease, is_new=True).holds_lease
    return backlog


def beat(backlog: Backlog, lease: str, *, is_new: bool = False) -> Health:
    return backlog.beat(lease.partition("/")[0], lease=lease, is_new_lease=is_new)


def fetch(backlog: Backlog, lease: str, batch: str = "1") -> list[int]:
    worker = lease.partition("/")[0]
    arguments: list[Any] = [LANE.region, batch, 100, backlog.limit, lease]
    return ids_of(backlog.scripts.fetch(keys=[queue_name(LANE.region), work_key(worker)], args=arguments))


def settle_and_take(backlog: Backlog, message_id: int, lease: str, batch: str) -> list[int]:
    """Acknowledge a message and take what the queue has, as the settler does."""
    settlement = Settlement()
    settlement.add(str(message_id), Verdict.ACK, 1.0, lease=lease)
    take = Take(work_key(lease.partition("/")[0]), LANE.region, batch, 100, lease)
    _, [taken] = backlog.settle_and_take({LANE: settlement}, dice=0.5, finished={}, takes=[take])
    assert taken.batch == batch
    return [message_id_of(message) for message in taken.messages]


def message_id_of(message: bytes) -> int:
    parts = parse_own(message)
    assert parts is not None
    return parse_body(parts[1]).message_id


def test_the_next_message_of_a_key_is_taken_with_the_result_of_the_one_before(backlog: Backlog) -> None:
    fetch(backlog, OTHER)
    backlog.client.delete(f"ph:bell:{LANE.region}")
    assert settle_and_take(backlog, FIRST, OTHER, "2") == [FIRST + 1]
    assert not backlog.client.exists(f"ph:bell:{LANE.region}"), "no worker is rung for a message that is taken"
    # It is recorded, so that another worker takes it over
    silence(backlog, OTHER)
    assert beat(backlog, FROZEN).put_back == 2
    assert FIRST + 1 in fetch(backlog, FROZEN, "3")


def test_a_worker_without_its_lease_takes_no_message(backlog: Backlog) -> None:
    fetch(backlog, FROZEN)
    silence(backlog, FROZEN)
    beat(backlog, OTHER)
    fetch(backlog, OTHER)
    assert settle_and_take(backlog, FIRST, OTHER, "2") == [FIRST + 1]
    assert settle_and_take(backlog, FIRST + 1, FROZEN, "2") == []


def test_messages_that_were_first_in_the_queue_are_taken_first(backlog: Backlog) -> None:
    fetch(backlog, OTHER)
    lane_change(backlog, PLAIN, results_seen=1, ack_ratio=1)
    offer(backlog, FIRST + 4, lane=PLAIN)
    settle(backlog, FIRST, Verdict.ACK, OTHER)
    assert settle_and_take(backlog, FIRST + 2, OTHER, "2") == [FIRST + 4, FIRST + 1]


def test_messages_of_other_tasks_are_left_to_celery(backlog: Backlog) -> None:
    fetch(backlog, OTHER)
    backlog.client.lpush(queue_name(LANE.region), '{"body": "", "headers": {"task": "another"}}')
    assert settle_and_take(backlog, FIRST, OTHER, "2") == []
    assert backlog.client.exists(f"ph:bell:{LANE.region}")
    assert backlog.client.llen(queue_name(LANE.region)) == 2


def silence(backlog: Backlog, lease: str) -> None:
    """Let the last heartbeat of a lease be just too long ago."""
    backlog.client.zincrby("ph:leases", -LEASE_MS - 1, lease)


def settle(
    backlog: Backlog,
    message_id: int,
    verdict: Verdict,
    lease: str,
    *,
    lane: Lane = LANE,
    batch: str = "1",
    delay_ms: int = 60_000,
) -> None:
    settlement = Settlement()
    settlement.add(str(message_id), verdict, 1.0, lease=lease, batch=f"{lease.partition('/')[0]}/{batch}")
    if verdict in (Verdict.NACK, Verdict.RELEASE):
        settlement.returned += [delay_ms, task(message_id, attempt=2, lane=lane)]
    backlog.settle({lane: settlement}, dice=0.5, finished={})


def place_of(backlog: Backlog, message_id: int) -> str:
    place = backlog.client.hget(LANE.places_key, str(message_id))
    return place.decode() if isinstance(place, bytes) else ""


@pytest.fixture
def taken_over(backlog: Backlog) -> Backlog:
    """The backlog, after the messages of the ordered lane went to the other worker."""
    assert sorted(fetch(backlog, FROZEN)) == [FIRST, FIRST + 2, FIRST + 3]
    silence(backlog, FROZEN)
    assert beat(backlog, OTHER).put_back == 2
    assert sorted(fetch(backlog, OTHER)) == [FIRST, FIRST + 2]
    return backlog


def test_only_messages_of_ordered_lanes_are_taken_over_before_a_worker_is_dead(taken_over: Backlog) -> None:
    client = taken_over.client
    client.zadd("ph:workers", {"frozen": 1})
    assert beat(taken_over, OTHER).put_back == 1, "the message of the plain lane"
    assert fetch(taken_over, OTHER, "2") == [FIRST + 3]
    assert not client.exists(work_key("frozen"))


@pytest.mark.parametrize("verdict", [Verdict.ACK, Verdict.NACK, Verdict.RELEASE, Verdict.DEAD_LETTER])
def test_a_late_result_changes_nothing_while_another_worker_has_the_message(
    taken_over: Backlog, verdict: Verdict
) -> None:
    before = lane_state(taken_over, LANE)
    settle(taken_over, FIRST, verdict, FROZEN)
    after = lane_state(taken_over, LANE)
    assert replace(after, pumped_ms=before.pumped_ms) == before
    assert place_of(taken_over, FIRST) == Place.OUTSTANDING
    assert fetch(taken_over, OTHER, "2") == [], "its key stays locked"
    settle(taken_over, FIRST, Verdict.ACK, OTHER)
    assert fetch(taken_over, OTHER, "3") == [FIRST + 1]


@pytest.mark.parametrize("verdict", [Verdict.NACK, Verdict.RELEASE])
@pytest.mark.parametrize("is_read_again", [False, True])
def test_a_message_that_a_worker_gave_back_is_not_taken_over_from_it(
    backlog: Backlog, verdict: Verdict, is_read_again: bool
) -> None:
    # Given a message that another worker pushes again, while the first worker goes on with the rest of its batch
    fetch(backlog, FROZEN)
    settle(backlog, FIRST, verdict, FROZEN, delay_ms=0)
    if is_read_again:
        configure(backlog, LANE, mode=Mode.PUSH, action="spill", ordered=True)
        [request] = page_requests(backlog, region=LANE.region)
        backlog.offer_pages([Page(request, [(FIRST, task(FIRST))], FIRST + 3, is_last=True, orderings=["a"])])
    assert fetch(backlog, OTHER) == [FIRST]
    # When the lease of the first worker lapses, only what it still pushed goes to the queue
    silence(backlog, FROZEN)
    assert beat(backlog, OTHER).put_back == 1
    assert fetch(backlog, OTHER, "2") == [FIRST + 2]


def test_a_message_that_a_worker_gave_back_and_fetched_again_is_taken_over_once(backlog: Backlog) -> None:
    fetch(backlog, FROZEN)
    settle(backlog, FIRST, Verdict.NACK, FROZEN, delay_ms=0)
    assert fetch(backlog, FROZEN, "2") == [FIRST]
    silence(backlog, FROZEN)
    assert beat(backlog, OTHER).put_back == 2
    assert sorted(fetch(backlog, OTHER)) == [FIRST, FIRST + 2]


def test_a_message_that_a_dead_worker_gave_back_is_not_put_back(backlog: Backlog) -> None:
    fetch(backlog, FROZEN)
    settle(backlog, FIRST + 3, Verdict.NACK, FROZEN, lane=PLAIN, delay_ms=0)
    assert fetch(backlog, OTHER) == [FIRST + 3]
    backlog.client.zadd("ph:workers", {"frozen": 1})
    assert beat(backlog, OTHER).put_back == 2
    assert sorted(fetch(backlog, OTHER, "2")) == [FIRST, FIRST + 2]


def test_the_audit_knows_what_a_worker_gave_back(backlog: Backlog) -> None:
    fetch(backlog, FROZEN)
    settle(backlog, FIRST, Verdict.NACK, FROZEN)
    assert backlog.held([LANE.region]) == {f"{FIRST + 2}.7.{LANE.region}", f"{FIRST + 3}.8.{LANE.region}"}


def test_a_finished_batch_leaves_nothing_in_the_record(backlog: Backlog) -> None:
    fetch(backlog, FROZEN)
    settle(backlog, FIRST, Verdict.NACK, FROZEN)
    backlog.settle({}, dice=0.5, finished={work_key("frozen"): ["1"]})
    assert not backlog.client.exists(work_key("frozen"))
    settle(backlog, FIRST + 2, Verdict.NACK, FROZEN)
    assert not backlog.client.exists(work_key("frozen")), "a late nack does not make a record"


def test_a_worker_with_messages_is_listed_even_if_it_was_declared_dead(backlog: Backlog) -> None:
    backlog.client.zrem("ph:workers", "frozen")
    fetch(backlog, FROZEN)
    assert backlog.client.zscore("ph:workers", "frozen")


def test_a_late_ack_of_a_message_that_waits_for_a_retry_is_true(taken_over: Backlog) -> None:
    settle(taken_over, FIRST, Verdict.NACK, OTHER)
    settle(taken_over, FIRST, Verdict.NACK, FROZEN)
    assert place_of(taken_over, FIRST) == Place.RETRYING
    settle(taken_over, FIRST, Verdict.ACK, FROZEN)
    assert place_of(taken_over, FIRST) == ""
    assert fetch(taken_over, OTHER, "2") == [FIRST + 1]


def test_results_of_a_plain_lane_count_whatever_the_lease(taken_over: Backlog) -> None:
    settlement = Settlement()
    settlement.add(str(FIRST + 3), Verdict.ACK, lease=FROZEN)
    taken_over.settle({PLAIN: settlement}, dice=0.5, finished={})
    assert lane_state(taken_over, PLAIN).outstanding == 0


def test_a_worker_learns_that_its_lease_is_lost_and_gets_no_messages_without_one(taken_over: Backlog) -> None:
    settle(taken_over, FIRST, Verdict.ACK, OTHER)
    assert fetch(taken_over, FROZEN, "2") == []
    assert not beat(taken_over, FROZEN).holds_lease
    assert not beat(taken_over, FROZEN).holds_lease, "a heartbeat does not bring a lost lease back"
    assert beat(taken_over, "frozen/2", is_new=True).holds_lease
    assert fetch(taken_over, "frozen/2", "3") == [FIRST + 1]


def test_the_time_in_which_everything_stood_still_does_not_count(backlog: Backlog) -> None:
    """Redis or the machine was paused, so that no worker was heard of. One worker is a little slower to go on."""
    fetch(backlog, FROZEN)
    for lease in (FROZEN, OTHER):
        silence(backlog, lease)
    for _ in range(2):
        assert beat(backlog, OTHER).put_back == 0
    assert beat(backlog, FROZEN).holds_lease
    silence(backlog, FROZEN)
    assert beat(backlog, OTHER).put_back == 2


@pytest.fixture
def after_an_outage(backlog: Backlog) -> Backlog:
    """A worker with messages, and another one; Redis was away for so long that both count as dead."""
    fetch(backlog, FROZEN)
    for worker, lease in (("frozen", FROZEN), ("other", OTHER)):
        backlog.client.zincrby("ph:leases", -DEAD_AFTER_MS - 1, lease)
        backlog.client.zincrby("ph:workers", -DEAD_AFTER_MS - 1, worker)
    return backlog


def test_after_an_outage_of_redis_living_workers_keep_what_they_have(after_an_outage: Backlog) -> None:
    assert beat(after_an_outage, OTHER).put_back == 0
    assert beat(after_an_outage, FROZEN).holds_lease


def test_a_worker_that_begins_when_the_others_are_dead_gets_what_they_had(after_an_outage: Backlog) -> None:
    assert beat(after_an_outage, "third/1", is_new=True).put_back == 3
    # Then a worker that was only frozen does not push it too
    assert not beat(after_an_outage, FROZEN).holds_lease


def test_a_wipe_ends_all_leases(backlog: Backlog) -> None:
    backlog.client.flushall()
    assert not beat(backlog, FROZEN).holds_lease


def test_a_worker_that_signs_off_leaves_its_lease(backlog: Backlog) -> None:
    assert backlog.leave("frozen", leases={0: FROZEN})
    assert backlog.client.zrange("ph:leases", 0, -1) == [OTHER.encode()]


def test_a_lane_that_is_paused_meanwhile_keeps_no_token(taken_over: Backlog) -> None:
    configure(taken_over, LANE, mode=Mode.IDLE, action="known", ordered=True)
    for message_id in (FIRST, FIRST + 2):
        settle(taken_over, message_id, Verdict.ACK, OTHER)
        settle(taken_over, message_id, Verdict.NACK, FROZEN)
    assert lane_state(taken_over, LANE).outstanding == 0
