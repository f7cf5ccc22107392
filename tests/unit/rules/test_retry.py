"""The countdown of a nacked message."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.law import rule
from deliveries.rules.retry import JITTER, MAXIMUM_MS, countdown_ms, retry_after_seconds

DICE = [0.0, 0.25, 0.5, 0.999999]


@pytest.mark.parametrize("attempt", range(1, 10))
def test_the_countdown_is_100_ms_doubled_with_every_attempt_give_or_take_a_quarter(attempt: int) -> None:
    middle = 100 * 2 ** (attempt - 1)

    for dice in DICE:
        assert max(100, middle * 0.75) <= countdown_ms(attempt, dice=dice) <= middle * 1.25


@pytest.mark.parametrize("attempt", [11, 12, 1000, 10**9])
@pytest.mark.parametrize("dice", DICE)
def test_the_countdown_never_exceeds_a_minute(attempt: int, dice: float) -> None:
    assert 45_000 <= countdown_ms(attempt, dice=dice) <= 60_000


def test_messages_nacked_together_come_back_at_different_times() -> None:
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


@pytest.mark.parametrize("dice", DICE)
def test_the_countdown_is_at_least_the_retry_after(dice: float) -> None:
    countdown = countdown_ms(1, dice=dice, at_least_ms=30_000)
    assert 30_000 <= countdown <= 30_000 * (1 + JITTER)
    assert countdown_ms(50, dice=dice, at_least_ms=10) == countdown_ms(50, dice=dice), "the countdown is longer"


@pytest.mark.parametrize(("maximum_ms", "expected"), [(None, MAXIMUM_MS), (5_000, 5_000), (0, 0)])
def test_a_retry_after_is_bounded_by_the_maximum(maximum_ms: float | None, expected: float) -> None:
    assert countdown_ms(1, dice=0.5, maximum_ms=maximum_ms, at_least_ms=1e12) == expected


@given(
    attempt=st.integers(1, 60),
    bounds_ms=st.tuples(*[st.sampled_from([0.0, 100.0, 600_000.0]) | st.floats(0, 700_000)] * 2),
    dice=st.floats(0, 1, exclude_max=True),
)
def test_a_lease_that_lapses_has_the_same_countdown(attempt: int, bounds_ms: tuple[float, float], dice: float) -> None:
    minimum_ms, maximum_ms = bounds_ms
    countdown = countdown_ms(attempt, minimum_ms=minimum_ms, maximum_ms=maximum_ms, dice=dice)

    assert rule("rules_countdown")(attempt, minimum_ms, maximum_ms, dice) == countdown


NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("120", 120),
        ("0", 0),
        ("99999999999999999999", 999_999_999),
        ("Sun, 22 Nov 2026 12:00:30 GMT", 30),
        ("Sun, 22 Nov 2026 11:00:00 GMT", 0),
        *[(wrong, 0) for wrong in ("", "-5", "1.5", "soon", "\u0664", "Sun, 99 Nov 2026")],
    ],
)
def test_retry_after_is_seconds_or_a_date(value: str, seconds: float) -> None:
    assert retry_after_seconds(value, now=NOW) == seconds


@given(st.text(max_size=64))
def test_any_retry_after_is_read(value: str) -> None:
    assert retry_after_seconds(value, now=NOW) >= 0
