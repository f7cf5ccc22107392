"""Which minutes and periods the curves of a span read."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from deliveries.telemetry.series.curves import Span
from deliveries.telemetry.series.series import floor


def test_the_minutes_of_the_last_hour_are_whole_minutes_whenever_the_span_ends() -> None:
    """Given a span of a week that ends within a minute, then every minute of its last hour is read."""
    end = datetime(2026, 11, 22, 10, 23, 36, tzinfo=UTC)
    span = Span("shop", "push", end - timedelta(days=7), end, timedelta(hours=1), now=end)
    last_hour = [end.replace(second=0) - timedelta(minutes=minute) for minute in range(60)]
    assert set(last_hour) <= set(span.minutes)
    assert all(minute.second == 0 for minute in span.minutes)


def test_the_minutes_of_the_last_hour_are_read_though_the_last_period_ends_hours_later() -> None:
    """Given a span whose last period has just begun, then every minute of the hour until now is read."""
    now = datetime(2026, 11, 22, 14, 7, 30, tzinfo=UTC)
    end = datetime(2026, 11, 22, 16, tzinfo=UTC)
    span = Span("shop", "push", end - timedelta(days=7), end, timedelta(hours=2), now=now)
    last_hour = [now.replace(second=0) - timedelta(minutes=minute) for minute in range(60)]
    assert set(last_hour) <= set(span.minutes)
    assert max(span.minutes) <= now + timedelta(minutes=1)


@pytest.mark.parametrize("days", [1, 2, 5, 10])
def test_the_week_before_has_as_many_periods_as_the_range(days: int) -> None:
    period = timedelta(days=days)
    start = floor(datetime(2026, 9, 1, tzinfo=UTC), period)
    span = Span("shop", "push", start, start + 9 * period, period)
    before = span.week_before
    assert len(span.times) == len(before.times) == 9
    assert [before.period_of(at - timedelta(days=7)) for at in (start, span.end - timedelta(seconds=1))] == [
        before.times[0],
        before.times[-1],
    ]
