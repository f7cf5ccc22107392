"""The push window, against docs/spec.md#push-window."""

from __future__ import annotations

from itertools import pairwise

import pytest

from deliveries.rules import window as rules
from deliveries.rules.share import Share
from deliveries.rules.window import Base, Phase, Round, Window

#: As after a thousand fast acks.
PROVEN = Window(seen=1000.0, ack_ratio=1.0, latency_ms=50.0)
NOW_MS = 1_790_000_000_000.0


def result(window: Window, *, acked: bool, latency_ms: float, outstanding: float | None) -> Window:
    """Apply the result of a request that was sent in this round, with this many outstanding."""
    held = window.size if outstanding is None else outstanding
    window = rules.with_means(rules.sent(window, outstanding=held), acked=acked, latency_ms=latency_ms)
    now_ms = window.round.began_ms + latency_ms
    return rules.after_result(window, acked=acked, latency_ms=latency_ms, now_ms=now_ms)


def acks(window: Window, count: int, *, latency_ms: float = 50, outstanding: float | None = None) -> Window:
    for _ in range(count):
        window = result(window, acked=True, latency_ms=latency_ms, outstanding=outstanding)
    return window


def nack(window: Window, *, outstanding: float | None = None, latency_ms: float = 50) -> Window:
    return result(window, acked=False, latency_ms=latency_ms, outstanding=outstanding)


def a_round(window: Window, *, nacks: int = 0, latency_ms: float = 50) -> Window:
    """Apply the results of the rest of the round, nacks first."""
    for number in range(10 * int(window.size) + 100):
        before = window.round.results
        window = nack(window) if number < nacks else acks(window, 1, latency_ms=latency_ms)
        if window.round.results <= before:
            return window
    raise AssertionError("the round never ends")


def in_round(phase: Phase, size: float, *, base: Base | None = None, turn: float = 0.0) -> Window:
    round_ = Round(phase, size=size, peak=size)
    return PROVEN._replace(size=size, round=round_, base=base or Base(), turn=turn, step=2.0)


def test_a_window_starts_at_three() -> None:
    assert rules.tokens(Window()) == 3


def test_every_ack_of_a_small_window_adds_one_even_when_messages_come_singly() -> None:
    assert acks(Window(), 50, outstanding=1).size == 53


def test_a_windowful_of_acks_doubles_the_window() -> None:
    assert acks(PROVEN._replace(size=200.0), 200, outstanding=200).size == 400


def test_slow_start_ends_at_three_thousand() -> None:
    window = acks(PROVEN._replace(size=2999.5, round=Round(size=2999.5)), 1)

    assert window.size == 3000


def test_beyond_slow_start_the_window_grows_linearly() -> None:
    sizes = [3000.0]
    window = in_round(Phase.LARGER, 3000.0, base=Base(2970.0, 2970.0, 0.0, 50.0))
    for _ in range(3):
        window = a_round(window)
        sizes.append(window.size)

    # Then each windowful adds the same, whatever the window
    assert [after - before for before, after in pairwise(sizes)] == [rules.LINEAR_STEP] * 3


def test_the_window_never_exceeds_thirty_thousand() -> None:
    window = in_round(Phase.LARGER, 29_990.0, base=Base(29_960.0, 29_960.0, 0.0, 50.0))

    assert a_round(window).size == 30_000


@pytest.mark.parametrize(
    ("poor", "why"),
    [
        (PROVEN._replace(size=3000.0, latency_ms=1500.0), "slow"),
        (PROVEN._replace(size=3000.0, ack_ratio=0.98), "nacked too often"),
    ],
)
def test_a_slow_or_failing_endpoint_stays_at_three_thousand(poor: Window, why: str) -> None:
    base = Base(3000.0, 3000.0, 0.0, poor.latency_ms)
    window = poor._replace(round=Round(Phase.BASE, size=3000.0, results=2999.0, peak=3000.0), base=base)

    assert acks(window, 5).size == 3000


