"""The filter of time series: what it means, and where it is wrong."""

from __future__ import annotations

import pytest

from deliveries.telemetry.series.filters import Comparison, parse_filter
from pushhub.common.errors import InvalidArgument

TYPE = 'metric.type = "m"'


def test_comparisons_are_joined_by_and() -> None:
    """Given comparisons in all forms, when they are parsed, then each is there, and `label` is `labels`."""
    text = f'{TYPE} AND resource.label.subscription_id=one_of("a", "b")\nAND metric.labels.response_class != "ack"'

    assert parse_filter(text) == [
        Comparison("metric.type", False, "equal", ("m",)),
        Comparison("resource.labels.subscription_id", False, "one_of", ("a", "b")),
        Comparison("metric.labels.response_class", True, "equal", ("ack",)),
    ]


@pytest.mark.parametrize(
    ("comparison", "value", "holds"),
    [
        ('= "abc"', "abc", True),
        ('= "ab\\"c"', 'ab"c', True),
        ('!= "abc"', "abc", False),
        ('= starts_with("ab")', "abc", True),
        ('= ends_with("ab")', "abc", False),
        ('!= has_substring("b")', "abc", False),
        ('= one_of("x","abc")', "abc", True),
    ],
)
def test_a_comparison_holds_or_does_not(comparison: str, value: str, holds: bool) -> None:
    [parsed] = parse_filter(f"resource.labels.topic_id {comparison}")

    assert parsed.holds(value) is holds


@pytest.mark.parametrize(
    ("text", "column"),
    [
        ("", 1),
        ("metric.type", 12),
        ('metric.type ~ "x"', 13),
        ("metric.type = x", 15),
        ('metric.type = "x', 15),
        ('metric.kind = "x"', 1),
        (f'{TYPE} OR metric.type = "x"', 19),
        (f"{TYPE} AND", 22),
        (f'{TYPE} AND resource.type = starts_with("a", "b")', 54),
        (f'{TYPE} AND resource.type = launch("a")', 39),
        (f'{TYPE}, project = "x"', 18),
    ],
)
def test_a_fault_names_its_column(text: str, column: int) -> None:
    with pytest.raises(InvalidArgument, match=f"at column {column}: expected"):
        parse_filter(text)


def test_an_endless_filter_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="longer than 2048 characters"):
        parse_filter('metric.type = "' + "x" * 3000 + '"')
