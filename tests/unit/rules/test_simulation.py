"""The goals of the flow control (docs/flow-control.md), on the simulator with the real rules."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest

from bench.drawing import Panel, draw
from bench.lane import Answer, Endpoint, History, Lane, Request
from bench.law import rule
from bench.simulate import (
    PLENTY,
    SCENARIOS,
    ack_rate,
    backing_off,
    dead,
    flaky,
    healthy,
    limited,
    mean_gap_ms,
    periodic,
    poisoned,
    queueing,
    slowing,
    wide_open,
)
from deliveries.rules.flow import Flow


def history(
    endpoint: Endpoint,
    *,
    seconds: float,
    per_second: float = 0,
    waiting: int = 0,
    size: float = 3,
    samples: int = 200,
    flow: Flow | None = None,
    max_attempts: int = 0,
) -> History:
    start = flow or Flow(window=size, round_size=size)
    lane = Lane(endpoint, per_second=per_second, waiting=waiting, flow=start, max_attempts=max_attempts)
    return lane.run(seconds, samples=samples)


@pytest.mark.parametrize(
    ("places", "latency_ms", "size", "seconds", "capacity", "nacks"),
    [
        (10, 50, 3, 15, 0.8, 0.04),
        (100, 50, 3, 15, 0.9, 0.01),
        (1000, 200, 3, 25, 0.9, 0.01),
        (5000, 500, 4800, 15, 0.9, 0.01),
    ],
)
def test_an_endpoint_with_a_hard_limit_is_used_and_not_overrun(
    places: int, latency_ms: float, size: float, seconds: float, capacity: float, nacks: float
) -> None:
    told = history(limited(places=places, latency_ms=latency_ms), seconds=seconds, waiting=PLENTY, size=size)

    assert told.acks_per_second(seconds - 5, seconds) >= capacity * places * 1000 / latency_ms
    assert told.nacks(seconds - 5, seconds) <= nacks


@pytest.mark.parametrize("then", [50, 200])
def test_a_limit_that_doubles_or_halves_is_followed_within_ten_seconds(then: int) -> None:
    told = history(limited(places=100, latency_ms=100, then=then, at_ms=8000), seconds=20, waiting=PLENTY)

    assert told.acks_per_second(17, 20) >= 0.9 * then * 10


@pytest.mark.parametrize(("percent", "kept"), [(1, 0.9), (2, 0.85), (5, 0.7)])
def test_nacks_that_load_does_not_explain_cost_little(percent: int, kept: float) -> None:
    rate = ack_rate(flaky(share=percent / 100, latency_ms=10), seeds=[1], seconds=14)

    assert rate >= kept * 3000


def test_no_point_of_nacks_costs_more_than_the_next_and_there_is_no_cliff() -> None:
    # Every second point, over several seeds, more where few messages are sent; the gap's own curve is in test_share.py
    rates = {
        percent: ack_rate(
            flaky(share=percent / 100, latency_ms=10), seeds=range(8 if percent > 12 else 3), seconds=seconds
        )
        for percent, seconds in [(5, 4), (8, 20), (10, 40), (12, 60), (14, 120), (17, 300), (20, 600)]
    }

    assert rates[10] >= 200
    assert rates[14] >= 30
    for (fewer, faster), (more, slower) in pairwise(rates.items()):
        assert 1 < faster / slower < 2 ** (more - fewer)


@pytest.mark.parametrize(("every", "seconds"), [(10, 20), (5, 600)])
def test_periodic_and_random_nacks_cost_the_same(every: int, seconds: float) -> None:
    even = ack_rate(periodic(every=every, latency_ms=10), seeds=[1, 2], seconds=seconds)
    at_random = ack_rate(flaky(share=1 / every, latency_ms=10), seeds=[1, 2, 3, 4], seconds=seconds)

    assert 0.5 < even / at_random < 2


@pytest.mark.parametrize("latency_ms", [20, 100])
def test_five_messages_and_one_nack_a_second_make_a_delivery_about_every_500_ms(latency_ms: float) -> None:
    told = history(periodic(every=5, latency_ms=latency_ms), seconds=1000, per_second=5)

    gaps = told.gaps_ms(after_ms=200_000)
    assert 400 <= sum(gaps) / len(gaps) <= 600
    assert min(gaps) > 100
    assert max(gaps) < 1500


@pytest.mark.parametrize("latency_ms", [20, 100])
@pytest.mark.parametrize("good_seconds", [0, 600])
def test_these_gaps_are_reached_within_a_minute(latency_ms: float, good_seconds: float) -> None:
    good, bad = healthy(latency_ms=latency_ms), periodic(every=5, latency_ms=latency_ms)

    def endpoint(request: Request) -> Answer:
        return (good if request.now_ms < good_seconds * 1000 else bad)(request)

    told = history(endpoint, seconds=good_seconds + 120, per_second=5)

    gaps = told.gaps_ms(after_ms=good_seconds * 1000 + 60_000)
    assert 400 <= sum(gaps) / len(gaps) <= 600


def test_random_nacks_make_the_same_gaps() -> None:
    runs = [Lane(flaky(share=0.2), per_second=5, seed=seed).run(2000) for seed in range(8)]

    gaps = [gap for run in runs for gap in run.gaps_ms(after_ms=400_000)]
    assert 400 <= sum(gaps) / len(gaps) <= 600
    assert max(gaps) < 1500
    for run in runs:
        late = [at for at in run.sent_ms if at > 400_000]
        assert all(third - first > 100 for first, third in zip(late, late[2:], strict=False))


def test_nothing_but_nacks_make_a_delivery_every_30_to_60_seconds() -> None:
    told = history(dead(), seconds=3600, per_second=5)

    gaps = [(after - before) / 1000 for before, after in pairwise(told.sent_ms) if before > 120_000]
    assert len(gaps) > 50
    assert all(30 <= gap <= 60.1 for gap in gaps)
    # And the pauses have grown from 100 ms
    assert 0.1 <= (told.pauses[0][1] - told.pauses[0][0]) / 1000 <= 0.2


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
    assert told.per_second(from_ms=1500, to_ms=3000) > 0.9 * 200 / 0.1


def test_more_nacks_make_longer_gaps() -> None:
    gaps = [mean_gap_ms(flaky(share=share), per_second=5, seconds=4000, seeds=[1, 2]) for share in (0.2, 0.3, 0.5, 1.0)]

    assert all(after > 2 * before for before, after in pairwise(gaps))


@pytest.mark.parametrize("servers", [10, 100])
def test_an_endpoint_that_lets_requests_wait_is_kept_near_its_knee(servers: int) -> None:
    told = history(queueing(servers=servers, latency_ms=100), seconds=15, waiting=PLENTY)

    assert told.acks_per_second(8, 15) >= 0.9 * servers * 10
    assert told.mean_latency_ms(8, 15) <= 200


def test_a_fast_endpoint_that_lets_requests_wait_is_used_and_answers_within_20_ms() -> None:
    told = history(queueing(servers=4, latency_ms=2), seconds=10, waiting=PLENTY)

    assert told.acks_per_second(5, 10) >= 1900
    assert told.mean_latency_ms(5, 10) <= 20


@pytest.mark.parametrize(
    "endpoint",
    [
        lambda: flaky(share=0.02, latency_ms=200),
        lambda: flaky(share=0.05, latency_ms=50),
        lambda: flaky(share=0.08, latency_ms=200),
        lambda: limited(places=20, latency_ms=200),
        lambda: queueing(servers=20, latency_ms=200),
    ],
)
def test_one_load_has_one_state(endpoint: Callable[[], Endpoint]) -> None:
    lanes = [Lane(endpoint(), waiting=PLENTY, flow=start._replace(cap=30)) for start in (backing_off(), wide_open())]
    rates = [lane.run(90).acks_per_second(60, 90) for lane in lanes]

    assert rates[0] == pytest.approx(rates[1], rel=0.2)


def test_slow_start_doubles_the_window_each_round_trip() -> None:
    told = history(healthy(latency_ms=100), seconds=1, waiting=100_000, samples=1000)

    windows = [told.at(0.15 + 0.1 * trip).window for trip in range(7)]
    ratios = [after / before for before, after in pairwise(windows)]
    assert all(1.6 <= ratio <= 2.4 for ratio in ratios)
    assert told.at(0).outstanding == 3


def test_beyond_3000_the_window_grows_linearly() -> None:
    told = history(healthy(latency_ms=200), seconds=5, waiting=PLENTY, size=2900)

    # A round takes two round trips of 200 ms
    a_second = [told.at(second + 1).window - told.at(second).window for second in (2, 3)]
    assert sum(a_second) / 2 == pytest.approx(2.5 * rule("LINEAR_STEP"), rel=0.15)
    assert told.at(5).window > 3000


def test_a_slow_endpoint_falls_back_to_3000_and_stays_there() -> None:
    told = history(slowing(at_ms=1500), seconds=8, waiting=300_000, flow=Flow(window=5000.0))

    assert told.at(1.4).window >= 5000
    assert {sample.window for sample in told.samples if sample.now_ms >= 3500} == {3000}


def test_a_window_that_has_reached_3000_stays_there_while_98_percent_are_acked() -> None:
    told = history(flaky(share=0.02, latency_ms=200), seconds=20, waiting=PLENTY, size=2900)

    sizes = [sample.window for sample in told.samples]
    reached = next(at for at, size in enumerate(sizes) if size >= 3000)
    assert reached < 100
    assert min(sizes[reached:]) == 3000


def test_a_window_of_3000_shrinks_when_an_endpoint_takes_fewer() -> None:
    told = history(
        limited(places=4000, then=1000, at_ms=4000, latency_ms=200), seconds=20, waiting=PLENTY, flow=wide_open()
    )

    assert told.at(4).window >= 3000
    assert told.at(20).window <= 1100
    assert told.nacks(15, 20) <= 0.02


@pytest.mark.parametrize("latency_ms", [100, 200])
def test_half_of_the_old_rate_is_back_5_s_after_the_first_ack_and_all_of_it_after_15(latency_ms: float) -> None:
    alive = limited(places=20, latency_ms=latency_ms)
    endpoint = dead(from_ms=10_000, until_ms=70_000, latency_ms=latency_ms, alive=alive)
    told = history(endpoint, seconds=150, waiting=PLENTY, samples=1500)

    old, healed = told.acks_per_second(5, 10), told.healed_ms / 1000
    assert 70 < healed < 130
    assert told.acks_per_second(healed + 5, healed + 6) >= 0.5 * old
    assert told.acks_per_second(healed + 15, healed + 18) >= 0.95 * old


def test_a_blip_of_a_second_costs_little_more_than_a_second() -> None:
    told = history(dead(from_ms=5000, until_ms=6000, latency_ms=50), seconds=12, per_second=1000, samples=1200)

    assert told.pauses[-1][1] < 7200
    assert told.at(9.5).backlog == 0


@pytest.mark.parametrize("per_second", [50, 500])
def test_poison_messages_become_dead_letters_and_the_others_flow(per_second: float) -> None:
    told = history(poisoned(every=20, count=30), seconds=60, per_second=per_second, max_attempts=5)

    assert told.dead_lettered == 30
    assert told.acked >= 0.98 * (60 * per_second - 30)


@pytest.mark.parametrize("latency_ms", [20, 200])
def test_one_poison_message_in_seven_slows_the_others_by_a_fifth_at_most(latency_ms: float) -> None:
    bad = poisoned(every=7, count=PLENTY, latency_ms=latency_ms)
    rates = []
    for endpoint in (bad, healthy(latency_ms=latency_ms)):
        lane = Lane(endpoint, waiting=7000, flow=Flow(cap=50), max_attempts=5)
        told = lane.run(300 * latency_ms / 20, samples=3000)
        # All of the good messages, and how long it took
        rates.append(told.acked / next(sample.now_ms for sample in told.samples if sample.acked == told.acked))

    assert rates[0] >= 0.8 * rates[1] * 6 / 7


@pytest.mark.parametrize("latency_ms", [5, 20, 200])
def test_poison_that_is_left_alone_is_dead_lettered_within_a_minute(latency_ms: float) -> None:
    endpoint = poisoned(every=7, count=30, latency_ms=latency_ms)
    told = history(endpoint, seconds=60, waiting=210, max_attempts=5)

    assert (told.acked, told.dead_lettered) == (180, 30)


def test_an_overloaded_endpoint_is_not_taken_for_poison() -> None:
    lane = Lane(limited(places=20, latency_ms=50), waiting=PLENTY)
    told = lane.run(30)

    assert not any(sample.poisoned for sample in told.samples)
    assert told.nacks(20, 30) <= 0.04


def test_poison_does_not_hide_that_an_endpoint_is_full() -> None:
    full = limited(places=20, latency_ms=50)

    def endpoint(request: Request) -> Answer:
        answer = full(request)
        return Answer(answer.acked and request.message % 7 > 0, answer.latency_ms)

    told = Lane(endpoint, waiting=PLENTY, max_attempts=5).run(30)

    late = [sample.window for sample in told.samples if sample.now_ms > 10_000]
    assert sum(late) / len(late) <= 26


def test_the_same_seed_gives_the_same_history() -> None:
    first, second = (history(flaky(share=0.3), seconds=60, per_second=50) for _ in range(2))

    assert first == second


def test_a_row_is_drawn_as_one_small_picture() -> None:
    scenario = SCENARIOS["nacks_20"]
    told = scenario.run(seed=1)

    picture = draw([Panel(scenario.title, scenario.figures(told), scenario.seconds, told.samples)] * 3)

    assert picture.count("<polyline") == 6
    assert scenario.title in picture
    assert len(picture) < 20_000
