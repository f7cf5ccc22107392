"""The curves of a subscription that the console draws."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

import orjson
from django.db.models import TextField
from django.db.models.functions import Cast

from deliveries.models import GaugeMinute, Metric, MetricMinute
from deliveries.rules.histogram import merged, quantile
from deliveries.store.metricrows import of_resources
from deliveries.telemetry.series.series import MINUTE, table_of
from pushhub.common.clock import utcnow
from pushhub.common.names import subscription_name

#: The response classes in the order in which they are stacked.
CLASSES = (
    *("ack", "remote_server_5xx", "remote_server_4xx", "unreachable"),
    *("deadline_exceeded", "invalid", "internal"),
)
QUANTILES = (0.5, 0.95, 0.99)
WEEK = timedelta(days=7)

Values = list[float | None]


@dataclass(frozen=True, slots=True)
class Span:
    """A subscription between two times, divided into periods."""

    project: str
    subscription: str
    start: datetime
    end: datetime
    period: timedelta
    #: The last period may end hours later.
    now: datetime = field(default_factory=utcnow)

    @property
    def resource(self) -> str:
        return subscription_name(self.project, self.subscription)

    @property
    def times(self) -> list[int]:
        """The beginning of each period, in seconds since 1970."""
        return list(range(self._first, int(self.end.timestamp()), int(self.period.total_seconds())))

    @property
    def _first(self) -> int:
        """The minute in which the first period begins."""
        return int(self.start.timestamp()) // 60 * 60

    def period_of(self, at: datetime) -> int:
        """Return the beginning of the period in which a time lies, in seconds since 1970.

        Periods count from the start of the span: a week is no whole number of long periods, and the week before has
        the same days as the range.
        """
        step = int(self.period.total_seconds())
        return self._first + (int(at.timestamp()) - self._first) // step * step

    @property
    def minutes(self) -> list[datetime]:
        """The minutes whose gauges are read: all of the last hour and ten per period, because a month has 43,200."""
        step = max(int(self.period.total_seconds()) // 600, 1) * 60
        start, end = self.times[0], int(min(self.end, self.now + MINUTE).timestamp())
        last_hour = max(start, end - 3600) // 60 * 60
        sampled = {*range(start, end, step), *range(last_hour, end, 60)}
        return [datetime.fromtimestamp(at, UTC) for at in sorted(sampled)]

    @property
    def week_before(self) -> Span:
        return replace(self, start=self.start - WEEK, end=self.end - WEEK)


@dataclass(slots=True)
class Events:
    """The counted events of one period."""

    pushes: dict[str, int] = field(default_factory=dict)
    #: A histogram with the numbers of its buckets as text, as in the database.
    latencies_us: dict[str, int] = field(default_factory=dict)
    dead_letters: int = 0


@dataclass(frozen=True, slots=True)
class Counts:
    """Curves of events. A period that isn't counted yet is None, and so is the latency of a period without pushes."""

    #: By response class, without the classes that didn't occur.
    pushes: dict[str, Values]
    latencies_ms: dict[float, Values]
    dead_letters: Values


@dataclass(frozen=True, slots=True)
class Recent:
    """Sums over a few minutes: pushes by response class, in the order of CLASSES, and quantiles or None."""

    pushes: dict[str, int]
    latencies_ms: dict[float, float | None]


@dataclass(frozen=True, slots=True)
class Gauges:
    """Curves of the state that is stored each minute. A period without stored states is None."""

    undelivered: Values
    outstanding: Values
    push_window: Values
    #: The largest value of each period.
    oldest_unacked_seconds: Values
    backoff_seconds: Values


def counts(span: Span, counted: Sequence[bool]) -> Counts:
    """Read a subscription's events in one query; `counted` has whether each period is counted."""
    model = table_of(span.period)
    events = _events(span, model, names=("push", "dead_letter"))
    periods = [
        (events.get(at) or Events()) if at in events or is_counted else None
        for at, is_counted in zip(span.times, counted, strict=True)
    ]
    names_with_pushes = {name for period in periods if period for name in period.pushes}
    histograms = [_histogram(period) if period is not None else {} for period in periods]
    return Counts(
        pushes={
            name: [None if period is None else float(period.pushes.get(name, 0)) for period in periods]
            for name in CLASSES
            if name in names_with_pushes
        },
        latencies_ms={
            q: [quantile(buckets, q) / 1000 if buckets else None for buckets in histograms] for q in QUANTILES
        },
        dead_letters=[None if period is None else float(period.dead_letters) for period in periods],
    )


def recent(span: Span) -> Recent:
    """Read the sums of a whole span from the table of minutes, in one query."""
    periods = _events(span, MetricMinute, names=("push",)).values()
    counts = Counter[str]()
    for period in periods:
        counts.update(period.pushes)
    buckets = merged(_histogram(period) for period in periods)
    return Recent(
        pushes={name: counts[name] for name in CLASSES if counts[name]},
        latencies_ms={q: quantile(buckets, q) / 1000 if buckets else None for q in QUANTILES},
    )


def _histogram(period: Events) -> dict[int, int]:
    return {int(bucket): count for bucket, count in period.latencies_us.items()}


def _events(span: Span, model: type[Metric], *, names: Sequence[str]) -> dict[int, Events]:
    """Return the events of these names by period."""
    rows = model._default_manager.filter(
        of_resources([span.resource], at__gte=span.start, at__lt=span.end), event__in=names
    )
    events: dict[int, Events] = defaultdict(Events)
    # The buckets are read as text: a day has thousands of rows, and the ORM's decoder would take most of the time.
    columns = ("event", "at", "response_class", "count", Cast("buckets", TextField()))
    for event, at, response_class, count, buckets in rows.order_by().values_list(*columns).iterator():
        period = events[span.period_of(at)]
        if event == "dead_letter":
            period.dead_letters += count
            continue
        period.pushes[response_class] = period.pushes.get(response_class, 0) + count
        latencies_us = period.latencies_us
        for bucket, number in orjson.loads(buckets).items():
            latencies_us[bucket] = latencies_us.get(bucket, 0) + number
    return events


def gauges(span: Span, taken: Sequence[bool]) -> Gauges:
    """Read a subscription's gauges in one query; `taken` has whether gauges were taken in each period.

    An idle subscription may have no row (gauges.py). Its values are zero, except for its push window.
    """
    rows = GaugeMinute.objects.filter(of_resources([span.resource], at__in=span.minutes)).order_by("at")
    #: The last three values of each period, and the largest two.
    periods: dict[int, tuple[float, ...]] = {}
    columns = ("at", "undelivered", "outstanding", "push_window", "oldest_unacked_seconds", "backoff_ms")
    for at, undelivered, outstanding, window, age, backoff_ms in rows.values_list(*columns):
        period = span.period_of(at)
        *_, oldest, longest = periods.get(period, (0, 0))
        periods[period] = (undelivered, outstanding, window, max(oldest, age), max(longest, backoff_ms / 1000))
    idle = [0.0 if is_taken else None for is_taken in taken]

    def curve(place: int, absent: Sequence[float | None] = idle) -> Values:
        return [
            float(periods[at][place]) if at in periods else default
            for at, default in zip(span.times, absent, strict=True)
        ]

    return Gauges(curve(0), curve(1), curve(2, [None] * len(idle)), curve(3), curve(4))
