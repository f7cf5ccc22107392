"""Gauges: the state of each subscription, stored once a minute. They need neither the journal nor Spark."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from django.conf import settings

from deliveries.backlog.codes import Mode
from deliveries.backlog.default import default_backlog
from deliveries.backlog.lanestate import LaneState
from deliveries.backlog.records import Lane, grouped
from deliveries.backlog.regions import regions_unserved
from deliveries.models import GaugeMinute, GaugeRound
from deliveries.rules.flow import Flow
from deliveries.rules.ids import age_seconds
from deliveries.store import lanerows
from deliveries.store.lanerows import LaneCount
from deliveries.store.writelock import write_transaction
from deliveries.telemetry.kinds import METRICS
from deliveries.telemetry.series.openstreams import open_streams
from pushhub.common.clock import Clock, utcnow
from pushhub.common.names import subscription_name
from subscriptions.models import Subscription

#: With more subscriptions than this, idle ones get no rows: a row per minute and subscription would be too many.
ALL_UP_TO = 100
#: A subscription gets rows for this long after its backlog has become empty, so that its curve falls to zero.
AFTERGLOW = timedelta(minutes=3)


def take_gauges(*, lanes: Sequence[LaneCount] | None = None, clock: Clock = utcnow) -> int:
    """Store a row for each subscription and return how many. May raise redis.RedisError and database errors.

    `lanes` are those that the caller has just counted.
    """
    now = clock()
    at = now.replace(second=0, microsecond=0)
    lanes = lanerows.count_lanes() if lanes is None else lanes
    waiting = _waiting(lanes)
    streams = open_streams(default_backlog().shared)
    subscriptions = dict(_names({*waiting, *streams}, at))
    states = _states(subscriptions, lanes)
    unserved = _unserved(lanes)
    rows = [_row(name, at, now, waiting.get(pk, (0, None)), states.get(pk, [])) for pk, name in subscriptions.items()]
    for row, pk in zip(rows, subscriptions, strict=True):
        row.unserved = unserved.get(pk, 0)
        row.open_streams = streams[pk]
    with write_transaction():
        GaugeMinute.objects.bulk_create(
            rows,
            batch_size=2000,
            update_conflicts=True,
            unique_fields=["resource", "at"],
            update_fields=[kind.gauge for kind in METRICS if kind.gauge],
        )
        GaugeRound.objects.get_or_create(at=at)
    return len(rows)


def _waiting(lanes: Iterable[LaneCount]) -> dict[int, tuple[int, int | None]]:
    """Return the number of deliveries and the oldest message id by subscription."""
    return {
        pk: (sum(lane.waiting for lane in own), min(lane.oldest_id for lane in own))
        for pk, own in grouped(lanes, lambda lane: lane.subscription_id).items()
    }


def _unserved(lanes: Iterable[LaneCount]) -> dict[int, int]:
    """Return the number of deliveries in regions that no push worker serves, by subscription."""
    regions = {unserved.region for unserved in regions_unserved()}
    counts = Counter[int]()
    for lane in lanes:
        if lane.region in regions:
            counts[lane.subscription_id] += lane.waiting
    if not counts:
        return {}
    pushed = Subscription.objects.filter(push_endpoint__gt="").values_list("pk", flat=True)
    return {pk: counts[pk] for pk in pushed if pk in counts}


def _names(active: Iterable[int], at: datetime) -> Iterable[tuple[int, str]]:
    """Return the subscriptions that get a row, with their names; `active` have deliveries or open streams."""
    rows = Subscription.objects.order_by("id").values_list("id", "project__project_id", "subscription_id")
    named = [(pk, subscription_name(project, name)) for pk, project, name in rows]
    if len(named) <= ALL_UP_TO:
        return named
    recent = GaugeMinute.objects.filter(at__gte=at - AFTERGLOW, undelivered__gt=0)
    recent_names, active_pks = set(recent.values_list("resource", flat=True)), set(active)
    return [(pk, name) for pk, name in named if pk in active_pks or name in recent_names]


def _states(subscriptions: Iterable[int], waiting: Iterable[LaneCount]) -> dict[int, list[LaneState]]:
    """Return the states of each subscription's lanes, in one round trip."""
    regions = {pk: {settings.REGION} for pk in subscriptions}
    for counted in waiting:
        if counted.subscription_id in regions:
            regions[counted.subscription_id].add(counted.region)
    lanes = [Lane(pk, region) for pk, names in regions.items() for region in sorted(names)]
    by_subscription: dict[int, list[LaneState]] = defaultdict(list)
    for lane, state in zip(lanes, default_backlog().states(lanes), strict=True):
        if state is not None:
            by_subscription[lane.subscription_id].append(state)
    return by_subscription


def _row(
    name: str, at: datetime, now: datetime, waiting: tuple[int, int | None], states: list[LaneState]
) -> GaugeMinute:
    count, oldest = waiting
    now_ms = time.time() * 1000
    backoff_ms = max((_held_back_ms(state.flow, count, now_ms) for state in states), default=0.0)
    return GaugeMinute(
        project=name.split("/")[1],
        resource=name,
        at=at,
        undelivered=count,
        oldest_unacked_seconds=int(age_seconds(oldest, now)),
        outstanding=sum(state.outstanding for state in states),
        push_window=sum(state.window for state in states if state.mode == Mode.PUSH),
        backoff_ms=int(backoff_ms),
    )


def _held_back_ms(flow: Flow, waiting: int, now_ms: float) -> float:
    """Return how long the push backoff holds messages back. It is 1 at least between two pauses, too."""
    return max(flow.pause_ms(now_ms=now_ms), 1.0 if waiting and flow.is_backing_off else 0.0)
