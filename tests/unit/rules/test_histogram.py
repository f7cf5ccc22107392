"""Exponential buckets: each value is in its bucket, and merging loses nothing."""

from __future__ import annotations

import random

import pytest

from deliveries.rules.histogram import bucket_of, coarser, merged, quantile, upper_bound


@pytest.mark.parametrize(("value", "bucket"), [(-3, 0), (0, 0), (1, 0), (2, 32), (3, 51), (8, 96), (1_000_000, 638)])
def test_a_value_falls_into_its_bucket(value: int, bucket: int) -> None:
    """Given values, including powers of two, when they are put into buckets, then each lies below its upper bound."""
    assert bucket_of(value) == bucket
    assert upper_bound(bucket) >= value
    assert bucket == 0 or upper_bound(bucket - 1) < value


def test_merged_histograms_equal_the_histogram_of_all_values() -> None:
    """Given two sets of values, when their histograms are merged, then the result is the histogram of all values."""
    dice = random.Random(7)
    values = [int(dice.lognormvariate(10, 2)) for _ in range(2000)]

    def histogram(some: list[int]) -> dict[int, int]:
        return merged({bucket_of(value): 1} for value in some)

    assert merged([histogram(values[:700]), histogram(values[700:])]) == histogram(values)


def test_a_coarser_histogram_is_that_of_the_coarser_scale() -> None:
    values = range(1, 5000)
    fine = merged({bucket_of(value): 1} for value in values)

    assert coarser(fine) == merged({bucket_of(value, scale=4): 1} for value in values)


@pytest.mark.parametrize("q", [0.01, 0.5, 0.95, 0.99, 1.0])
def test_a_quantile_is_within_a_bucket_of_the_truth(q: float) -> None:
    dice = random.Random(3)
    values = sorted(int(dice.lognormvariate(11, 1)) for _ in range(5000))
    truth = values[max(round(q * len(values)) - 1, 0)]

    estimate = quantile(merged({bucket_of(value): 1} for value in values), q)

    assert abs(estimate / truth - 1) < 0.012


def test_an_empty_histogram_has_no_quantile() -> None:
    assert quantile({}, 0.5) == 0.0
