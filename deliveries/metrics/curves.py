"""The curves that the console and the report draw of a subscription, or of all of a project's."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from deliveries.metrics.filters import Comparison
from deliveries.metrics.kinds import OWN_PREFIX, PREFIX
from deliveries.metrics.series import Cell, Query, series_find
from deliveries.rules.histogram import merged, quantile

#: In the order they are stacked, each with a colour of its own.
CLASSES = (
    *("ack", "remote_server_5xx", "remote_server_4xx", "unreachable"),
    *("deadline_exceeded", "invalid", "internal"),
)
QUANTILES = (0.5, 0.95, 0.99)


@dataclass(frozen=True, slots=True)
class Span:
    """What is drawn: a project's subscription, or "" for all, between two times, by periods."""

    project: str
    subscription: str
    start: datetime
    end: datetime
    period: timedelta

    @property
    def times(self) -> list[int]:
        """Where each period begins, in seconds since 1970."""
        step = int(self.period.total_seconds())
        first = int(self.start.timestamp()) // step * step
        return list(range(first, int(self.end.timestamp()), step))


def pushes(span: Span) -> dict[str, list[float]]:
    """Push requests by response class; a period without any is zero. Classes that never came are left out."""
    found: dict[str, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    for one in series_find(_query(span, f"{PREFIX}subscription/push_request_count")):
        for at, cell in one.cells.items():
            found[dict(one.labels)["response_class"]][int(at.timestamp())] += cell.count
    return {name: [found[name].get(at, 0.0) for at in span.times] for name in CLASSES if name in found}


def latencies_ms(span: Span) -> dict[float, list[float | None]]:
    """Quantiles of push latencies; None where nothing was pushed."""
    buckets: dict[int, list[dict[int, int]]] = defaultdict(list)
    for one in series_find(_query(span, f"{PREFIX}subscription/push_request_latencies")):
        for at, cell in one.cells.items():
            buckets[int(at.timestamp())].append(cell.buckets)
    together = [merged(buckets[at]) if at in buckets else None for at in span.times]
    return {q: [quantile(one, q) / 1000 if one else None for one in together] for q in QUANTILES}


def counted(span: Span, metric: str) -> list[float]:
    """A counter of the subscription, such as dead_letter_message_count."""
    return [value or 0.0 for value in _reduced(span, PREFIX + metric, lambda cell: float(cell.count), sum)]


def gauge(span: Span, metric: str, *, own: bool = False, largest: bool = False) -> list[float | None]:
    """The last value in each period, of all subscriptions together or, with `largest`, of the one that has most."""
    name = (OWN_PREFIX if own else PREFIX) + metric
    if largest:
        return _reduced(span, name, lambda cell: float(max(cell.gauges)), max)
    return _reduced(span, name, lambda cell: float(cell.gauges[-1]), sum)


def _reduced(
    span: Span, metric: str, value: Callable[[Cell], float], together: Callable[[Iterable[float]], float]
) -> list[float | None]:
    found: dict[int, list[float]] = defaultdict(list)
    for one in series_find(_query(span, metric)):
        for at, cell in one.cells.items():
            found[int(at.timestamp())].append(value(cell))
    return [float(together(found[at])) if at in found else None for at in span.times]


def _query(span: Span, metric: str) -> Query:
    comparisons: Sequence[Comparison] = [Comparison("metric.type", False, "equal", (metric,))]
    if span.subscription:
        chosen = Comparison("resource.labels.subscription_id", False, "equal", (span.subscription,))
        comparisons = [*comparisons, chosen]
    return Query(span.project, comparisons, span.start, span.end, span.period)
