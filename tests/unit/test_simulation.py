"""The figures of Cloud Pub/Sub's push page, on the simulator with the real rules."""

from __future__ import annotations

from itertools import pairwise

import pytest

from bench.lane import Endpoint, History, Lane, Sample
from bench.simulate import dead, flaky, healthy, mean_gap_ms, periodic, slowing
from deliveries.rules.backoff import HEALED_RUN
from deliveries.rules.flow import Flow
from deliveries.rules.window import LINEAR_STEP, Window


def history(
    endpoint: Endpoint, *, seconds: float, per_second: float = 0, waiting: int = 0, size: float = 3, samples: int = 100
) -> History:
    lane = Lane(endpoint, per_second=per_second, waiting=waiting, seed=1, flow=Flow(window=Window(size=size)))
    return lane.run(seconds, samples=samples)


def at(told: History, seconds: float) -> Sample:
    return min(told.samples, key=lambda sample: abs(sample.now_ms - seconds * 1000))


@pytest.mark.parametrize("latency_ms", [20, 100])
def test_five_messages_and_one_nack_a_second_make_a_delivery_about_every_500_ms(latency_ms: float) -> None:
    gap = mean_gap_ms(periodic(every=5, latency_ms=latency_ms), per_second=5, seconds=1000, seeds=[1, 2])

    assert 400 <= gap <= 650


def test_the_same_comes_out_when_the_nacks_come_at_random() -> None:
    gap = mean_gap_ms(flaky(share=0.2), per_second=5, seconds=2000, seeds=range(12))

    assert 400 <= gap <= 650


def test_nothing_but_nacks_make_a_delivery_every_30_to_60_seconds() -> None:
    told = history(dead(), seconds=3600, per_second=5)

    gaps = [(after - before) / 1000 for before, after in pairwise(told.sent_ms) if before > 120_000]
    assert len(gaps) > 50
    assert all(30 <= gap <= 60.1 for gap in gaps)


def test_a_dead_endpoint_is_tried_by_one_message_at_a_time() -> None:
    told = history(dead(from_ms=2000, latency_ms=100), seconds=60, waiting=100_000, samples=6000)

    late = [sample for sample in told.samples if sample.now_ms > 2500]
    assert max(sample.outstanding for sample in late) == 1


@pytest.mark.parametrize(("share", "per_second"), [(0.01, 5), (0.05, 5), (0.1, 5)])
def test_few_nacks_slow_nothing_down(share: float, per_second: float) -> None:
    told = history(flaky(share=share), seconds=600, per_second=per_second)

    assert told.acked == pytest.approx(600 * per_second, rel=0.02)


def test_a_full_lane_at_99_percent_is_not_slowed() -> None:
    told = history(flaky(share=0.008, latency_ms=100), seconds=3, waiting=100_000, size=200)

    assert not told.pauses
    assert told.per_second(from_ms=1500, to_ms=3000) > 0.9 * 3000 / 0.1


def test_more_nacks_make_longer_gaps() -> None:
    gaps = [mean_gap_ms(flaky(share=share), per_second=5, seconds=4000, seeds=[1, 2]) for share in (0.2, 0.3, 0.5, 1.0)]

    assert all(after > 2 * before for before, after in pairwise(gaps))


def test_slow_start_doubles_the_window_each_round_trip() -> None:
    told = history(healthy(latency_ms=100), seconds=1, waiting=100_000, samples=1000)

    windows = [at(told, 0.15 + 0.1 * trip).window for trip in range(7)]
    ratios = [after / before for before, after in pairwise(windows)]
    assert all(1.6 <= ratio <= 2.4 for ratio in ratios)
    assert at(told, 0).outstanding == 3


def test_beyond_3000_the_window_grows_linearly() -> None:
    told = history(healthy(latency_ms=200), seconds=4, waiting=300_000, size=2900)

    # 200 ms a round trip: five steps a second
    a_second = [at(told, second + 1).window - at(told, second).window for second in (1, 2)]
    assert a_second == pytest.approx([5 * LINEAR_STEP] * 2, rel=0.15)
    assert at(told, 4).window > 3000


def test_a_slow_endpoint_falls_back_to_3000_and_stays_there() -> None:
    told = history(slowing(at_ms=1500), seconds=6, waiting=300_000, size=5000)

    assert at(told, 1.4).window > 5000
    assert at(told, 3.5).window == 3000
    assert at(told, 6).window == 3000


def test_a_healed_endpoint_is_at_full_speed_after_a_pause_a_few_trials_and_slow_start() -> None:
    # Given an endpoint of 50 ms that was dead for a minute, and 500 messages/s offered
    healed_ms = 70_000
    told = history(dead(from_ms=10_000, until_ms=healed_ms, latency_ms=50), seconds=200, per_second=500, samples=4000)

    # Then nothing pauses after the pause in which it healed
    resumed_ms = told.pauses[-1][1]
    assert told.pauses[-1][0] < healed_ms
    assert resumed_ms - told.pauses[-1][0] <= 60_000
    # And after the trials and some ten round trips the window is wide open: a second later nothing waits any more
    assert at(told, resumed_ms / 1000).backlog > 20_000
    full_ms = resumed_ms + (HEALED_RUN + 10) * 60
    assert at(told, full_ms / 1000 + 1).window >= 3000
    assert at(told, full_ms / 1000 + 1).backlog == 0


def test_a_blip_of_a_second_costs_little_more_than_a_second() -> None:
    told = history(dead(from_ms=5000, until_ms=6000, latency_ms=50), seconds=12, per_second=1000, samples=1200)

    assert told.pauses[-1][1] < 7200
    assert at(told, 9.5).backlog == 0


def test_the_same_seed_tells_the_same_history() -> None:
    first, second = (history(flaky(share=0.3), seconds=60, per_second=50) for _ in range(2))

    assert first == second
