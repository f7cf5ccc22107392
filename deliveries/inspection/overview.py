"""The deployment at a glance: backlog, rates, and whether the processes are alive.

The figures come from the last gauges and the metrics of the last minutes, so their cost doesn't depend on the size of
the backlog.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import redis
from django.conf import settings
from django.db.models import Max, Q, QuerySet, Sum

from deliveries.inspection.counting import added_up_once
from deliveries.inspection.notices import why_not_stored
from deliveries.models import GaugeMinute, GaugeRound, MetricHour, MetricMinute
from deliveries.store.metricrows import of_resources
from deliveries.telemetry.export.probes import Component
from deliveries.telemetry.export.readiness import push_workers, redis_writes
from deliveries.telemetry.series.coverage import Counting
from pushhub.common.clock import Clock, utcnow
from pushhub.common.outages import Cause, outage_or_raise
from subscriptions.models import Project

#: Gauges are taken each minute. Older ones show that the maintenance worker has stopped.
FRESH = timedelta(minutes=3)
#: The minutes of the curves of rates.
RATE_MINUTES = 15
DEAD_LETTER_PERIOD = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Overview:
    """The figures of some projects; None for a figure that isn't known."""

    #: When what is undelivered was counted.
    taken: datetime | None
    undelivered: int | None
    oldest_seconds: int | None
    #: Publishes and pushes a second, minute by minute, the newest last; empty if none was counted.
    publish_rates: Sequence[float]
    push_rates: Sequence[float]
    dead_letters: int


@dataclass(frozen=True, slots=True)
class Health:
    """Whether the parts of the deployment do their work."""

    #: Why the database takes no writes, and Redis no messages; None if they do.
    database_cause: Cause | None
    redis_cause: Cause | None
    #: The push workers; None if nobody knows, as Redis knows them.
    workers: Component | None
    #: How far the journal is counted; None if the journal is off.
    counting: Counting | None


def overview(projects: QuerySet[Project], state: Counting, *, clock: Clock = utcnow) -> Overview:
    """Return the figures of these projects. `state` is the counter's."""
    now = clock()
    ids = frozenset(projects.order_by().values_list("project_id", flat=True))
    taken = last_round(now)
    return added_up_once(lambda: _overview(ids, taken, now), "overview", ids, taken, state=state, now=now)


def _overview(project_ids: Iterable[str], taken: datetime | None, now: datetime) -> Overview:
    gauges = GaugeMinute.objects.filter(Q(at=taken), project__in=project_ids)
    totals = gauges.aggregate(
        undelivered=Sum("undelivered", default=0), oldest=Max("oldest_unacked_seconds", default=0)
    )
    minutes = _minutes(now)
    rows = MetricMinute.objects.filter(
        project__in=project_ids, event__in=("publish", "push"), at__gte=minutes[0], at__lte=minutes[-1]
    )
    summed = _per_second(rows, "event", minutes)
    return Overview(
        taken=taken,
        undelivered=totals["undelivered"] if taken else None,
        oldest_seconds=totals["oldest"] if taken else None,
        publish_rates=summed.get("publish", []),
        push_rates=summed.get("push", []),
        dead_letters=_dead_letters(project_ids, now),
    )


def last_round(now: datetime) -> datetime | None:
    """Return the minute in which gauges were taken last; None if that was too long ago."""
    return last_rounds(now).first()


def last_rounds(now: datetime) -> QuerySet[GaugeRound, datetime]:
    """Return that minute as a query of at most one row, for a subquery."""
    return GaugeRound.objects.filter(at__gte=now - FRESH).order_by("-at").values_list("at", flat=True)[:1]


def health(state: Counting) -> Health:
    """Return the state of the database, Redis, the push workers and, as it is given, the counter of the journal."""
    database_cause = why_not_stored()
    shown = state if settings.JOURNAL else None
    try:
        # A Redis that is full or read-only answers questions.
        redis_writes(asker="page")
        return Health(database_cause, None, push_workers(asker="page"), shown)
    except redis.RedisError as error:
        return Health(database_cause, outage_or_raise(error), None, shown)


def rates(event: str, resources: Sequence[str], *, now: datetime) -> dict[str, list[float]]:
    """Return the events per second of each resource in each of the last complete minutes, the newest last."""
    minutes = _minutes(now)
    of_minutes = of_resources(resources, at__gte=minutes[0], at__lte=minutes[-1])
    return _per_second(MetricMinute.objects.filter(of_minutes, event=event), "resource", minutes)


def _per_second(rows: QuerySet[MetricMinute], key: str, minutes: Sequence[datetime]) -> dict[str, list[float]]:
    by_key: dict[str, list[float]] = {}
    for name, at, count in rows.order_by().values_list(key, "at").annotate(Sum("count")):
        by_key.setdefault(name, [0.0] * RATE_MINUTES)[minutes.index(at)] = count / 60
    return by_key


def _minutes(now: datetime) -> list[datetime]:
    end = now.replace(second=0, microsecond=0)
    return [end - timedelta(minutes=ago) for ago in range(RATE_MINUTES, 0, -1)]


def _dead_letters(project_ids: Iterable[str], now: datetime) -> int:
    rows = MetricHour.objects.filter(project__in=project_ids, event="dead_letter", at__gte=now - DEAD_LETTER_PERIOD)
    return int(rows.aggregate(total=Sum("count"))["total"] or 0)
