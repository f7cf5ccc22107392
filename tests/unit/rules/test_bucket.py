"""The rate limit of a subscription."""

from __future__ import annotations

import pytest

from deliveries.rules import bucket as rules
from deliveries.rules.bucket import Bucket

NOW_MS = 1_790_000_000_000.0


def test_a_new_bucket_is_full() -> None:
    assert rules.whole(rules.refilled(Bucket(), now_ms=NOW_MS, rate=5, burst=20)) == 20


@pytest.mark.parametrize(("rate", "burst", "depth"), [(5, 20, 20), (5, 0, 5), (0.1, 0, 1), (100, 0.5, 1)])
def test_the_depth_of_a_bucket_is_the_burst_or_a_second_and_at_least_one(
    rate: float, burst: float, depth: float
) -> None:
    assert rules.depth(rate, burst) == depth


def test_a_bucket_refills_at_its_rate_up_to_its_burst() -> None:
    empty = Bucket(tokens=0, filled_ms=NOW_MS)

    assert rules.refilled(empty, now_ms=NOW_MS + 500, rate=5, burst=20).tokens == 2.5
    assert rules.refilled(empty, now_ms=NOW_MS + 60_000, rate=5, burst=20).tokens == 20


def test_asking_often_gains_nothing() -> None:
    bucket = Bucket(tokens=0, filled_ms=NOW_MS)
    for step in range(1, 1001):
        bucket = rules.refilled(bucket, now_ms=NOW_MS + step, rate=5, burst=20)

    assert bucket.tokens == pytest.approx(5)


def test_a_clock_that_went_back_refills_nothing_now_or_later() -> None:
    bucket = rules.refilled(Bucket(tokens=1, filled_ms=NOW_MS), now_ms=NOW_MS - 10_000, rate=5, burst=20)

    assert bucket == Bucket(tokens=1, filled_ms=NOW_MS)


def test_a_bucket_says_when_the_next_message_may_go() -> None:
    assert rules.next_ms(Bucket(tokens=0.5, filled_ms=NOW_MS), rate=5) == NOW_MS + 100
    assert rules.next_ms(Bucket(tokens=3, filled_ms=NOW_MS), rate=5) == NOW_MS


def test_spent_tokens_are_gone() -> None:
    assert rules.whole(rules.spent(Bucket(tokens=3.5, filled_ms=NOW_MS), 3)) == 0
