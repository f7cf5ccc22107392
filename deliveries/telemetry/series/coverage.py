"""Which periods the metrics cover: those whose events are counted, and those in which gauges were taken."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from deliveries.models import CountingLease, GaugeRound
from deliveries.telemetry.series.curves import Span
from deliveries.telemetry.series.expiry import MINUTES_KEPT
from pushhub.common.clock import Clock, utcnow
from pushhub.common.replica import subtract_age


@dataclass(frozen=True, slots=True)
class Counting:
    """How far events are counted into the metrics. `counter` is "spark", "embedded", or "" if none ever counted."""

    counter: str
    counted_to: datetime | None
    waiting: int
    #: Whether the counter still renews its lease.
    runs: bool


@dataclass(frozen=True, slots=True)
class Coverage:
    """For each period of a span, whether its events are counted, and whether gauges were taken in it."""

    counted: Sequence[bool]
    taken: Sequence[bool]


def counting(*, clock: Clock = utcnow) -> Counting:
    """Return which counter counts, and how far it is."""
    lease = CountingLease.objects.first()
    if lease is None:
        return Counting("", None, 0, runs=False)
    return Counting(lease.counter, lease.counted_to, lease.waiting, runs=lease.until > subtract_age(clock()))


def coverage(span: Span, counted_to: datetime | None, *, clock: Clock = utcnow) -> Coverage:
    """Return which periods the metrics cover.

    A maintenance worker that was stopped has taken no gauges, but counts the events of that time afterwards.
    """
    times = span.times
    counted_until = counted_to.timestamp() if counted_to is not None else 0.0
    # Rounds expire together with the gauges, so an older period without a row counts as taken.
    kept_from = (clock() - MINUTES_KEPT).timestamp()
    step = int(span.period.total_seconds())
    rounds = GaugeRound.objects.filter(at__in=span.minutes).values_list("at", flat=True)
    taken = {int(at.timestamp()) // step * step for at in rounds}
    return Coverage(counted=[at < counted_until for at in times], taken=[at in taken or at < kept_from for at in times])
