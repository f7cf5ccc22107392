"""The push window, against docs/spec-delivery.md#push-window."""

from __future__ import annotations

from itertools import pairwise

import pytest

from bench.law import Law, rule
from deliveries.rules.flow import Flow, Phase

#: As after a thousand fast acks.
PROVEN = Flow(results_seen=1000.0, ack_ratio=1.0, latency_ms=50.0)
NOW_MS = 1_790_000_000_000.0


def result(law: Law, *, acked: bool, latency_ms: float, outstanding: float | None = None) -> None:
    """Count the result of a request that was sent in this round, with this many outstanding."""
    flow = law.flow
    law.spend(0, outstanding=int(flow.window if outstanding is None else outstanding), now_ms=0)
    law.result(acked=acked, latency_ms=latency_ms, now_ms=flow.round_began_ms + latency_ms)
    # These tests are about the window: a lane pauses before it is down to one.
    law.state["backoff_level"] = 0


def acks(flow: Flow, count: int, *, latency_ms: float = 50, outstanding: float | None = None) -> Flow:
    law = Law(flow)
    for _ in range(count):
        result(law, acked=True, latency_ms=latency_ms, outstanding=outstanding)
    return law.flow


def nack(flow: Flow, *, outstanding: float | None = None, latency_ms: float = 50) -> Flow:
    law = Law(flow)
    result(law, acked=False, latency_ms=latency_ms, outstanding=outstanding)
    return law.flow


def a_round(flow: Flow, *, nacks: int = 0, latency_ms: float = 50) -> Flow:
    """Return the flow after the results of the rest of the round, nacks first."""
    law = Law(flow)
    for number in range(10 * int(flow.window) + 100):
        before = law.state["round_results"]
        acked = number >= nacks
        result(law, acked=acked, latency_ms=latency_ms if acked else 50)
        if law.state["round_results"] <= before:
            return law.flow
    raise AssertionError("the round never ends")


def base_of(size: float, results: float, nacks: float = 0.0, latency_ms: float = 0.0) -> dict[str, float]:
    return {"base_size": size, "base_results": results, "base_nacks": nacks, "base_latency_ms": latency_ms}


def in_round(phase: Phase, size: float, **fields: float) -> Flow:
    return PROVEN._replace(window=size, phase=phase, round_size=size, round_peak=size, step=2.0, **fields)


def test_a_window_starts_at_three() -> None:
    assert Law().tokens == 3


def test_every_ack_of_a_small_window_adds_one_even_when_messages_come_singly() -> None:
    assert acks(Flow(), 50, outstanding=1).window == 53


def test_a_windowful_of_acks_doubles_the_window() -> None:
    assert acks(PROVEN._replace(window=200.0), 200, outstanding=200).window == 400


def test_slow_start_ends_at_three_thousand() -> None:
    flow = acks(PROVEN._replace(window=2999.5, round_size=2999.5), 1)

    assert flow.window == 3000


def test_beyond_slow_start_the_window_grows_linearly() -> None:
    sizes = [3000.0]
    flow = in_round(Phase.LARGER, 3000.0, **base_of(2970.0, 2970.0, 0.0, 50.0))
    for _ in range(3):
        flow = a_round(flow)
        sizes.append(flow.window)

    # Then each windowful adds the same, whatever the window
    assert [after - before for before, after in pairwise(sizes)] == [rule("LINEAR_STEP")] * 3


def test_the_window_never_exceeds_thirty_thousand() -> None:
    flow = in_round(Phase.LARGER, 29_990.0, **base_of(29_960.0, 29_960.0, 0.0, 50.0))

    assert a_round(flow).window == 30_000


@pytest.mark.parametrize(
    ("poor", "why"),
    [
        (PROVEN._replace(window=3000.0, latency_ms=1500.0), "slow"),
        (PROVEN._replace(window=3000.0, ack_ratio=0.98), "nacked too often"),
    ],
)
def test_a_slow_or_failing_endpoint_stays_at_three_thousand(poor: Flow, why: str) -> None:
    base = base_of(3000.0, 3000.0, 0.0, poor.latency_ms)
    flow = poor._replace(phase=Phase.BASE, round_size=3000.0, round_results=2999.0, round_peak=3000.0, **base)

    assert acks(flow, 5).window == 3000


