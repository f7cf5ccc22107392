"""Time series in Cloud Monitoring's form, from the tables of metrics and gauges."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from operator import add
from typing import Any

from django.db.models import Q, QuerySet

from deliveries.models import GaugeMinute, Metric, MetricDay, MetricHour, MetricMinute, RegionGaugeMinute
from deliveries.rules.histogram import SCALE, bucket_of, coarser, merged, quantile, upper_bound
from deliveries.store.metricrows import of_resources
from deliveries.telemetry.kinds import KINDS, Kind
from deliveries.telemetry.series.filters import Comparison
from pushhub.common.errors import InvalidArgument, clipped
from pushhub.common.protojson import format_timestamp

Labels = tuple[tuple[str, str], ...]

#: No PushHub has a metric from before the first. Up to the last, a time has room for a period to be added.
EARLIEST, LATEST = datetime(2020, 1, 1, tzinfo=UTC), datetime(9000, 1, 1, tzinfo=UTC)
MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
#: Hours are added up from minutes, and days from hours.
SPANS: dict[type[Metric], timedelta] = {MetricMinute: MINUTE, MetricHour: HOUR, MetricDay: DAY}
#: Responses have buckets two scales coarser, each 9 % wide: about a hundred buckets for values up to ten minutes.
COARSER = 2
PERCENTILES = {f"ALIGN_PERCENTILE_{name}": int(name) / 100 for name in ("99", "95", "50", "05")}
#: The ways to combine the points of a period. The first aligner is the default.
DELTA_ALIGNERS = ("ALIGN_DELTA", "ALIGN_SUM", "ALIGN_RATE", "ALIGN_NONE")
GAUGE_ALIGNERS = ("ALIGN_NEXT_OLDER", "ALIGN_MEAN", "ALIGN_MAX", "ALIGN_MIN", "ALIGN_NONE")
#: The number of buckets between 1 µs and 1 ms.
_MS_BUCKETS = bucket_of(1000)
SUCCESS = "success"
#: The most points that one request may add up.
MAX_POINTS = 1_000_000


@dataclass(frozen=True, slots=True)
class Query:
    """A request for time series. `period` is a whole number of minutes; `aligner` is "" for the kind's default."""

    project: str
    comparisons: Sequence[Comparison]
    start: datetime
    end: datetime
    period: timedelta = MINUTE
    aligner: str = ""


@dataclass(slots=True)
class Cell:
    """The points of one series in one period."""

    count: int = 0
    #: The sum of a distribution's values, in the unit of the metric.
    total: int = 0
    buckets: dict[int, int] = field(default_factory=dict)
    gauges: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Series:
    """The cells of one resource and one set of labels, by the beginning of their period."""

    kind: Kind
    resource: str
    labels: Labels
    cells: Mapping[datetime, Cell]


def find_series(query: Query) -> list[Series]:
    """Return the series that match the filter, in order of resource and labels."""
    kind = _kind(query.comparisons)
    cells = _counts(kind, query) if kind.metric_kind == "DELTA" else _gauges(kind, query)
    return [
        Series(kind, resource, labels, cells[resource, labels])
        for resource, labels in sorted(cells)
        if _matches(query, kind, resource, dict(labels))
    ]


def format_series(series: Series, query: Query, *, with_points: bool = True) -> dict[str, Any]:
    """Return the JSON form of google.monitoring.v3.TimeSeries; the newest point comes first."""
    kind, aligner = series.kind, aligner_of(series.kind, query.aligner)
    value_type = "DOUBLE" if aligner in ("ALIGN_RATE", "ALIGN_MEAN", *PERCENTILES) else kind.value_type
    formatted: dict[str, Any] = {
        "metric": {"type": kind.type, **({"labels": dict(series.labels)} if series.labels else {})},
        "resource": {"type": kind.resource_type, "labels": resource_labels(kind, series.resource)},
        "metricKind": "GAUGE" if aligner in ("ALIGN_RATE", *PERCENTILES) else kind.metric_kind,
        "valueType": value_type,
        "unit": kind.unit,
    }
    if with_points:
        formatted["points"] = [
            {
                "interval": _interval(formatted["metricKind"], at, query.period),
                "value": _value(kind, aligner, cell, query),
            }
            for at, cell in sorted(series.cells.items(), reverse=True)
        ]
    return formatted


