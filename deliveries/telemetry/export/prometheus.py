"""What `/metrics` exports: the counters of all processes, the gauges of each subscription, and PushHub's own health.

Any web process answers for the whole deployment. Counters come from Redis and gauges from the rows
that the maintenance worker writes once a minute, so a scrape never walks over waiting messages.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from datetime import datetime, timedelta
from functools import partial

import redis
from django.conf import settings

from deliveries.backlog.default import impatient_backlog
from deliveries.models import GaugeMinute, RegionGaugeMinute
from deliveries.telemetry import kinds
from deliveries.telemetry.archive import archive_state
from deliveries.telemetry.export.exposition import Family, format_text
from deliveries.telemetry.export.probes import Component, Status
from deliveries.telemetry.export.readiness import probes
from deliveries.telemetry.runs import duration, has_failed, last_runs
from deliveries.telemetry.sinks.counters import CounterValue, Resource, read_counters
from pushhub.common import names
from pushhub.common.clock import Clock, utcnow
from subscriptions.models import Snapshot, Subscription, Topic

logger = logging.getLogger(__name__)

#: The label of all resources beyond settings.METRICS_RESOURCES.
OTHER = "other"
#: Gauges are written once a minute. Older rows belong to a subscription without new gauges, or to a deleted one.
GAUGES_FRESH = timedelta(minutes=3)

#: Upper bounds of exported distributions are powers of 4 in this range, in the units of the counter.
DISTRIBUTION_POWERS = {"ms": range(10), "By": range(3, 13)}
_GAUGES = {kind.gauge: kind for kind in kinds.EXPORTED if kind.gauge}
_REGION_GAUGES = [kind for kind in kinds.EXPORTED if kind.region_gauge]
_STATUS_VALUES = {Status.OK: 1.0, Status.DEGRADED: 0.5, Status.UNAVAILABLE: 0.0}


def metrics_text(*, clock: Clock = utcnow) -> str:
    """Return the page. Where Redis is away the counters are missing; the database's errors are the caller's."""
    values = _counter_values()
    labels_of, named = _resources()
    components = probes().results()
    by_kind: dict[str, list[tuple[Key, CounterValue]]] = {field: [] for field in kinds.COUNTERS}
    for value in values:
        labels = labels_of.get(value.resource)
        if labels is not None:  # a deleted one has none
            own = zip(value.kind.counter or (), value.labels, strict=False)
            by_kind[value.kind.field].append(((*labels.items(), *own), value))
    families = [
        *(
            (_distribution if kind.is_distribution else _counter)(kind, by_kind[field])
            for field, kind in kinds.COUNTERS.items()
        ),
        *_gauges(clock(), named),
        *_region_gauges(clock(), named),
        *_health(components, clock),
        *_runs(clock),
    ]
    return format_text(families)


def _resources() -> tuple[Mapping[Resource, Mapping[str, str]], Set[str]]:
    """Return the labels of each resource's counters, and the full names of those that have series of their own.

    These are the first ones of each kind, for counters as for gauges.
    """
    rows = [
        (Subscription.objects.values_list("id", "project__project_id", "subscription_id"), names.subscription_name),
        (Topic.objects.values_list("id", "project__project_id", "topic_id"), names.topic_name),
        (Snapshot.objects.values_list("id", "project__project_id", "snapshot_id"), names.snapshot_name),
    ]
    labels: dict[Resource, dict[str, str]] = {}
    named = set[str]()
    for queryset, name_of in rows:
        kind = queryset.model._meta.model_name or ""
        for number, (pk, project, name) in enumerate(queryset.order_by("id")):
            is_named = number < settings.METRICS_RESOURCES
            if is_named:
                named.add(name_of(project, name))
            labels[kind, pk] = {"project": project, kind: name} if is_named else {"project": OTHER, kind: OTHER}
    return labels, named


def _counter_values() -> list[CounterValue]:
    try:
        return [*read_counters(impatient_backlog(asker="check").clients), *_zeros()]
    except redis.RedisError as error:
        logger.warning("the counters cannot be read", exc_info=error)
        return []


def _zeros() -> Iterator[CounterValue]:
    """Yield counters of what may come: an alert sees no increase in one that begins above zero.

    Dead letters come late and all at once, and the first ones matter.
    """
    for pk in Subscription.objects.exclude(dead_letter_topic=None).values_list("id", flat=True):
        yield CounterValue(kinds.DEAD_LETTERS, pk, (), 0, "")


#: The labels of a series.
Key = tuple[tuple[str, str], ...]


def _counter(kind: kinds.Kind, values: Sequence[tuple[Key, CounterValue]]) -> Family:
    family = Family(kind)
    sums: dict[Key, int] = defaultdict(int)
    for key, value in values:
        sums[key] += value.value
    for key in sorted(sums):
        family.add(dict(key), sums[key])
    return family


def _distribution(kind: kinds.Kind, values: Sequence[tuple[Key, CounterValue]]) -> Family:
    """Return a distribution as a histogram."""
    family = Family(kind)
    bounds, place_of = _buckets(kind)
    counts: dict[Key, list[int]] = defaultdict(lambda: [0] * (len(bounds) + 1))
    totals: dict[Key, float] = defaultdict(float)
    for key, value in values:
        if value.labels[-1] == kinds.SUM:
            totals[key] += value.value / kinds.UNITS.get(kind.unit, 1.0)
        else:
            counts[key][place_of(int(value.labels[-1]))] += value.value
    for key in sorted(counts):
        family.add_histogram(dict(key), bounds, counts[key], totals[key])
    return family


def _buckets(kind: kinds.Kind) -> tuple[Sequence[float], Callable[[int], int]]:
    """Return a histogram's bounds, and the place of a counter's bucket among them.

    It has fewer buckets than the counter; the bounds are those of buckets, so counts are exact.
    """
    if kind is kinds.PUSH_LATENCY:
        return kinds.LATENCY_BOUNDS_SECONDS, int
    powers = DISTRIBUTION_POWERS[kind.unit]
    last_buckets = [2 * power << kinds.DISTRIBUTION_SCALE for power in powers]
    return [4**power / kinds.UNITS.get(kind.unit, 1.0) for power in powers], partial(bisect_left, last_buckets)


def _region_gauges(now: datetime, named: Set[str]) -> list[Family]:
    columns = sorted({kind.region_gauge for kind in _REGION_GAUGES})
    rows = RegionGaugeMinute.objects.filter(at__gte=now - GAUGES_FRESH).order_by("at", "resource", "region")
    newest = {
        (row["resource"], row["region"]): row
        for row in rows.values("resource", "region", "project", *columns).iterator()
    }
    families = []
    for kind in _REGION_GAUGES:
        family = Family(kind)
        for resource, region in sorted(newest):
            collection, name = resource.split("/", 3)[2:]
            if collection == f"{kind.resource}s" and resource in named:
                row = newest[resource, region]
                labels = {"project": row["project"], kind.resource: name, "region": region}
                family.add(labels, row[kind.region_gauge])
        families.append(family)
    return families


def _gauges(now: datetime, named: Set[str]) -> list[Family]:
    families = [Family(kind) for kind in _GAUGES.values()]
    rows = GaugeMinute.objects.filter(at__gte=now - GAUGES_FRESH).order_by("at", "resource")
    newest = {row[0]: row[1:] for row in rows.values_list("resource", *_GAUGES)}
    for resource in sorted(newest.keys() & named):
        project, subscription = names.parse_subscription(resource)
        labels = {"project": project, "subscription": subscription}
        for kind, family, value in zip(_GAUGES.values(), families, newest[resource], strict=True):
            family.add(labels, value / kinds.UNITS.get(kind.unit, 1.0))
    return families


def _runs(clock: Clock) -> list[Family]:
    families = {kind: Family(kind) for kind in kinds.RUNS}
    for name, run in sorted(last_runs().items()):
        values = {
            kinds.RUN_AGE: (clock() - (run.finished_at or run.reported_at)).total_seconds(),
            kinds.RUN_FAILED: float(has_failed(run, clock=clock)),
            kinds.RUN_DURATION: duration(run, clock=clock).total_seconds(),
            kinds.RUN_ROWS: run.rows,
            kinds.RUN_LAG: run.lag_seconds,
        }
        for kind, value in values.items():
            if value is not None:
                families[kind].add({"kind": name}, value)
    return list(families.values())


def _health(components: Mapping[str, Component], clock: Clock) -> list[Family]:
    up = Family(kinds.COMPONENT_UP)
    for name, component in components.items():
        up.add({"component": name}, _STATUS_VALUES[component.status])
    families = [up]
    figures = {name: component.figures for name, component in components.items()}
    figures["archive"] = archive_state(clock=clock).figures()
    for kind in kinds.FIGURES:
        component_name, figure = kind.figure
        family = Family(kind)
        if figure in figures[component_name]:
            family.add({}, figures[component_name][figure])
        families.append(family)
    return families
