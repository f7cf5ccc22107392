"""The rate limit of a subscription."""

from __future__ import annotations

import pytest

from bench.law import Law
from deliveries.rules.flow import Flow

NOW_MS = 1_790_000_000_000.0
#: A lane whose window never matters.
WIDE = Flow(window=1000.0, rate=5.0, burst=20.0)


def free(law: Law, *, now_ms: float = NOW_MS) -> int:
    return law.free(outstanding=0, now_ms=now_ms)


def test_a_new_bucket_is_full() -> None:
    assert free(Law(WIDE)) == 20


@pytest.mark.parametrize(("rate", "burst", "depth"), [(5, 20, 20), (5, 0, 5), (0.1, 0, 1), (100, 0.5, 1)])
def test_the_depth_of_a_bucket_is_the_burst_or_a_second_and_at_least_one(
    rate: float, burst: float, depth: float
) -> None:
    assert free(Law(WIDE._replace(rate=rate, burst=burst))) == depth


def test_a_bucket_refills_at_its_rate_up_to_its_burst() -> None:
    law = Law(WIDE._replace(bucket_filled_ms=NOW_MS))

    assert free(law, now_ms=NOW_MS + 500) == 2
    assert law.flow.bucket_tokens == 2.5
    assert free(law, now_ms=NOW_MS + 60_000) == 20


def test_asking_often_gains_nothing() -> None:
    law = Law(WIDE._replace(bucket_filled_ms=NOW_MS))
    for step in range(1, 1001):
        free(law, now_ms=NOW_MS + step)

    assert law.flow.bucket_tokens == pytest.approx(5)


def test_a_clock_that_went_back_refills_nothing_and_a_bucket_goes_on_from_there() -> None:
    law = Law(WIDE._replace(bucket_tokens=1.0, bucket_filled_ms=NOW_MS))

    assert free(law, now_ms=NOW_MS - 600_000) == 1
    assert free(law, now_ms=NOW_MS - 599_000) == 6


def test_a_bucket_says_when_the_next_message_may_go() -> None:
    assert Law(WIDE._replace(bucket_tokens=0.5, bucket_filled_ms=NOW_MS)).bucket_wait_ms(now_ms=NOW_MS) == NOW_MS + 100
    assert Law(WIDE._replace(bucket_tokens=3.0, bucket_filled_ms=NOW_MS)).bucket_wait_ms(now_ms=NOW_MS) is None


def test_spent_tokens_are_gone() -> None:
    law = Law(WIDE._replace(bucket_tokens=3.5, bucket_filled_ms=NOW_MS))

    law.spend(3, outstanding=3, now_ms=NOW_MS)

    assert free(law) == 0