def aligner_of(kind: Kind, requested: str) -> str:
    allowed: tuple[str, ...] = GAUGE_ALIGNERS if kind.metric_kind == "GAUGE" else DELTA_ALIGNERS
    if kind.is_distribution:
        allowed = ("ALIGN_DELTA", "ALIGN_SUM", "ALIGN_NONE", *PERCENTILES)
    if requested and requested not in allowed:
        raise InvalidArgument(
            f"The aligner {clipped(requested)} does not fit {kind.type}: give one of {', '.join(allowed)}.",
            field="aggregation.perSeriesAligner",
        )
    return requested or allowed[0]


def resource_labels(kind: Kind, resource: str) -> dict[str, str]:
    _, project, _, name = resource.split("/", 3)
    return {"project_id": project, f"{kind.resource}_id": name}


def _kind(comparisons: Sequence[Comparison]) -> Kind:
    types = [comparison for comparison in comparisons if comparison.path == "metric.type"]
    if len(types) != 1 or types[0].is_negated or types[0].function != "equal":
        raise InvalidArgument('The filter must choose one metric: metric.type = "...".', field="filter")
    kind = KINDS.get(types[0].values[0])
    if kind is None:
        raise InvalidArgument(
            f"There is no metric {clipped(types[0].values[0])}; there are {', '.join(sorted(KINDS))}.", field="filter"
        )
    return kind


def _matches(query: Query, kind: Kind, resource: str, labels: Mapping[str, str]) -> bool:
    resource_has = resource_labels(kind, resource)
    values = {
        "metric.type": kind.type,
        "resource.type": kind.resource_type,
        "project": query.project,
        **{f"resource.labels.{name}": value for name, value in resource_has.items()},
        **{f"metric.labels.{name}": value for name, value in labels.items()},
    }
    return all(comparison.holds(values.get(comparison.path, "")) for comparison in query.comparisons)


def _rows(kind: Kind, query: Query, **times: datetime) -> Q:
    """Return the condition that rows are of the project and times, and of the resource if the filter names one.

    `times` has conditions of `at`, as for `of_resources`.
    """
    noun = kind.resource
    for comparison in query.comparisons:
        is_equality = comparison.function == "equal" and not comparison.is_negated
        if is_equality and comparison.path == f"resource.labels.{noun}_id":
            return of_resources([f"projects/{query.project}/{noun}s/{comparison.values[0]}"], **times)
    return Q(project=query.project, **times)


Cells = dict[tuple[str, Labels], dict[datetime, Cell]]


def _empty() -> Cells:
    return defaultdict(lambda: defaultdict(Cell))


def _counts(kind: Kind, query: Query) -> Cells:
    model = table_of(query.period)
    rows = model._default_manager.filter(
        # A point belongs to the time when it ends, and is of a whole period.
        _rows(kind, query, at__gte=floor(query.start, query.period), at__lt=floor(query.end, query.period)),
        event__in=[*kind.events, *kind.sampled],
    )
    if kind.classes:
        rows = rows.filter(Q(response_class__in=kind.classes) | Q(event__in=kind.sampled))
    if kind.excluded_classes:
        rows = rows.exclude(response_class__in=kind.excluded_classes)
    is_distribution = kind.is_distribution
    columns = ["resource", "event", "at", "response_class", "response_code", "count", "latency_us_sum"]
    cells = _empty()
    for row in _bounded(rows.values_list(*columns, *(["buckets"] if is_distribution else []))):
        resource, event, at, response_class, code, count, latency_sum = row[:7]
        labels = _labels(kind, event, response_class, code)
        cell = cells[resource, labels][floor(at, query.period)]
        cell.count += count
        is_us = kind.unit == "ms" and event not in kind.sampled
        cell.total += latency_sum // 1000 if is_us else latency_sum
        if is_distribution:
            buckets = {int(bucket): n for bucket, n in row[7].items()}
            cell.buckets = merged([cell.buckets, _in_ms(buckets) if is_us else buckets])
    return cells


def _in_ms(buckets: Mapping[int, int]) -> dict[int, int]:
    """Convert buckets from µs to ms. Values below 1 ms count as 1 ms. The bounds change by 0.2 %."""
    counts: dict[int, int] = {}
    for bucket, count in buckets.items():
        place = max(bucket - _MS_BUCKETS, 0)
        counts[place] = counts.get(place, 0) + count
    return counts