def test_a_large_window_falls_back_when_the_mean_latency_passes_a_second() -> None:
    flow = acks(PROVEN._replace(window=12_000.0, latency_ms=998.5), 1, latency_ms=1000)
    assert flow.window == 12_000

    assert acks(flow, 3, latency_ms=3000).window == 3000


def test_a_large_window_falls_back_when_no_more_than_99_percent_are_acked() -> None:
    flow = nack(PROVEN._replace(window=12_000.0, ack_ratio=0.9915))
    assert flow.window > 3000

    assert nack(flow).window == 3000


def test_half_a_percent_of_nacks_leaves_room_beyond_slow_start() -> None:
    law = Law(in_round(Phase.REST, 2990.0)._replace(ack_ratio=0.995))
    for number in range(40_000):
        law.spend(0, outstanding=int(law.state["window"]), now_ms=0)
        law.result(acked=number % 200 > 0, latency_ms=50, now_ms=law.state["round_began_ms"] + 50)

    assert law.flow.window > 3000


def test_any_failure_shrinks_the_window() -> None:
    assert nack(in_round(Phase.REST, 1000.0)).window == 999


def test_nacks_of_requests_from_before_the_round_do_not_shrink_the_window() -> None:
    law = Law(in_round(Phase.REST, 400.0, round_began_ms=NOW_MS - 10))
    sizes = []
    for latency_ms in (11, 10):
        law.result(acked=False, latency_ms=latency_ms, now_ms=NOW_MS)
        sizes.append(law.flow.window)

    assert sizes == [400, 399]


def test_the_window_never_falls_under_one() -> None:
    flow = Flow()
    for _ in range(20):
        flow = nack(flow, outstanding=1)

    assert flow.window == 1
    assert Law(flow).tokens == 1


def test_a_window_that_is_not_used_does_not_grow() -> None:
    assert acks(PROVEN._replace(window=200.0), 1000, outstanding=99).window == 200
    assert acks(PROVEN._replace(window=200.0), 1, outstanding=100).window == 201


def test_slow_start_ends_at_the_window_before_the_one_that_was_nacked() -> None:
    flow = a_round(in_round(Phase.SLOW_START, 64.0), nacks=20)

    assert (flow.phase, flow.window) == (Phase.REST, 64)


def test_slow_start_ends_when_the_latency_grows_with_it() -> None:
    flow = in_round(Phase.SLOW_START, 64.0, **base_of(32.0, 32.0, 0.0, 50.0))

    flow = a_round(flow, latency_ms=80)

    assert (flow.phase, flow.window, flow.turn) == (Phase.REST, 64, 2)


def test_a_rest_and_a_base_come_before_a_trial() -> None:
    flow = a_round(in_round(Phase.REST, 100.0))
    assert (flow.phase, flow.window) == (Phase.BASE, 100)

    flow = a_round(flow)
    assert (flow.phase, flow.window) == (Phase.LARGER, 105)


@pytest.mark.parametrize(
    ("turn", "nacks", "phase", "size"),
    [
        (0, 0, Phase.LARGER, 105),
        (1, 8, Phase.FEWER_NACKS, 92),
        (2, 0, Phase.LOWER_LATENCY, 75),
        (0, 50, Phase.FEWER_NACKS, 50),
    ],
)
def test_trials_take_turns_but_for_an_endpoint_that_is_overloaded(
    turn: float, nacks: int, phase: Phase, size: float
) -> None:
    flow = a_round(in_round(Phase.BASE, 100.0, turn=turn), nacks=nacks)

    assert (flow.phase, flow.window) == (phase, size)


def test_a_larger_window_is_kept_and_the_next_trial_is_bolder() -> None:
    flow = a_round(in_round(Phase.LARGER, 102.0, **base_of(100.0, 100.0, 0.0, 50.0)))

    assert (flow.phase, flow.window, flow.base_size) == (Phase.LARGER, 106, 102)


def test_a_larger_window_is_given_up_when_what_it_adds_is_nacked() -> None:
    flow = a_round(in_round(Phase.LARGER, 110.0, **base_of(100.0, 100.0, 0.0, 50.0)), nacks=10)

    assert (flow.phase, flow.window) == (Phase.REST, 100)


