"""The backlog's scripts on a Redis Cluster: at many nodes at once, while slots move, and after a node has failed."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.crc import key_slot

from deliveries.backlog.backlog import Backlog
from deliveries.backlog.codes import Mode
from deliveries.backlog.connection import client_of
from deliveries.backlog.default import default_backlog
from deliveries.backlog.records import (
    Configuration,
    Health,
    Lane,
    Offer,
    OfferedLane,
    OfferedMessage,
    Settlement,
    cell_key,
    cell_prefix,
)
from deliveries.backlog.workerverbs import WorkerLease
from deliveries.rules.outcome import Verdict
from deliveries.rules.taskmessage import escape_message
from pushhub.common.outages import Cause, outage_of
from pushhub.common.rediscluster import Cluster
from pushhub.doctor import redis as doctor
from pushhub.doctor.finding import Level
from pushhub.runtime.redisversion import UnusableRedisError, check_redis
from tests.lanes import are_known, mark_alive
from tests.ports import wait_for
from tests.redisclusters import Node, RedisCluster, cluster_in_use

CELLS = 8
LANES = [Lane(number, "here") for number in range(1, 2 * CELLS + 1)]
FIRST = 911_742_875_595_837_440


@pytest.fixture
def cluster(redis_url: str, tmp_path: Path, settings: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[RedisCluster]:
    with cluster_in_use(tmp_path, redis_url, CELLS, settings=settings, monkeypatch=monkeypatch) as cluster:
        yield cluster


@pytest.fixture
def backlog(cluster: RedisCluster) -> Backlog:
    """Return a backlog that has a message in each lane."""
    return with_messages()


def with_messages() -> Backlog:
    backlog = default_backlog()
    backlog.configure_all(Configuration(lane, Mode.PUSH, "new") for lane in LANES)
    offer(backlog, FIRST)
    mark_alive(backlog)
    return backlog


def offer(backlog: Backlog, message_id: int, lanes: list[Lane] = LANES) -> None:
    text = escape_message({"messageId": str(message_id), "publishTime": "t"})
    backlog.offer([Offer("here", [OfferedLane(lane, Mode.PUSH) for lane in lanes], [OfferedMessage(message_id, text)])])


def slot_of(lane: Lane) -> int:
    return key_slot(cell_prefix(lane.cell).encode())


def owner_of(cluster: RedisCluster, lane: Lane) -> Node:
    owner = cluster.owner(slot_of(lane))
    assert owner is not None
    return owner


def replica_of(cluster: RedisCluster, lane: Lane) -> Node:
    return cluster.nodes[cluster.nodes.index(owner_of(cluster, lane)) + 3]


def served_with(cluster: RedisCluster, lane: Lane) -> list[Lane]:
    """Return the lanes of a lane's node."""
    return [each for each in LANES if owner_of(cluster, each) is owner_of(cluster, lane)]


def beats() -> dict[int, Health]:
    """Return what a heartbeat reveals of the cells that it reaches."""
    return default_backlog().beats("w", oldest_job_seconds=0, leases=[WorkerLease()] * CELLS, regions=["here"])


def reaches_all() -> bool:
    return len(beats()) == CELLS


def test_calls_go_to_the_nodes_of_their_cells(backlog: Backlog, cluster: RedisCluster) -> None:
    assert len({owner_of(cluster, lane).id for lane in LANES}) == 3
    assert sorted(backlog.lanes()) == LANES
    assert [state is not None for state in backlog.states(LANES)] == [True] * len(LANES)
    fetched = backlog.look("here", worker="w", leases=[""] * CELLS)
    assert fetched.keys() == set(range(CELLS))
    for node in cluster.nodes[:3]:
        node.client.function_flush()
    offer(backlog, FIRST + 1)
    assert all(are_known(backlog, lane, [FIRST, FIRST + 1]) == [True, True] for lane in LANES)


def test_a_cell_that_moves_keeps_what_it_has_and_waits(backlog: Backlog, cluster: RedisCluster) -> None:
    lane = LANES[0]
    backlog.announce_change(lane.subscription_id)
    names = (lane.state_key, lane.places_key, cell_key(lane.cell, "changed"))
    before = {key: backlog.client.dump(key) for key in names}
    others = [each for each in cluster.nodes[:3] if each is not owner_of(cluster, lane)]

    def call_half_way() -> None:
        with pytest.raises(redis.RedisError) as raised:
            offer(backlog, FIRST + 1, [lane])
        assert outage_of(raised.value) is Cause.REDIS_BUSY
        with pytest.raises(redis.RedisError):
            backlog.announce_change(lane.subscription_id)
        assert lane.cell not in beats()
        offer(backlog, FIRST + 1, [each for each in LANES if each.cell != lane.cell])

    cluster.move_slot(slot_of(lane), others[0], between=call_half_way)
    assert {key: backlog.client.dump(key) for key in before} == before
    assert not backlog.beat("w").was_wiped
    offer(backlog, FIRST + 2)
    assert are_known(backlog, lane, [FIRST, FIRST + 1, FIRST + 2]) == [True, False, True]


