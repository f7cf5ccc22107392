"""Rows of metrics and gauges, as the counter and the maintenance worker write them."""

from __future__ import annotations

import itertools
from datetime import datetime

from deliveries.models import GaugeMinute, GaugeRound
from deliveries.rules.histogram import bucket_of
from deliveries.telemetry.counting.ledger import Partial, Sums, add_partials

_segments = itertools.count()


def add_events(
    resource: str,
    event: str = "push",
    *,
    at: datetime,
    count: int,
    response_class: str = "ack",
    response_code: int = 200,
    host: str = "",
    us: int = 0,
) -> None:
    """Count events in the minute, the hour and the day of a time. Each took `us` microseconds, if it is a push."""
    key = (resource, event, at.replace(second=0, microsecond=0), response_class, response_code, host)
    sums = Sums(resource.split("/")[1], count, 0, us * count, us, {bucket_of(us): count} if us else {})
    add_partials([Partial(f"segment-{next(_segments)}", key, sums)], job="test")


def add_gauge(resource: str, *, at: datetime, **figures: int) -> None:
    """Add the gauges of a subscription in a minute, of which those that are not given are usual."""
    GaugeRound.objects.get_or_create(at=at)
    usual = {"undelivered": 0, "oldest_unacked_seconds": 0, "outstanding": 0, "push_window": 3, "backoff_ms": 0}
    GaugeMinute.objects.create(project=resource.split("/")[1], resource=resource, at=at, **usual | figures)
