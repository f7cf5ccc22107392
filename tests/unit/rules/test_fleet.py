"""The simulated fleet (bench/fleet.py): it loses nothing, keeps to the law, and repeats itself to the byte."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import fleet, fleetplots
from bench.drawing import Lines, draw_lines
from bench.fleet import Costs, Fleet, Lane
from deliveries.backlog import workerverbs
from deliveries.push import heart, transport, worker
from deliveries.push.results import gathering

COSTS = Costs(call=0.03, redis_message=0.01, wake=0.1, push=0.07, look=0.08, beat=0.07)
LUA = Path(workerverbs.__file__).parent


def fleet_of(lanes: list[Lane], *, machines: int = 3, cells: int = 2, seed: int = 1) -> Fleet:
    return Fleet(lanes, machines=machines, cells=cells, costs=COSTS, seed=seed)


def test_the_simulation_has_the_numbers_of_the_worker_and_of_the_scripts() -> None:
    assert worker.FETCH_SIZE == fleet.FETCH_SIZE
    assert gathering.GATHER_SECONDS == fleet.GATHER_SECONDS
    assert transport.MAX_SLEEP_SECONDS == fleet.MAX_SLEEP_SECONDS
    assert (heart.HEARTBEAT_SECONDS, workerverbs.DEAD_AFTER_MS) == (fleet.HEARTBEAT_SECONDS, fleet.DEAD_AFTER_MS)
    pump, fetch, common = (LUA.joinpath(f"{name}.lua").read_text() for name in ("pump", "fetch", "common"))
    assert f"SLICE_MS = {fleet.QUEUE_DEPTH}, {fleet.SHORT_SLICE}, {fleet.SLICE_MS}\n" in pump
    assert f"GROWTH_BURST = {fleet.GROWTH_PER_MS}, {fleet.GROWTH_BURST}\n" in pump
    assert f"LOW_SHARE = 1 / {1 / fleet.LOW_SHARE:.0f}\n" in fetch
    assert "latency_ms < LATENCY_BELOW_MS" in common


@pytest.mark.parametrize("seed", range(3))
def test_each_message_is_settled_or_is_somewhere(seed: int) -> None:
    lanes = [Lane(number % 2, latency_ms=30, acks=number % 5 != 0) for number in range(40)]
    simulated = fleet_of(lanes, seed=seed)
    for step in range(400):
        simulated.at(step * 1.0, lambda: simulated.offer(simulated.dice.choice(lanes)))
    simulated.at(200.0, lambda: simulated.kill(simulated.workers[0]))
    for until_ms in (150, 600, 20_000):
        simulated.run(until_ms)
        waiting = sum(len(lane.waiting) for lane in lanes)
        assert simulated.offered >= sum(lane.settled for lane in lanes) + waiting
        assert all(lane.outstanding >= 0 for lane in lanes)
    healthy = [lane for lane in lanes if lane.acks]
    dead = [lane for lane in lanes if not lane.acks]
    assert sum(lane.settled for lane in healthy) == len(simulated.waits)
    assert not any(lane.waiting or lane.outstanding for lane in healthy)
    owed = sum(len(lane.waiting) + lane.outstanding for lane in dead)
    assert simulated.offered == len(simulated.waits) + owed


def test_no_lane_has_more_outstanding_than_its_window_had() -> None:
    lanes = [Lane(0, latency_ms=200, is_full=True) for _ in range(5)]
    simulated = fleet_of(lanes)
    for step in range(1, 200):
        windows = [lane.law.tokens for lane in lanes]
        simulated.run(step * 5.0)
        assert all(
            lane.outstanding <= max(window, lane.law.tokens) for lane, window in zip(lanes, windows, strict=True)
        )


def test_a_dead_machine_is_taken_over_and_nothing_is_lost() -> None:
    taken = fleetplots.takeover(machines=5, cells=4, lanes=50, per_second=2000, seconds=22, kill_at=2.5, seed=1)
    assert taken.lost == 0
    assert taken.put_back > 0
    assert fleet.DEAD_AFTER_MS - 1000 * fleet.HEARTBEAT_SECONDS < taken.longest_ms < fleet.DEAD_AFTER_MS + 2000


def test_prompt_lanes_share_alike_and_keep_their_rate_beside_slow_and_dead_ones() -> None:
    size = {"machines": 4, "cells": 4, "lanes_of_cell": 24, "seconds": 1.0, "seed": 1}
    beside, alone = fleetplots.fairness(**size), fleetplots.fairness(**size, kinds=("prompt",))
    assert beside.jain > 0.99
    assert beside.per_second > 0.9 * alone.per_second


def test_a_message_that_comes_alone_wakes_a_worker_and_many_share_one() -> None:
    size = {"machines": 4, "cells": 4, "subscriptions": 1000, "seconds": 1.0, "seed": 1}
    alone, many = (fleetplots.wakeups(**size, per_second=rate) for rate in (50, 20_000))
    assert alone.wakeups == pytest.approx(1, abs=0.1)
    assert many.wakeups < 0.5
    assert many.redis_us < alone.redis_us


def test_the_same_seed_gives_the_same_picture() -> None:
    def picture(seed: int) -> str:
        size = {"machines": 2, "cells": 2, "lanes_of_cell": 8, "seconds": 0.5}
        lines = fleetplots.fairness(**size, seed=seed).lines
        return draw_lines([Lines("title", "figures", lines, ["0", "0.5"], 1, 1e6)])

    assert picture(1) == picture(1)
    assert picture(1) != picture(2)


def test_costs_are_those_that_were_measured() -> None:
    units = {"request": 90.0, "message": 9.0, "delivery": 21.0}
    costs = Costs.measured({"costs": {"redis_us": units, "push_us": units}, "idle_us": {"look": 80.0, "beat": 70.0}})
    assert costs == Costs(call=0.03, redis_message=0.01, wake=0.09, push=0.03, look=0.08, beat=0.07)