def test_a_larger_window_is_kept_when_the_nacks_were_there_before() -> None:
    flow = a_round(in_round(Phase.LARGER, 110.0, **base_of(100.0, 100.0, 5.0, 50.0)), nacks=6)

    assert flow.window > 110


def test_a_larger_window_is_given_up_when_the_latency_grows_with_it() -> None:
    flow = a_round(in_round(Phase.LARGER, 110.0, **base_of(100.0, 100.0, 0.0, 50.0)), latency_ms=66)

    assert (flow.phase, flow.window) == (Phase.REST, 100)


@pytest.mark.parametrize(("latency_ms", "size"), [(11.9, 114), (12.1, 100)])
def test_a_few_milliseconds_of_noise_are_not_taken_for_a_full_endpoint(latency_ms: float, size: float) -> None:
    flow = in_round(Phase.LARGER, 110.0, **base_of(100.0, 100.0, 0.0, 2.0))

    assert a_round(flow, latency_ms=latency_ms).window == size


def test_slow_start_goes_on_when_the_latency_grows_by_a_few_milliseconds() -> None:
    flow = in_round(Phase.SLOW_START, 64.0, **base_of(32.0, 32.0, 0.0, 2.0))

    assert a_round(flow, latency_ms=10).phase == Phase.SLOW_START


@pytest.mark.parametrize(("latency_ms", "size"), [(3.1, 100), (2.9, 57)])
def test_a_quarter_less_is_kept_only_if_it_saves_milliseconds(latency_ms: float, size: float) -> None:
    flow = in_round(Phase.LOWER_LATENCY, 75.0, **base_of(100.0, 100.0, 0.0, 6.0))

    assert a_round(flow, latency_ms=latency_ms).window == size


def test_a_smaller_window_is_kept_when_the_nacks_are_gone() -> None:
    flow = a_round(in_round(Phase.FEWER_NACKS, 90.0, **base_of(100.0, 100.0, 10.0, 50.0)))

    assert (flow.phase, flow.window) == (Phase.REST, 90)


def test_a_smaller_window_is_given_up_when_as_many_are_nacked() -> None:
    flow = a_round(in_round(Phase.FEWER_NACKS, 90.0, **base_of(100.0, 100.0, 10.0, 50.0)), nacks=9)

    assert (flow.phase, flow.window) == (Phase.REST, 100)
    # And they count for the share of nacks that load does not explain
    assert flow.nack_share > 0


@pytest.mark.parametrize(("latency_ms", "size"), [(50, 100), (40, 57)])
def test_a_quarter_less_is_kept_when_the_latency_falls(latency_ms: float, size: float) -> None:
    flow = in_round(Phase.LOWER_LATENCY, 75.0, **base_of(100.0, 100.0, 0.0, 50.0))

    flow = a_round(flow, latency_ms=latency_ms)

    # 57 is a quarter less again
    assert flow.window == size


def test_a_round_that_uses_less_than_half_of_the_window_judges_nothing() -> None:
    flow = in_round(Phase.BASE, 110.0, nack_share=0.1, nack_share_seen=800.0)._replace(round_peak=0.0)
    for number in range(16):
        flow = nack(flow, outstanding=5) if number < 4 else acks(flow, 1, outstanding=5)

    assert flow.phase == Phase.REST
    assert flow.nack_share > 0.1
    # And a lane with a gap gives up the part that it does not use
    assert flow.gap_ms > 0
    assert flow.window == 6


def test_the_means_are_over_all_results_at_first() -> None:
    flow = acks(Flow(), 1, latency_ms=100)
    flow = acks(flow, 1, latency_ms=300)
    flow = nack(flow, latency_ms=500)

    assert flow.latency_ms == pytest.approx(300)
    assert flow.ack_ratio == pytest.approx(2 / 3)


def test_a_cap_bounds_the_tokens_and_not_the_window() -> None:
    tokens = [Law(PROVEN._replace(window=700.9, cap=cap)).tokens for cap in (0, 50, 1000)]

    assert tokens == [700, 50, 700]