def test_a_cell_is_emptied_if_a_replica_takes_it_over(backlog: Backlog, cluster: RedisCluster) -> None:
    """It may lack the last writes, so its lanes read the database again. Those of other nodes stay."""
    lost = served_with(cluster, LANES[0])
    owner_of(cluster, LANES[0]).server.stop()
    wait_for(lambda: cluster.owner(slot_of(LANES[0])) is not None, what="the replica")
    wait_for(reaches_all, what="the replica's cells")
    assert {cell for cell, health in beats().items() if health.was_wiped} == {lane.cell for lane in lost}
    assert [lane for lane, state in zip(LANES, backlog.states(LANES), strict=True) if state is None] == lost


def test_a_cell_is_emptied_if_its_server_restarts_with_what_it_had_saved(
    backlog: Backlog, cluster: RedisCluster
) -> None:
    lane, node = LANES[0], owner_of(cluster, LANES[0])
    replica_of(cluster, lane).server.stop()
    node.client.save()
    lost = served_with(cluster, lane)
    offer(backlog, FIRST + 1)
    node.server.stop()
    node.server.start()
    wait_for(reaches_all, what="the server")
    assert [lane for lane, state in zip(LANES, backlog.states(LANES), strict=True) if state is None] == lost


@pytest.mark.parametrize("is_frozen", [False, True], ids=["killed", "frozen"])
def test_other_cells_go_on_while_a_node_is_away(backlog: Backlog, cluster: RedisCluster, is_frozen: bool) -> None:
    away = served_with(cluster, LANES[0])
    others = [lane for lane in LANES if lane not in away]
    node = owner_of(cluster, LANES[0])
    replica_of(cluster, LANES[0]).server.stop()
    if is_frozen:
        os.kill(node.server.pid, signal.SIGSTOP)
    else:
        node.server.stop()
    with pytest.raises(redis.RedisError) as raised:
        offer(backlog, FIRST + 1)
    assert outage_of(raised.value) is (Cause.REDIS_SILENT if is_frozen else Cause.REDIS_AWAY)
    assert all(are_known(backlog, lane, [FIRST + 1]) == [True] for lane in others)
    healths = beats()
    assert healths.keys() == {lane.cell for lane in others}
    assert backlog.look("here", worker="w", leases=[""] * CELLS).keys() == healths.keys()
    settlement = Settlement()
    settlement.add(str(FIRST), Verdict.ACK)
    flows, _ = backlog.settle_and_take(dict.fromkeys(LANES, settlement), dice=0.5, finished={}, takes=[])
    assert sorted(flows) == others
    if is_frozen:
        os.kill(node.server.pid, signal.SIGCONT)
    else:
        node.server.start()
    wait_for(reaches_all, what="the node")
    offer(backlog, FIRST + 2)


def test_a_cluster_that_is_away_is_an_outage(cluster: RedisCluster, settings: Any) -> None:
    for node in cluster.nodes:
        node.server.stop()
    backlog = default_backlog()
    for call in (backlog.lanes, backlog.beat, lambda: backlog.states(LANES), lambda: are_known(backlog, LANES[0], [1])):
        with pytest.raises(redis.RedisError) as raised:
            call()
        assert outage_of(raised.value) is Cause.REDIS_AWAY


def test_a_backup_that_is_restored_empties_the_cells(backlog: Backlog) -> None:
    backlog.disown_cells()
    assert backlog.beat("w").was_wiped
    assert backlog.states(LANES) == [None] * len(LANES)


def test_servers_of_another_kind_are_refused_by_name(cluster: RedisCluster, redis_url: str, settings: Any) -> None:
    assert "; beside the Cluster, " in check_redis()
    single = cluster.nodes[0].server.url
    settings.BROKER_URL = f"redis://127.0.0.1:{cluster.nodes[0].port}/0"
    with pytest.raises(UnusableRedisError, match="PUSHHUB_BROKER_URL names a Cluster"):
        check_redis()
    settings.REDIS_URL, settings.BROKER_URL = single, ""
    with pytest.raises(UnusableRedisError, match="PUSHHUB_REDIS_URL names a Cluster: give redis\\+cluster://"):
        check_redis()


def test_the_doctor_judges_each_primary(backlog: Backlog, cluster: RedisCluster) -> None:
    findings = [*doctor.redis()]
    assert not [finding for finding in findings if finding.level is Level.FAILED]
    checked = {finding.check for finding in findings}
    assert {f"127.0.0.1:{node.port}" for node in cluster.nodes[:3]} < checked
    assert "Redis of PUSHHUB_BROKER_URL" in checked


def test_a_client_of_a_single_redis_is_no_cluster(cluster: RedisCluster, redis_url: str) -> None:
    assert isinstance(client_of(cluster.url), Cluster)
    assert default_backlog().shared is client_of(redis_url)
