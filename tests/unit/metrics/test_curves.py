"""Which minutes and periods the curves of a span read."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from deliveries.metrics.curves import Span


def test_the_minutes_of_the_last_hour_are_whole_minutes_whenever_the_span_ends() -> None:
    """Given a span of a week that ends within a minute, then every minute of its last hour is read."""
    end = datetime(2026, 11, 22, 10, 23, 36, tzinfo=UTC)
    span = Span("shop", "push", end - timedelta(days=7), end, timedelta(hours=1))
    last_hour = [end.replace(second=0) - timedelta(minutes=minute) for minute in range(60)]
    assert set(last_hour) <= set(span.minutes)
    assert all(minute.second == 0 for minute in span.minutes)
