"""The push backoff of a lane: when it pauses, for how long, and what ends it."""

from __future__ import annotations

import pytest

from deliveries.rules import backoff as rules
from deliveries.rules.backoff import FREE_LEVEL, TOP_LEVEL, Backoff


def result(
    backoff: Backoff,
    *,
    acked: bool,
    now_ms: float,
    latency_ms: float = 0,
    dice: float = 0.5,
    repeated: bool = False,
) -> Backoff:
    return rules.after_result(backoff, acked=acked, latency_ms=latency_ms, now_ms=now_ms, dice=dice, repeated=repeated)


def nacks(backoff: Backoff, count: int, *, dice: float = 0.5) -> Backoff:
    """Apply nacks one after the other, each of a request that was sent when the lane resumed."""
    for _ in range(count):
        backoff = result(backoff, acked=False, now_ms=max(backoff.resume_ms, 1000.0), dice=dice)
    return backoff


def acks(backoff: Backoff, count: int) -> Backoff:
    for _ in range(count):
        backoff = result(backoff, acked=True, now_ms=max(backoff.resume_ms, 1000.0))
    return backoff


def test_single_nacks_do_not_pause_a_lane() -> None:
    backoff = nacks(Backoff(), int(FREE_LEVEL))

    assert not rules.is_paused(backoff, now_ms=1000)
    assert not rules.is_backing_off(backoff)


def test_one_more_nack_pauses_the_lane_for_at_least_100_ms() -> None:
    backoff = nacks(Backoff(), int(FREE_LEVEL) + 1, dice=0)

    assert backoff.resume_ms == 1100
    assert rules.is_backing_off(backoff)


def test_a_pause_doubles_with_every_nack() -> None:
    pauses = [rules.pause_ms(FREE_LEVEL + step, dice=0.5) for step in range(1, 9)]

    assert pauses == [150 * 2**step for step in range(8)]


@pytest.mark.parametrize(("dice", "seconds"), [(0.0, 30), (0.5, 45), (0.999999999, 60)])
def test_if_all_results_are_nacks_a_pause_takes_30_to_60_seconds(dice: float, seconds: float) -> None:
    before = nacks(Backoff(), 20, dice=dice)
    after = nacks(before, 1, dice=dice)

    assert (after.resume_ms - before.resume_ms) / 1000 == pytest.approx(seconds)


@pytest.mark.parametrize("level", [0.0, 0.5, FREE_LEVEL, TOP_LEVEL, 1000.0])
@pytest.mark.parametrize("dice", [0.0, 0.5, 0.999999])
def test_no_pause_is_out_of_bounds(level: float, dice: float) -> None:
    assert 100 <= rules.pause_ms(level, dice=dice) <= 60_000


def test_thousands_of_nacks_in_flight_when_an_endpoint_dies_count_as_one() -> None:
    dying = nacks(Backoff(), int(FREE_LEVEL) + 1)

    backoff = dying
    for late_ms in range(3000):
        # Sent 5 ms before the pause began; the slowest responses arrive long after its end.
        backoff = result(backoff, acked=False, now_ms=1000 + late_ms, latency_ms=5 + late_ms)

    assert backoff == dying


def test_an_ack_of_a_request_from_before_a_pause_does_not_end_it() -> None:
    paused = nacks(Backoff(), 8)

    assert result(paused, acked=True, now_ms=paused.resume_ms + 10, latency_ms=500) == paused


def test_an_ack_starts_no_pause_and_ends_the_backoff() -> None:
    paused = nacks(Backoff(), 20)
    healed = acks(paused, 1)

    assert healed.resume_ms == paused.resume_ms
    assert healed.level == 0
    assert not rules.is_backing_off(healed)


def test_nacks_of_one_windowful_raise_the_level_by_one() -> None:
    # Given requests that all began before the first answer arrived
    backoff = Backoff()
    for number in range(100):
        backoff = result(backoff, acked=False, now_ms=1000 + number, latency_ms=200)

    assert backoff.level == 1


def test_a_message_that_has_failed_twice_raises_the_level_by_half() -> None:
    backoff = result(Backoff(level=2.0), acked=False, now_ms=1000, repeated=True)

    assert backoff.level == 2.5
