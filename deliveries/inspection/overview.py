"""The deployment at a glance: failing subscriptions, backlog, rates, and whether the processes are alive.

The figures come from the last gauges and the metrics of the last minutes, so their cost doesn't depend on the size of
the backlog.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import redis
from django.conf import settings
from django.db.models import Max, Min, Q, QuerySet, Sum

from deliveries.inspection.status import SubscriptionStatus, subscription_status
from deliveries.metrics.coverage import Counting, counting
from deliveries.models import GaugeMinute, MetricHour, MetricMinute
from deliveries.observability.probes import Component, Status
from deliveries.observability.readiness import push_workers
from pushhub.common import names
from pushhub.common.clock import Clock, utcnow
from subscriptions.models import Project, Subscription

#: Failing subscriptions whose status is read.
MAX_FAILING = 10
#: Gauges are taken each minute. Older ones show that the maintenance worker has stopped.
FRESH = timedelta(minutes=3)
RATE_PERIOD = timedelta(minutes=5)
DEAD_LETTER_PERIOD = timedelta(days=1)
SINCE_PERIOD = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Failing:
    """A subscription whose endpoint fails. `since` is None if it has failed for more than a day."""

    subscription: Subscription
    status: SubscriptionStatus
    since: datetime | None


@dataclass(frozen=True, slots=True)
class Overview:
    """The figures of some projects; None for a figure that isn't known."""

    failing: Sequence[Failing]
    undelivered: int | None
    oldest_seconds: int | None
    publish_rate: float | None
    push_rate: float | None
    dead_letters: int


@dataclass(frozen=True, slots=True)
class Health:
    """Whether the processes of the deployment are alive."""

    redis_answers: bool
    #: The push workers.
    workers: Component
    #: How far the journal is counted; None if the journal is off.
    counting: Counting | None


def overview(projects: QuerySet[Project], subscriptions: QuerySet[Subscription], *, clock: Clock = utcnow) -> Overview:
    """Return the figures of these projects, and the failing ones of these subscriptions."""
    now = clock()
    ids = projects.order_by().values("project_id")
    gauges = GaugeMinute.objects.filter(project__in=ids, at__gte=now - FRESH)
    latest = gauges.aggregate(at=Max("at"))["at"]
    current = gauges.filter(at=latest)
    totals = current.aggregate(undelivered=Sum("undelivered"), oldest=Max("oldest_unacked_seconds"))
    return Overview(
        failing=_failing(current, subscriptions, now),
        undelivered=totals["undelivered"],
        oldest_seconds=totals["oldest"],
        **_rates(ids, now),
        dead_letters=_dead_letters(ids, now),
    )


def health() -> Health:
    """Return the state of Redis, the push workers and the counter of the journal."""
    state = counting() if settings.JOURNAL else None
    try:
        return Health(True, push_workers(), state)
    except redis.RedisError:
        return Health(False, Component(Status.UNAVAILABLE), state)


def _failing(current: QuerySet[GaugeMinute], subscriptions: QuerySet[Subscription], now: datetime) -> Sequence[Failing]:
    """Return failing subscriptions, the one with the oldest message first, with the status that its own page shows."""
    rows = current.filter(Q(backoff_ms__gt=0) | Q(unserved__gt=0)).order_by("-oldest_unacked_seconds", "resource")
    resources = list(rows.values_list("resource", flat=True)[:MAX_FAILING])
    if not resources:
        return []
    pairs = [names.parse_subscription(resource) for resource in resources]
    chosen = Q()
    for project, subscription_id in pairs:
        chosen |= Q(project__project_id=project, subscription_id=subscription_id)
    by_name = {row.name: row for row in subscriptions.filter(chosen).select_related("project")}
    since = _failing_since(resources, now)
    statuses = [
        Failing(by_name[name], subscription_status(by_name[name]), since.get(name))
        for name in resources
        if name in by_name
    ]
    return [failing for failing in statuses if failing.status.is_failing]


def _failing_since(resources: Sequence[str], now: datetime) -> dict[str, datetime]:
    """Return when subscriptions were last healthy or, for those that never were, when they were first seen."""
    start = now - SINCE_PERIOD
    gauges = GaugeMinute.objects.filter(resource__in=resources, at__gte=start).order_by().values_list("resource")
    times = gauges.annotate(last_healthy_at=Max("at", filter=Q(backoff_ms=0, unserved=0)), first_seen_at=Min("at"))
    return {
        resource: last_healthy_at or first_seen_at
        for resource, last_healthy_at, first_seen_at in times
        if last_healthy_at is not None or first_seen_at > start + FRESH
    }


def _rates(project_ids: Any, now: datetime) -> dict[str, float | None]:
    """Return the publishes and pushes per second over the last complete minutes."""
    end = now.replace(second=0, microsecond=0)
    rows = MetricMinute.objects.filter(project__in=project_ids, at__gte=end - RATE_PERIOD, at__lt=end)
    counts = dict(rows.order_by().values_list("event").annotate(Sum("count")))
    seconds = RATE_PERIOD.total_seconds()
    return {
        "publish_rate": counts["publish"] / seconds if "publish" in counts else None,
        "push_rate": counts["push"] / seconds if "push" in counts else None,
    }


def _dead_letters(project_ids: Any, now: datetime) -> int:
    rows = MetricHour.objects.filter(project__in=project_ids, event="dead_letter", at__gte=now - DEAD_LETTER_PERIOD)
    return int(rows.aggregate(total=Sum("count"))["total"] or 0)
