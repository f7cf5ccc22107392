"""Lanes that are divided into cells: scripts stay within one cell, and workers serve all of them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import redis

from deliveries.backlog import reconcile, workerverbs
from deliveries.backlog.backlog import Backlog
from deliveries.backlog.codes import Mode
from deliveries.backlog.connection import client_of
from deliveries.backlog.default import default_backlog
from deliveries.backlog.records import (
    Lane,
    Offer,
    OfferedLane,
    OfferedMessage,
    Page,
    PageRequest,
    Settlement,
    Take,
    bell_key,
    cell_key,
    pull_bell,
    work_key,
)
from deliveries.backlog.scripts import VERBS, library
from deliveries.backlog.workerverbs import WorkerLease
from deliveries.models import Delivery
from deliveries.publish.service import publish_message
from deliveries.rules.outcome import Verdict
from deliveries.rules.payload import NewMessage
from deliveries.rules.taskmessage import TaskTemplate, escape_message
from deliveries.telemetry.export.readiness import redis_writes
from deliveries.telemetry.sinks.counters import read_counters, remove_counters
from pushhub.doctor import redis as doctor
from pushhub.doctor.finding import Level
from pushhub.runtime.redisversion import UnusableRedisError, check_cells
from subscriptions.models import Subscription
from subscriptions.selectors import get_topic
from tests.lanes import configure, lane_change, mark_alive
from tests.ports import wait_for
from tests.receiver import Receiver, Request
from tests.restapi import Api
from tests.workers import ROOT, Worker

CELLS, FIRST = 8, 911_742_875_595_837_440
PUSHED, PULLED, OTHER = Lane(13, "here"), Lane(21, "here"), Lane(2, "here")
CELL = PUSHED.subscription_id % CELLS
DATA = b"x" * 200


@pytest.fixture
def backlog(redis_url: str, settings: Any, monkeypatch: pytest.MonkeyPatch) -> Backlog:
    settings.CELLS = CELLS
    monkeypatch.setenv("PUSHHUB_CELLS", str(CELLS))
    return Backlog(client_of(redis_url))


def text(message_id: int) -> str:
    return escape_message({"messageId": str(message_id), "publishTime": "t"})


def ids(*numbers: int) -> list[int]:
    return [FIRST + number for number in numbers]


def offer(backlog: Backlog, *lanes: OfferedLane, numbers: Sequence[int]) -> None:
    backlog.offer([Offer("here", lanes, [OfferedMessage(i, text(i)) for i in ids(*numbers)])])


@pytest.fixture
def confined(backlog: Backlog, redis_url: str) -> Iterator[Backlog]:
    """Return a backlog whose user may touch the keys of one cell, and the bells that callers ring."""
    backlog.client.config_set("slowlog-log-slower-than", 0)
    backlog.client.config_set("slowlog-max-len", 10_000)
    backlog.client.slowlog_reset()
    own = cell_key(CELL, "*")
    backlog.client.acl_setuser(
        "confined", enabled=True, nopass=True, commands=["+@all"], keys=[own, bell_key("*")], channels=[own]
    )
    with redis.Redis.from_url(redis_url, username="confined", password="any") as client:
        yield Backlog(client)
    backlog.client.acl_deluser("confined")
    backlog.client.config_set("slowlog-log-slower-than", -1)


def test_each_script_touches_the_keys_of_one_cell_only(backlog: Backlog, confined: Backlog) -> None:
    lease, scripts, workers = "w/1", confined.scripts, cell_key(CELL, "workers")
    scripts.beat(keys=[workers], args=["w", 15_000, 0, lease, 1, 3_500, 7, "here"])
    offer(confined, OfferedLane(PUSHED, Mode.PUSH), OfferedLane(PULLED, Mode.PULL), numbers=[1, 2])
    for lane, mode in ((PUSHED, Mode.PUSH), (PULLED, Mode.PULL)):
        configure(confined, lane, mode=mode, action="anew", ordered=True)
    fetched = confined.fetch("here", CELL, worker="w", batch="1", count=10, lease=lease)
    for request in PageRequest.parse_all(fetched.pages):
        offer_page(confined, request)
    leases = confined.lease(PULLED, count=3, duration_ms=60_000, countdown_ms=(0, 0), puller="a/1")
    assert leases is not None
    if leases.page is not None:
        offer_page(confined, leases.page)
        leases = confined.lease(PULLED, count=3, duration_ms=60_000, countdown_ms=(0, 0), puller="a/1")
        assert leases is not None
    first, second, third = [(delivery.message_id, delivery.times) for delivery in leases.deliveries]
    fetched = confined.fetch("here", CELL, worker="w", batch="2", count=2, lease=lease)
    assert len(fetched.messages) == 2
    settlement = Settlement()
    settlement.add(str(FIRST + 1), Verdict.ACK, batch="w/2", lease=lease)
    settlement.add(str(FIRST + 3), Verdict.NACK, batch="w/2", lease=lease)
    settlement.returned += [0, fetched.messages[1].decode()]
    take = Take(work_key("w", cell=CELL), "here", "3", 5, lease, CELL)
    confined.settle_and_take({PUSHED: settlement}, dice=0.5, finished={take.work: ["2"]}, takes=[take])
    assert confined.tokens([PUSHED])[PUSHED]
    assert scripts.held(keys=[workers], args=["here"])
    assert confined.due([PULLED]) in ([], [PULLED])
    assert confined.views([PUSHED, PULLED], retries=3).keys() == {PUSHED, PULLED}
    assert not confined.lost(PULLED, [first], generation=leases.generation)
    assert not confined.accept(PULLED, [first], generation=leases.generation)
    confined.acknowledge(PULLED, [first], generation=leases.generation)
    confined.extend(PULLED, [second], generation=leases.generation, duration_ms=0, countdown_ms=(0, 0))
    confined.unlease(PULLED, [(*third, leases.ends_ms)], generation=leases.generation)
    confined.hand_over(PULLED, "a/1")
    confined.remove(PULLED, [first[0]])
    generation = confined.summaries_of([PUSHED])[PUSHED].generation
    confined.put_back("w", ["3"], cell=CELL)
    confined.repair(PUSHED, ids(2, 4), generation=generation)
    confined.announce_change(PUSHED.subscription_id)
    confined.forget(PUSHED)
    scripts.leave(keys=[work_key("w", cell=CELL)], args=["w", lease])
    called = {bytes(entry["command"]).split()[1].decode() for entry in backlog.client.slowlog_get(-1) if is_call(entry)}
    assert {name for name in VERBS if library().function(name) not in called} == set(), "these verbs were not tried"
    with pytest.raises(redis.exceptions.NoPermissionError):
        offer(confined, OfferedLane(OTHER, Mode.PUSH), numbers=[1])


def is_call(entry: dict[str, Any]) -> bool:
    return bytes(entry["command"]).startswith(b"FCALL ")


def offer_page(backlog: Backlog, request: PageRequest) -> None:
    lane = request.lane
    template = TaskTemplate(
        subscription_id=lane.subscription_id, region="here", attempt=1, generation=request.generation
    )
    messages = [(i, template.render(str(i), text(i))) for i in ids(1, 2, 3, 4)]
    backlog.offer_pages([Page(request, messages, next_id=FIRST + 5, is_last=True, orderings=["k", "k", "", ""])])


def test_the_budget_is_for_all_cells_together(backlog: Backlog, settings: Any) -> None:
    budget = settings.REDIS_MB * 1_000_000

    def waits(lane: Lane, *, offset: int) -> int:
        """Return how many of 100 messages more wait in Redis, in a lane whose messages nobody has acked yet."""
        configure(backlog, lane, mode=Mode.PUSH, action="new")
        lane_change(backlog, lane, results_seen=10, ack_ratio=1.0)
        offer(backlog, OfferedLane(lane, Mode.PUSH), numbers=range(offset, offset + 100))
        return backlog.client.hlen(lane.places_key)

    backlog.client.set(cell_key(CELL, "bytes"), budget // 2)
    assert waits(Lane(13, "here"), offset=0) < 100, (
        "more than the cell's share, when no worker says what the others take"
    )
    backlog.beat("w")
    backlog.beat("w")
    assert waits(Lane(21, "here"), offset=100) == 100
    backlog.client.set(cell_key(OTHER.cell, "bytes"), budget)
    backlog.beat("w")
    backlog.beat("w")
    assert waits(Lane(29, "here"), offset=200) < 100


def test_a_frozen_worker_loses_its_lease_in_the_cell_that_missed_it(backlog: Backlog) -> None:
    backlog.beat("other", lease="other/1", is_new_lease=True)
    leases = [WorkerLease(f"frozen/{cell}", True) for cell in range(CELLS)]
    healths = backlog.beats("frozen", oldest_job_seconds=0, leases=leases, regions=["here"])
    assert all(health.holds_lease for health in healths.values())
    backlog.client.zincrby(cell_key(CELL, "leases"), -workerverbs.LEASE_MS - 1, f"frozen/{CELL}")
    backlog.beat("other", lease="other/1")
    leases = [WorkerLease(lease.name, is_new=False) for lease in leases]
    healths = backlog.beats("frozen", oldest_job_seconds=0, leases=leases, regions=["here"])
    assert [cell for cell, health in healths.items() if not health.holds_lease] == [CELL]


def test_the_cells_of_a_region_take_turns(backlog: Backlog) -> None:
    for cell in (1, 2, 1, 3, 2, 2):
        backlog.ring("here", cell=cell)
    assert [int(cell) for cell in backlog.client.lrange(bell_key("here"), 0, -1)][::-1] == [1, 2, 3]


def test_a_wiped_cell_is_noticed(backlog: Backlog) -> None:
    mark_alive(backlog)
    assert not backlog.beat("w").was_wiped
    backlog.client.delete(cell_key(CELL, "alive"))
    assert backlog.beat("w").was_wiped


def test_counters_of_all_cells_are_read(backlog: Backlog, settings: Any) -> None:
    field = "subscription_expired_ack_deadlines_count|21|pull"
    backlog.client.hset(cell_key(CELL, "counters"), field, 3)
    assert [(value.resource_id, value.value) for value in read_counters(backlog.clients)] == [(21, 3)]
    remove_counters(backlog.clients, [field])
    assert not list(read_counters(backlog.clients))


@pytest.mark.parametrize(
    ("marks", "cells", "found"),
    [
        ({}, 4, None),
        ({"ph:alive": 1}, 4, 1),
        ({"ph:alive": 1}, 1, None),
        ({"ph:cells": 8}, 4, 8),
        ({"ph:cells": 4}, 4, None),
    ],
)
def test_a_redis_that_is_used_with_another_number_of_cells_is_refused(
    backlog: Backlog, redis_url: str, settings: Any, marks: dict[str, int], cells: int, found: int | None
) -> None:
    settings.CELLS = cells
    if marks:
        backlog.client.mset(marks)
    if found is None:
        check_cells(redis_url)
        assert backlog.client.get("ph:cells") == str(cells).encode()
    else:
        with pytest.raises(UnusableRedisError, match=f"PUSHHUB_CELLS={cells}: this Redis is used with {found}"):
            check_cells(redis_url)


def test_a_process_is_refused_by_name(backlog: Backlog) -> None:
    backlog.client.set("ph:cells", 3)
    command = [sys.executable, "-m", "pushhub.runtime.processes", "push"]
    environment = os.environ | {"DJANGO_SETTINGS_MODULE": "pushhub.settings"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 1
    assert done.stderr.startswith(f"PUSHHUB_CELLS={CELLS}: this Redis is used with 3")


def test_the_doctor_finds_another_number_of_cells(backlog: Backlog) -> None:
    assert not [finding for finding in doctor.redis() if "PUSHHUB_CELLS" in finding.text]
    backlog.client.set("ph:cells", 3)
    [finding] = [finding for finding in doctor.redis() if "PUSHHUB_CELLS" in finding.text]
    assert finding.level is Level.FAILED


def test_readiness_adds_the_cells_up(backlog: Backlog) -> None:
    for cell in range(CELLS):
        backlog.client.set(cell_key(cell, "bytes"), 100)
    assert redis_writes().figures["backlog_bytes"] == 100 * CELLS


class Endpoint:
    """Nacks the first push of each message whose attribute says so, and notes the order of the acks."""

    def __init__(self) -> None:
        self.order: dict[str, list[int]] = defaultdict(list)
        self._nacked: set[tuple[str, str]] = set()

    def __call__(self, request: Request) -> int:
        message, subscription = request.json["message"], request.json["subscription"].rpartition("/")[2]
        push = subscription, message["messageId"]
        if message["attributes"].get("nack") and push not in self._nacked:
            self._nacked.add(push)
            return 503
        self.order[f"{subscription} {message.get('orderingKey', '')}"].append(int(message["attributes"]["n"]))
        return 204


def subscribe(receiver: Receiver, *names: str, **fields: Any) -> None:
    api = Api()
    api.put("topics/orders", {})
    for name in names:
        body = {"topic": "projects/shop/topics/orders", "pushConfig": {"pushEndpoint": receiver.url}} | fields
        assert api.put(f"subscriptions/{name}", body).status == 200


def publish(count: int, *, start: int = 0, key: str = "", **attributes: str) -> None:
    numbers = range(start, start + count)
    messages = [NewMessage(DATA, {"n": str(number), **attributes}, key) for number in numbers]
    publish_message(topic=get_topic(name="projects/shop/topics/orders"), messages=messages)


def settled() -> None:
    wait_for(lambda: not Delivery.objects.exists(), what="the last ack")


@pytest.mark.django_db(transaction=True)
def test_workers_push_the_messages_of_all_cells(backlog: Backlog, redis_url: str) -> None:
    """Plain and ordered ones, with nacks, after a wipe, and those that a killed worker had."""
    endpoint = Endpoint()
    with Receiver(endpoint) as receiver:
        subscribe(receiver, *(f"plain{number}" for number in range(10)))
        subscribe(receiver, *(f"ordered{number}" for number in range(4)), enableMessageOrdering=True)
        cells = {pk % CELLS for pk in Subscription.objects.values_list("pk", flat=True)}
        assert cells == set(range(CELLS))
        publish(30, key="k")
        with Worker(redis_url, name="one") as one, Worker(redis_url, name="two"):
            publish(30, start=30, key="k")
            publish(1, start=1000, nack="1")
            one.kill()
            publish(30, start=60, key="k")
            settled()
            backlog.client.flushdb()
            publish(30, start=90, key="k")
            wait_for(lambda: backlog.client.exists(cell_key(CELL, "alive")), what="the rebuild")
            publish(30, start=120, key="k")
            settled()
    for number in range(10):
        assert set(endpoint.order[f"plain{number} k"]) == set(range(150))
        assert endpoint.order[f"plain{number} "] == [1000]
    for number in range(4):
        # Some come twice, but none for the first time before an earlier one.
        assert list(dict.fromkeys(endpoint.order[f"ordered{number} k"])) == list(range(150))
    assert not [key for key in backlog.client.scan_iter("ph{*}:work:*") if b"two" in key]


@pytest.mark.django_db(transaction=True)
def test_a_cell_with_many_messages_does_not_hold_up_another(backlog: Backlog, redis_url: str) -> None:
    endpoint = Endpoint()
    with Receiver(endpoint) as receiver:
        subscribe(receiver, "many")
        for start in range(0, 5000, 500):
            publish(500, start=start)
        subscribe(receiver, "few")
        publish(1, start=9999)
        with Worker(redis_url):
            wait_for(lambda: endpoint.order["few "] == [9999], what="the message of the other cell")
            assert len(endpoint.order["many "]) < 5000
            settled()


@pytest.mark.django_db(transaction=True)
def test_the_audit_finds_what_is_missing_in_a_cell(backlog: Backlog, redis_url: str) -> None:
    endpoint = Endpoint()
    with Receiver(endpoint) as receiver:
        subscribe(receiver, *(f"sub{number}" for number in range(CELLS)))
        publish(3)
        lanes = default_backlog().lanes()
        assert sorted(lane.subscription_id for lane in lanes) == sorted(
            Subscription.objects.values_list("pk", flat=True)
        )
        for lane in lanes[:3]:
            backlog.client.delete(lane.root + ":d", lane.root + ":b", lane.state_key)
        assert reconcile.audit() == 3
        with Worker(redis_url):
            settled()


@pytest.mark.django_db(transaction=True)
def test_a_stock_worker_is_refused(backlog: Backlog, redis_url: str) -> None:
    with pytest.raises(AssertionError, match="knows one cell only"), Worker(redis_url, stock=True):
        pass


@pytest.mark.django_db(transaction=True)
def test_messages_of_each_cell_are_pulled(backlog: Backlog) -> None:
    api = Api()
    api.create("topics/orders")
    names = [f"pull{number}" for number in range(CELLS)]
    for name in names:
        api.create(f"subscriptions/{name}", {"topic": "projects/shop/topics/orders"})
    publish(1)
    for name in names:
        pk = Subscription.objects.get(subscription_id=name).pk
        assert backlog.client.lrange(pull_bell(pk), 0, -1) == [b"1"]
        [received] = api.post(f"subscriptions/{name}:pull", {"maxMessages": 5}).body["receivedMessages"]
        assert api.post(f"subscriptions/{name}:acknowledge", {"ackIds": [received["ackId"]]}).status == 200
    assert not Delivery.objects.exists()