def _gauges(kind: Kind, query: Query) -> Cells:
    """Return gauges. Without the label `region`, values of regions are added up, and of ages the largest counts."""
    rows: QuerySet[Any]
    if kind.region_gauge:
        rows = RegionGaugeMinute.objects.filter(resource__startswith=f"projects/{query.project}/{kind.resource}s/")
        columns = ["resource", "at", kind.region_gauge, "region"]
    else:
        rows, columns = GaugeMinute.objects.all(), ["resource", "at", kind.gauge]
    rows = rows.filter(_rows(kind, query, at__gte=query.start, at__lte=query.end)).order_by("at")
    combine = max if kind.unit == "s" else add
    minutes: dict[tuple[str, Labels, datetime], int] = {}
    for resource, at, value, *region in _bounded(rows.values_list(*columns)):
        # Without a region the only label is the status; suspended streams aren't counted apart.
        key = (resource, tuple((name, *(region or ["ok"])) for name in kind.labels), at)
        minutes[key] = combine(minutes[key], value) if key in minutes else value
    cells = _empty()
    for (resource, labels, at), value in minutes.items():
        cells[resource, labels][floor(at, query.period)].gauges.append(value)
    return cells


def _bounded(rows: Any) -> Iterable[Any]:
    for number, row in enumerate(rows[: MAX_POINTS + 1].iterator()):
        if number == MAX_POINTS:
            raise InvalidArgument("The interval has too many points: ask for less time, or one resource.")
        yield row


def table_of(period: timedelta) -> type[Metric]:
    """Return the coarsest table whose rows add up to such periods."""
    return next(model for model, span in reversed(SPANS.items()) if not period % span)


def _labels(kind: Kind, event: str, response_class: str, code: int) -> Labels:
    if event in kind.sampled:
        # The value of the counter's first label. Accepted publish requests have none.
        label = response_class or SUCCESS
        values = {
            "delivery_type": label,
            "response_code": label,
            "response_class": _request_class(label),
            "operation_type": "publish",
        }
    else:
        values = {
            "response_class": response_class,
            # Without an HTTP status, the reason.
            "response_code": str(code) if code else response_class,
            "delivery_type": event,
        }
    return tuple((name, values[name]) for name in kind.labels)


def _request_class(code: str) -> str:
    """Return the response class of a canonical code, which is in lower case."""
    if code == SUCCESS:
        return SUCCESS
    return "internal" if code in ("internal", "unknown", "unavailable", "deadline_exceeded") else "invalid"


def within_reach(moment: datetime) -> datetime:
    """Return the time, or the nearest one that may have metrics."""
    return min(max(moment, EARLIEST), LATEST)


def floor(at: datetime, period: timedelta) -> datetime:
    """Return the beginning of the period that contains a time."""
    return at - (at - datetime(1970, 1, 1, tzinfo=UTC)) % period


def _interval(metric_kind: str, at: datetime, period: timedelta) -> dict[str, str]:
    end = at if metric_kind == "GAUGE" and period == MINUTE else at + period
    start = end if metric_kind == "GAUGE" else at
    return {"startTime": format_timestamp(start), "endTime": format_timestamp(end)}


def _value(kind: Kind, aligner: str, cell: Cell, query: Query) -> dict[str, Any]:
    if aligner in PERCENTILES:
        return {"doubleValue": quantile(cell.buckets, PERCENTILES[aligner])}
    if aligner == "ALIGN_RATE":
        return {"doubleValue": cell.count / query.period.total_seconds()}
    if kind.is_distribution:
        return {"distributionValue": _distribution(cell)}
    if kind.metric_kind == "DELTA":
        return {"int64Value": str(cell.count)}
    if aligner == "ALIGN_MEAN":
        return {"doubleValue": sum(cell.gauges) / len(cell.gauges)}
    choice = {"ALIGN_MAX": max, "ALIGN_MIN": min}.get(aligner)
    return {"int64Value": str(choice(cell.gauges) if choice else cell.gauges[-1])}


def _distribution(cell: Cell) -> dict[str, Any]:
    """Return a google.api.Distribution with exponential buckets, which are exact except for the coarser bounds."""
    buckets: Mapping[int, int] = cell.buckets
    for _ in range(COARSER):
        buckets = coarser(buckets)
    last = max(buckets, default=0)
    count = sum(buckets.values())
    return {
        "count": str(count),
        "mean": cell.total / count if count else 0.0,
        "bucketOptions": {
            "exponentialBuckets": {
                "numFiniteBuckets": last + 1,
                "growthFactor": upper_bound(1, scale=SCALE - COARSER),
                "scale": 1,
            }
        },
        "bucketCounts": [str(buckets.get(number, 0)) for number in range(last + 1)],
    }
