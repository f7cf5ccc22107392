"""The range of a page of charts: the range that an address asks for, and where the page's links lead."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from urllib.parse import parse_qsl

import pytest

from deliveries.admin.chart_range import MAX_PERIODS, RANGES, ChartRange, moved, parse_range, zoomed

NOW = datetime(2026, 11, 22, 8, 31, 12, tzinfo=UTC)


def parse(**fields: str) -> ChartRange:
    return parse_range(fields, now=NOW)


@pytest.mark.parametrize(
    ("name", "minutes"), [("1h", 1), ("6h", 5), ("24h", 60), ("7d", 120), ("30d", 480), ("ages", 1), ("", 1)]
)
def test_a_named_range_ends_with_the_period_that_is_not_over(name: str, minutes: int) -> None:
    shown = parse(range=name)
    assert shown.period == timedelta(minutes=minutes)
    assert shown.length == RANGES.get(name, timedelta(hours=1))
    assert shown.end - shown.period <= NOW < shown.end


def test_a_dragged_range_is_shown_in_whole_periods() -> None:
    shown = parse(start="2026-11-22T06:01:30Z", end="2026-11-22T08:00:10Z")
    assert (f"{shown.start:%H:%M}", f"{shown.end:%H:%M}", shown.period) == ("06:00", "08:02", timedelta(minutes=2))


@pytest.mark.parametrize(
    ("start", "end"),
    [("x", "y"), ("2026-11-22T06:00:00Z", ""), ("2026-11-22T07:00:00Z", "2026-11-22T06:00:00Z"), ("0001", "9999")],
)
def test_an_invalid_range_shows_the_last_hour(start: str, end: str) -> None:
    assert parse(start=start, end=end) == parse(range="1h")


@pytest.mark.parametrize(
    ("start", "end"),
    [
        ("0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z"),
        ("0001-01-01T00:00:00Z", "0001-01-01T00:00:01Z"),
        ("9999-01-01T00:00:00Z", "9999-12-31T23:59:59Z"),
        ("2026-11-22T08:00:00Z", "2026-11-22T08:00:01Z"),
    ],
)
def test_every_range_is_drawn_and_can_be_moved_and_zoomed(start: str, end: str) -> None:
    shown = parse(start=start, end=end)
    for seen in (shown, moved(shown, -1, now=NOW), moved(shown, 1, now=NOW), zoomed(shown, 2, now=NOW)):
        assert 5 <= seen.length / seen.period <= MAX_PERIODS + 2
        assert seen.end <= NOW + seen.period


def test_old_times_are_shown_from_the_coarser_data_that_is_still_kept() -> None:
    week, year = NOW - timedelta(days=9), NOW - timedelta(days=365)
    for start, period in ((week, timedelta(hours=1)), (year, timedelta(days=1))):
        shown = parse(start=f"{start:%Y-%m-%dT%H:%M:%SZ}", end=f"{start + timedelta(hours=6):%Y-%m-%dT%H:%M:%SZ}")
        assert shown.period == period


def test_the_links_keep_the_comparison_and_lead_to_the_range_that_they_name() -> None:
    shown = parse(range="1h", compare="week")
    assert shown.query() == "range=1h&compare=week"
    earlier = moved(shown, -1, now=NOW)
    assert parse_range(dict(parse_qsl(earlier.query())), now=NOW) == earlier
    assert earlier.end == shown.end - timedelta(hours=1)
    assert zoomed(earlier, 0.5, now=NOW).length == timedelta(minutes=30)