def test_a_large_window_falls_back_when_the_mean_latency_passes_a_second() -> None:
    window = acks(PROVEN._replace(size=12_000.0, latency_ms=998.5), 1, latency_ms=1000)
    assert window.size == 12_000

    assert acks(window, 3, latency_ms=3000).size == 3000


def test_a_large_window_falls_back_when_no_more_than_99_percent_are_acked() -> None:
    window = nack(PROVEN._replace(size=12_000.0, ack_ratio=0.9915))
    assert window.size > 3000

    assert nack(window).size == 3000


def test_half_a_percent_of_nacks_leaves_room_beyond_slow_start() -> None:
    window = in_round(Phase.REST, 2990.0)._replace(ack_ratio=0.995)
    for number in range(40_000):
        window = nack(window) if number % 200 == 0 else acks(window, 1)

    assert window.size > 3000


def test_any_failure_shrinks_the_window() -> None:
    assert nack(in_round(Phase.REST, 1000.0)).size == 999


def test_nacks_of_requests_from_before_the_round_do_not_shrink_the_window() -> None:
    window = PROVEN._replace(size=400.0, round=Round(Phase.REST, began_ms=NOW_MS - 10, size=400.0))

    sizes = [
        rules.after_result(window, acked=False, latency_ms=latency_ms, now_ms=NOW_MS).size for latency_ms in (11, 10)
    ]
    assert sizes == [400, 399]


def test_the_window_never_falls_under_one() -> None:
    window = Window()
    for _ in range(20):
        window = nack(window, outstanding=1)

    assert window.size == 1
    assert rules.tokens(window) == 1


def test_a_window_that_is_not_used_does_not_grow() -> None:
    assert acks(PROVEN._replace(size=200.0), 1000, outstanding=99).size == 200
    assert acks(PROVEN._replace(size=200.0), 1, outstanding=100).size == 201


def test_a_pause_restarts_the_window_and_keeps_the_means() -> None:
    window = in_round(Phase.LARGER, 700.0, base=Base(690.0, 690.0))

    restarted = rules.restarted(window, at_ms=NOW_MS)

    assert restarted == window._replace(size=1.0, round=Round(Phase.SLOW_START, NOW_MS, 1.0), base=Base())


def test_slow_start_ends_at_the_window_before_the_one_that_was_nacked() -> None:
    window = a_round(in_round(Phase.SLOW_START, 64.0), nacks=20)

    assert (window.round.phase, window.size) == (Phase.REST, 64)


def test_slow_start_ends_when_the_latency_grows_with_it() -> None:
    window = in_round(Phase.SLOW_START, 64.0, base=Base(32.0, 32.0, 0.0, 50.0))

    window = a_round(window, latency_ms=80)

    assert (window.round.phase, window.size, window.turn) == (Phase.REST, 64, 2)


def test_a_rest_and_a_base_come_before_a_trial() -> None:
    window = a_round(in_round(Phase.REST, 100.0))
    assert (window.round.phase, window.size) == (Phase.BASE, 100)

    window = a_round(window)
    assert (window.round.phase, window.size) == (Phase.LARGER, 105)


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
    window = a_round(in_round(Phase.BASE, 100.0, turn=turn), nacks=nacks)

    assert (window.round.phase, window.size) == (phase, size)


def test_a_larger_window_is_kept_and_the_next_trial_is_bolder() -> None:
    window = a_round(in_round(Phase.LARGER, 102.0, base=Base(100.0, 100.0, 0.0, 50.0)))

    assert (window.round.phase, window.size, window.base.size) == (Phase.LARGER, 106, 102)


def test_a_larger_window_is_given_up_when_what_it_adds_is_nacked() -> None:
    window = a_round(in_round(Phase.LARGER, 110.0, base=Base(100.0, 100.0, 0.0, 50.0)), nacks=10)

    assert (window.round.phase, window.size) == (Phase.REST, 100)


