"""The countdown of one nacked message."""

from __future__ import annotations

from itertools import pairwise

import pytest

from deliveries.rules.retry import countdown_ms

DICE = [0.0, 0.25, 0.5, 0.999999]


@pytest.mark.parametrize("attempt", range(1, 10))
def test_the_countdown_is_100_ms_doubled_with_every_attempt_give_or_take_a_quarter(attempt: int) -> None:
    middle = 100 * 2 ** (attempt - 1)

    for dice in DICE:
        assert max(100, middle * 0.75) <= countdown_ms(attempt, dice=dice) <= middle * 1.25


@pytest.mark.parametrize("attempt", [11, 12, 1000, 10**9])
@pytest.mark.parametrize("dice", DICE)
def test_it_never_exceeds_a_minute_however_many_attempts(attempt: int, dice: float) -> None:
    assert 45_000 <= countdown_ms(attempt, dice=dice) <= 60_000


def test_messages_nacked_together_come_back_apart() -> None:
    countdowns = [countdown_ms(3, dice=step / 10) for step in range(10)]

    assert all(after > before for before, after in pairwise(countdowns))


@pytest.mark.parametrize("dice", DICE)
@pytest.mark.parametrize("attempt", [1, 2, 3, 5, 7, 100])
def test_a_retry_policy_replaces_the_bounds(attempt: int, dice: float) -> None:
    countdown = countdown_ms(attempt, dice=dice, minimum_ms=10_000, maximum_ms=600_000)

    middle = min(10_000 * 2 ** (attempt - 1), 600_000)
    assert max(10_000, middle * 0.75) <= countdown <= min(600_000, middle * 1.25)


@pytest.mark.parametrize("dice", DICE)
def test_equal_bounds_leave_no_jitter(dice: float) -> None:
    assert countdown_ms(4, dice=dice, minimum_ms=5000, maximum_ms=5000) == 5000


def test_a_maximum_of_zero_means_at_once() -> None:
    assert countdown_ms(50, dice=0.9, minimum_ms=0, maximum_ms=0) == 0


def test_a_minimum_of_zero_still_grows() -> None:
    countdowns = [countdown_ms(attempt, dice=0.5, minimum_ms=0, maximum_ms=600_000) for attempt in (1, 2, 3)]

    assert countdowns == [100, 200, 400]


def test_a_maximum_under_our_own_minimum_wins() -> None:
    assert countdown_ms(1, dice=0.5, maximum_ms=50) == 50
