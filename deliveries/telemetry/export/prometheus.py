"""What `/metrics` exports: the counters of all processes, the gauges of each subscription, and PushHub's own health.

Any web process answers for the whole deployment. Counters come from Redis and gauges from the rows
that the maintenance worker writes once a minute, so a scrape never walks over waiting messages.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

import redis
from django.conf import settings

from deliveries.models import GaugeMinute, RegionGaugeMinute
from deliveries.telemetry import counterkinds as kinds
from deliveries.telemetry.export.exposition import Family, format_text
from deliveries.telemetry.export.probes import Component, Status
from deliveries.telemetry.export.readiness import impatient_redis, probes
from deliveries.telemetry.sinks.counters import CounterValue, read_counters, remove_counters
from pushhub.common import names
from pushhub.common.clock import Clock, utcnow
from subscriptions.models import Subscription, Topic

logger = logging.getLogger(__name__)

PREFIX = "pushhub_"
#: The label of all resources beyond settings.METRICS_RESOURCES.
OTHER = "other"
#: Gauges are written once a minute. Older rows belong to a subscription without new gauges, or to a deleted one.
GAUGES_FRESH = timedelta(minutes=3)

#: Gauges by column of GaugeMinute: the metric, its help, and the metric's unit in units of the column.
GAUGES = {
    "undelivered": ("subscription_num_undelivered_messages", "Messages not yet acknowledged.", 1.0),
    "outstanding": ("subscription_num_outstanding_messages", "Messages leased to push requests or pullers.", 1.0),
    "oldest_unacked_seconds": ("subscription_oldest_unacked_message_age_seconds", "Age of the oldest message.", 1.0),
    "push_window": ("subscription_push_window", "Messages that may be outstanding to the push endpoint.", 1.0),
    "backoff_ms": ("subscription_push_backoff_seconds", "Pause of the subscription's push backoff.", 1000.0),
    "open_streams": ("subscription_open_streaming_pulls", "Open streaming pulls.", 1.0),
    "unserved": ("subscription_num_unserved_messages", "Messages in regions that no push worker serves.", 1.0),
}
#: Gauges by region, by column of RegionGaugeMinute: kind of resource, metric, help.
REGION_GAUGES = (
    ("subscription", "messages", "num_unacked_messages_by_region", "Messages not yet acknowledged, by region."),
    ("subscription", "bytes", "backlog_bytes", "Bytes of messages not yet acknowledged."),
    ("subscription", "acked_messages", "num_retained_acked_messages", "Acknowledged messages that are retained."),
    ("subscription", "acked_bytes", "retained_acked_bytes", "Bytes of acknowledged messages that are retained."),
    ("subscription", "oldest_acked_seconds", "oldest_retained_acked_message_age_seconds", "Age of the oldest of them."),
    ("topic", "kept_messages", "num_retained_messages", "Messages that a topic's retention keeps."),
    ("topic", "kept_bytes", "retained_bytes", "Bytes of messages that a topic's retention keeps."),
    ("topic", "oldest_kept_seconds", "oldest_retained_message_age_seconds", "Age of the oldest of them."),
    ("snapshot", "messages", "num_messages", "Messages of a snapshot."),
    ("snapshot", "bytes", "backlog_bytes", "Bytes of the messages of a snapshot."),
    ("snapshot", "oldest_seconds", "oldest_message_age_seconds", "Age of the oldest message of a snapshot."),
)
#: Upper bounds of exported distributions are powers of 4 in this range, in the units of the counter.
DISTRIBUTION_POWERS = {"ms": range(10), "By": range(3, 13)}
#: Figures of readiness checks that are metrics: component, figure, metric, help.
FIGURES = (
    ("redis", "backlog_bytes", "redis_backlog_bytes", "Bytes of Redis that the messages of all subscriptions take."),
    ("redis", "budget_bytes", "redis_budget_bytes", "Bytes of Redis that they may take."),
    ("push_workers", "workers", "push_workers", "Push workers that gave a sign of life lately."),
    ("push_workers", "oldest_job_seconds", "push_oldest_job_seconds", "Age of the oldest job of a push worker."),
    (
        *("maintenance", "last_sign_of_life_seconds", "maintenance_last_sign_of_life_seconds"),
        "Time since the maintenance worker's last audit.",
    ),
    ("pipeline", "lag_seconds", "pipeline_lag_seconds", "How long segments wait while none is counted."),
    ("journal", "stopped", "journals_stopped", "Processes whose journal has stopped."),
)
_STATUS_VALUES = {Status.OK: 1.0, Status.DEGRADED: 0.5, Status.UNAVAILABLE: 0.0}


@dataclass(frozen=True, slots=True)
class ResourceNames:
    """The labels of subscriptions and topics, by kind of resource and primary key."""

    labels: Mapping[tuple[str, int], Mapping[str, str]]

    @classmethod
    def load(cls) -> ResourceNames:
        rows = [
            ("subscription", Subscription.objects.values_list("id", "project__project_id", "subscription_id")),
            ("topic", Topic.objects.values_list("id", "project__project_id", "topic_id")),
        ]
        labels: dict[tuple[str, int], dict[str, str]] = {}
        for resource, queryset in rows:
            for number, (pk, project, name) in enumerate(queryset.order_by("id")):
                is_named = number < settings.METRICS_RESOURCES
                shown = (project, name) if is_named else (OTHER, OTHER)
                labels[resource, pk] = dict(zip(("project", resource), shown, strict=True))
        return cls(labels)

    def of(self, resource: str, pk: int) -> Mapping[str, str] | None:
        """Return the labels of a resource, or None for a deleted one."""
        return self.labels.get((resource, pk))


def metrics_text(*, clock: Clock = utcnow) -> str:
    """Return the page. Where Redis is away the counters are missing; the database's errors are the caller's."""
    values = _counter_values()
    resources = ResourceNames.load()
    _remove_deleted(values, resources)
    components = probes().results()
    families = [
        *_counters(values, resources),
        _latencies(values, resources),
        *(_distribution(kind, values, resources) for kind in kinds.DISTRIBUTIONS),
        *_gauges(clock()),
        *_region_gauges(clock()),
        *_health(components),
    ]
    return format_text(families)


def _counter_values() -> list[CounterValue]:
    try:
        with impatient_redis() as client:
            return list(read_counters(client))
    except redis.RedisError as error:
        logger.warning("the counters cannot be read", exc_info=error)
        return []


def _remove_deleted(values: list[CounterValue], resources: ResourceNames) -> None:
    """Remove counters of resources that no longer exist. The values were read before the names, so none is new."""
    deleted = [value.field for value in values if resources.of(value.kind.resource, value.resource_id) is None]
    if deleted:
        try:
            with impatient_redis() as client:
                remove_counters(client, deleted)
        except redis.RedisError as error:
            logger.warning("counters of deleted resources stay", exc_info=error)


Series = dict[tuple[tuple[str, str], ...], float]


def _counters(values: list[CounterValue], resources: ResourceNames) -> list[Family]:
    families = {kind.name: Family(PREFIX + kind.name, kind.help, "counter") for kind in kinds.PLAIN}
    sums: dict[str, Series] = {name: defaultdict(float) for name in families}
    for value in values:
        labels = resources.of(value.kind.resource, value.resource_id)
        if labels is not None and value.kind.name in families:
            own = zip(value.kind.labels, value.labels, strict=True)
            sums[value.kind.name][(*labels.items(), *own)] += value.value
    for name, family in families.items():
        for key, total in sorted(sums[name].items()):
            family.add(dict(key), total)
    return list(families.values())


def _latencies(values: list[CounterValue], resources: ResourceNames) -> Family:
    bounds = kinds.LATENCY_BOUNDS_SECONDS
    family = Family(PREFIX + kinds.PUSH_LATENCY.name, kinds.PUSH_LATENCY.help, "histogram")
    buckets: dict[tuple[tuple[str, str], ...], list[int]] = defaultdict(lambda: [0] * (len(bounds) + 1))
    totals: Series = defaultdict(float)
    for value in values:
        labels = resources.of("subscription", value.resource_id)
        if labels is None:
            continue
        key = (*labels.items(), ("outcome", value.labels[0] if value.labels else ""))
        if value.kind is kinds.PUSH_LATENCY:
            buckets[key][int(value.labels[1])] += value.value
        elif value.kind is kinds.PUSH_LATENCY_SUM:
            totals[key] += value.value / 1e6
    for key in sorted(buckets):
        family.add_histogram(dict(key), bounds, buckets[key], totals[key])
    return family


def _distribution(kind: kinds.CounterKind, values: list[CounterValue], resources: ResourceNames) -> Family:
    """Return a distribution as a histogram with fewer buckets; the bounds are those of buckets, so counts are exact."""
    family = Family(PREFIX + kind.name, kind.help, "histogram")
    powers = DISTRIBUTION_POWERS[kind.unit]
    last_buckets = [2 * power << kinds.DISTRIBUTION_SCALE for power in powers]
    counts: dict[tuple[tuple[str, str], ...], list[int]] = defaultdict(lambda: [0] * (len(powers) + 1))
    totals: Series = defaultdict(float)
    for value in values:
        labels = resources.of(kind.resource, value.resource_id)
        if value.kind is kind and labels is not None:
            key = (*labels.items(), *zip(kind.labels, value.labels[:-1], strict=True))
            if value.labels[-1] == kinds.SUM:
                totals[key] += value.value / kind.units
            else:
                counts[key][bisect_left(last_buckets, int(value.labels[-1]))] += value.value
    for key in sorted(counts):
        family.add_histogram(dict(key), [4**power / kind.units for power in powers], counts[key], totals[key])
    return family


def _region_gauges(now: datetime) -> list[Family]:
    columns = sorted({column for _, column, _, _ in REGION_GAUGES})
    rows = RegionGaugeMinute.objects.filter(at__gte=now - GAUGES_FRESH).order_by("at", "resource", "region")
    newest = {
        (row["resource"], row["region"]): row
        for row in rows.values("resource", "region", "project", *columns).iterator()
    }
    named = set(sorted({resource for resource, _ in newest})[: settings.METRICS_RESOURCES])
    families = []
    for noun, column, metric, text in REGION_GAUGES:
        family = Family(f"{PREFIX}{noun}_{metric}", text, "gauge")
        for resource, region in sorted(newest):
            collection, name = resource.split("/", 3)[2:]
            if collection == f"{noun}s" and resource in named:
                row = newest[resource, region]
                family.add({"project": row["project"], noun: name, "region": region}, row[column])
        families.append(family)
    return families


def _gauges(now: datetime) -> list[Family]:
    families = {column: Family(PREFIX + name, text, "gauge") for column, (name, text, _) in GAUGES.items()}
    rows = GaugeMinute.objects.filter(at__gte=now - GAUGES_FRESH).order_by("at", "resource")
    newest = {row[0]: row[1:] for row in rows.values_list("resource", *GAUGES)}
    named = sorted(newest)[: settings.METRICS_RESOURCES]
    for resource in named:
        project, subscription = names.parse_subscription(resource)
        for (column, (_, _, divisor)), value in zip(GAUGES.items(), newest[resource], strict=True):
            families[column].add({"project": project, "subscription": subscription}, value / divisor)
    return list(families.values())


def _health(components: Mapping[str, Component]) -> list[Family]:
    up = Family(f"{PREFIX}component_up", "1: works, 0.5: degraded, 0: unavailable.", "gauge")
    for name, component in components.items():
        up.add({"component": name}, _STATUS_VALUES[component.status])
    families = [up]
    for component_name, figure, metric, text in FIGURES:
        family = Family(PREFIX + metric, text, "gauge")
        if figure in components[component_name].figures:
            family.add({}, components[component_name].figures[figure])
        families.append(family)
    return families