def test_a_larger_window_is_kept_when_the_nacks_were_there_before() -> None:
    window = a_round(in_round(Phase.LARGER, 110.0, base=Base(100.0, 100.0, 5.0, 50.0)), nacks=6)

    assert window.size > 110


def test_a_larger_window_is_given_up_when_the_latency_grows_with_it() -> None:
    window = a_round(in_round(Phase.LARGER, 110.0, base=Base(100.0, 100.0, 0.0, 50.0)), latency_ms=66)

    assert (window.round.phase, window.size) == (Phase.REST, 100)


@pytest.mark.parametrize(("latency_ms", "size"), [(11.9, 114), (12.1, 100)])
def test_a_few_milliseconds_of_noise_are_not_taken_for_a_full_endpoint(latency_ms: float, size: float) -> None:
    window = in_round(Phase.LARGER, 110.0, base=Base(100.0, 100.0, 0.0, 2.0))

    assert a_round(window, latency_ms=latency_ms).size == size


def test_slow_start_goes_on_when_the_latency_grows_by_a_few_milliseconds() -> None:
    window = in_round(Phase.SLOW_START, 64.0, base=Base(32.0, 32.0, 0.0, 2.0))

    assert a_round(window, latency_ms=10).round.phase == Phase.SLOW_START


@pytest.mark.parametrize(("latency_ms", "size"), [(3.1, 100), (2.9, 57)])
def test_a_quarter_less_is_kept_only_if_it_saves_milliseconds(latency_ms: float, size: float) -> None:
    window = in_round(Phase.LOWER_LATENCY, 75.0, base=Base(100.0, 100.0, 0.0, 6.0))

    assert a_round(window, latency_ms=latency_ms).size == size


def test_a_smaller_window_is_kept_when_the_nacks_are_gone() -> None:
    window = a_round(in_round(Phase.FEWER_NACKS, 90.0, base=Base(100.0, 100.0, 10.0, 50.0)))

    assert (window.round.phase, window.size) == (Phase.REST, 90)


def test_a_smaller_window_is_given_up_when_as_many_are_nacked() -> None:
    window = a_round(in_round(Phase.FEWER_NACKS, 90.0, base=Base(100.0, 100.0, 10.0, 50.0)), nacks=9)

    assert (window.round.phase, window.size) == (Phase.REST, 100)
    # And they count for the share of nacks that load does not explain
    assert window.share.nacks > 0


@pytest.mark.parametrize(("latency_ms", "size"), [(50, 100), (40, 57)])
def test_a_quarter_less_is_kept_when_the_latency_falls(latency_ms: float, size: float) -> None:
    window = in_round(Phase.LOWER_LATENCY, 75.0, base=Base(100.0, 100.0, 0.0, 50.0))

    window = a_round(window, latency_ms=latency_ms)

    # 57 is a quarter less again
    assert window.size == size


def test_a_round_that_uses_less_than_half_of_the_window_judges_nothing() -> None:
    window = in_round(Phase.BASE, 110.0)._replace(round=Round(Phase.BASE, size=110.0), share=Share(0.1, seen=800.0))
    for number in range(16):
        window = nack(window, outstanding=5) if number < 4 else acks(window, 1, outstanding=5)

    assert window.round.phase == Phase.REST
    assert window.share.nacks > 0.1
    # And a lane with a gap gives up the part that it does not use
    assert window.share.gap_ms > 0
    assert window.size == 6


def test_the_means_are_over_all_results_at_first() -> None:
    window = acks(Window(), 1, latency_ms=100)
    window = acks(window, 1, latency_ms=300)
    window = nack(window, latency_ms=500)

    assert window.latency_ms == pytest.approx(300)
    assert window.ack_ratio == pytest.approx(2 / 3)


def test_a_cap_bounds_the_tokens_and_not_the_window() -> None:
    window = PROVEN._replace(size=700.9)

    assert rules.tokens(window) == 700
    assert rules.tokens(window, cap=50) == 50
    assert rules.tokens(window, cap=1000) == 700
