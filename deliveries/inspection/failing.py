"""Which endpoints fail: all of them at a glance, in a number of queries that doesn't depend on how many there are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import takewhile
from operator import attrgetter
from urllib.parse import urlsplit

import redis
from django.conf import settings
from django.db.models import Q, QuerySet, Sum

from deliveries.backlog.default import impatient_backlog
from deliveries.backlog.records import Lane, grouped
from deliveries.inspection.conditions import FAILING, WELL, Condition
from deliveries.inspection.counting import added_up_once
from deliveries.inspection.lanes import LaneView, lane_views
from deliveries.inspection.overview import last_round
from deliveries.inspection.status import next_attempt_ms, worst_lane
from deliveries.models import Delivery, GaugeMinute, Metric, MetricHour, MetricMinute
from deliveries.rules.outcome import ResponseClass
from deliveries.store.metricrows import of_resources
from deliveries.telemetry.series.coverage import Counting
from pushhub.common import names
from pushhub.common.clock import Clock, utcnow
from subscriptions.models import Subscription

#: Failing subscriptions that are shown, those with the oldest message first.
MAX_SHOWN = 200
SINCE_PERIOD = timedelta(days=1)
CLASSES_PERIOD = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Failing:
    """A push subscription that fails now. `since` is None if that is longer than SINCE_PERIOD, or not counted yet."""

    subscription: Subscription
    condition: Condition
    lane: LaneView
    undelivered: int
    #: The HTTP status or the reason of the last failed push. If no message that waits has failed, as after a dead
    #: letter, the class of its response; "" if none is known.
    last_result: str
    next_attempt_ms: float | None
    since: datetime | None

    @property
    def host(self) -> str:
        return urlsplit(self.subscription.push_endpoint).netloc


def failing_subscriptions(
    subscriptions: QuerySet[Subscription], state: Counting, *, clock: Clock = utcnow
) -> tuple[Sequence[Failing], int, datetime]:
    """Return those of the subscriptions that fail now, how many more than MAX_SHOWN seem to, and the gauges' time.

    The gauges say which to look at; a LookupError says that the last ones are too old. `state` is that of the counter.
    May raise redis.RedisError, also if it is not known of each.
    """
    now = clock()
    taken = last_round(now)
    if taken is None:
        raise LookupError
    ranked = added_up_once(lambda: _held_back(taken), "held back", taken, state=state, now=now)
    rows = _rows_named(subscriptions, [resource for resource, _ in ranked])
    ranked_rows = [(rows[resource], undelivered) for resource, undelivered in ranked if resource in rows]
    shown = dict(ranked_rows[:MAX_SHOWN])
    known = conditions_of(list(shown))
    if len(known) < len(shown):
        raise redis.ConnectionError("a node of the Cluster is away")
    conditions = {pk: pair for pk, pair in known.items() if pair[0] in FAILING}
    results = last_results({pk: lane for pk, (_, lane) in conditions.items()})
    resources = tuple(row.name for row in shown if row.pk in conditions)
    since, classes = added_up_once(
        lambda: (_failing_since(resources, now), _last_classes(resources, now)),
        "failing",
        resources,
        state=state,
        now=now,
    )
    failing = [
        Failing(
            row,
            *conditions[row.pk],
            undelivered,
            results.get(row.pk) or classes.get(row.name, ""),
            next_attempt_ms(*conditions[row.pk]),
            since.get(row.name),
        )
        for row, undelivered in shown.items()
        if row.pk in conditions
    ]
    return failing, len(ranked_rows) - len(shown), taken


def _held_back(taken: datetime) -> Sequence[tuple[str, int]]:
    """Return the subscriptions that the gauges found failing, with their undelivered messages, the oldest first."""
    held = GaugeMinute.objects.filter(Q(backoff_ms__gt=0) | Q(unserved__gt=0), at=taken)
    return list(held.order_by("-oldest_unacked_seconds", "resource").values_list("resource", "undelivered"))


def conditions_of(rows: Sequence[Subscription]) -> dict[int, tuple[Condition, LaneView]]:
    """Return why messages of push subscriptions wait, given that some do, by subscription: of their worst lanes.

    Those whose node of a Cluster is away are left out. May raise redis.RedisError.
    """
    regions = sorted({settings.REGION, *settings.REGIONS})
    views = lane_views(impatient_backlog(), [Lane(row.pk, region) for row in rows for region in regions])
    by_subscription = grouped(views, attrgetter("subscription_id"))
    return {
        pk: worst_lane(
            [views[lane] for lane in lanes if views[lane].has_messages]
            or [views[lane] for lane in lanes if views[lane].is_known]
            or [views[lanes[0]]]
        )
        for pk, lanes in by_subscription.items()
    }


def last_results(lanes: Mapping[int, LaneView]) -> dict[int, str]:
    """Return the result of the last failed push of the deliveries that are retried next, by subscription."""
    ids = [message_id for lane in lanes.values() for message_id in lane.retry_ids]
    rows = Delivery.objects.filter(message_id__in=ids, subscription__in=list(lanes))
    failed = rows.exclude(last_result="").order_by("last_attempt_at")
    return dict(failed.values_list("subscription_id", "last_result"))


def _rows_named(subscriptions: QuerySet[Subscription], resources: Sequence[str]) -> dict[str, Subscription]:
    pairs = [names.parse_subscription(resource) for resource in resources]
    rows = subscriptions.filter(
        project__project_id__in={project for project, _ in pairs},
        subscription_id__in={subscription_id for _, subscription_id in pairs},
    )
    return {row.name: row for row in rows.exclude(push_endpoint="").filter(paused=False).select_related("project")}


def _failing_since(resources: Sequence[str], now: datetime) -> dict[str, datetime]:
    """Return when the pushes of each subscription stopped being acknowledged, to the minute, as they were counted."""
    start = now.replace(minute=0, second=0, microsecond=0) - SINCE_PERIOD
    by_hour: dict[datetime, list[str]] = {}
    for resource, shares in _shares(MetricHour, resources, start, now).items():
        well = [place for place, (_, share) in enumerate(shares) if share >= WELL]
        # If the last hour is well as a whole, it went wrong in the midst of that hour.
        hour, _ = shares[min(well[-1] + 1, len(shares) - 1)] if well else shares[0]
        if well or hour > start:
            by_hour.setdefault(hour, []).append(resource)
    since = {}
    for hour, of_hour in by_hour.items():
        for resource, shares in _shares(MetricMinute, of_hour, hour, hour + timedelta(hours=1)).items():
            bad = list(takewhile(lambda minute: minute[1] < WELL, reversed(shares)))
            if bad:
                since[resource] = bad[-1][0]
    return since


def _last_classes(resources: Sequence[str], now: datetime) -> dict[str, str]:
    """Return the class of the last failed pushes of each subscription, as they were counted."""
    pushes = MetricMinute.objects.filter(of_resources(resources, at__gte=now - CLASSES_PERIOD), event="push")
    failed = pushes.exclude(response_class=ResponseClass.ACK).order_by("at")
    return dict(failed.values_list("resource", "response_class"))


def _shares(
    model: type[Metric], resources: Iterable[str], start: datetime, end: datetime
) -> Mapping[str, list[tuple[datetime, float]]]:
    """Return the share of acks in each span of time with pushes, in order, by subscription."""
    pushes = model._default_manager.filter(of_resources(resources, at__gte=start, at__lt=end), event="push")
    acked = Sum("count", filter=Q(response_class=ResponseClass.ACK), default=0)
    rows = pushes.order_by("at").values_list("resource", "at").annotate(acked=acked, pushed=Sum("count"))
    shares: dict[str, list[tuple[datetime, float]]] = {}
    for resource, at, acks, count in rows:
        shares.setdefault(resource, []).append((at, acks / count))
    return shares
