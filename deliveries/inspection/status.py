"""The status of a subscription: the condition that says why messages wait, what is said beside it, and the figures.

The number of queries doesn't depend on the backlog, and counts end at a bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import redis
from django.conf import settings

from deliveries.backlog.backlog import Backlog
from deliveries.backlog.codes import PULLER_AWAY_MS, Mode
from deliveries.backlog.default import impatient_backlog
from deliveries.backlog.records import Lane
from deliveries.inspection.conditions import FAILING, WELL, Condition, Level
from deliveries.inspection.lanes import LaneView, condition_of, lane_views
from deliveries.inspection.notices import Finding, lane_notices, stored_notices
from deliveries.inspection.outcomes import Outcomes, subscription_outcomes
from deliveries.inspection.texts import MAX_COUNTED
from deliveries.models import Delivery
from deliveries.rules.ids import age_seconds
from deliveries.store import lanerows
from pushhub.common.clock import Clock, utcnow
from pushhub.common.outages import Cause, outage_or_raise
from subscriptions.models import Subscription
from subscriptions.quotas import SUBSCRIBER, used_up
from subscriptions.selectors import Pause, pause_of

#: Deliveries that are read, besides the next retries, to find the result of the last failed push.
OLDEST_READ = 20


@dataclass(frozen=True, slots=True)
class SubscriptionStatus:
    """The current status of a subscription. `condition` describes `lane`, if it describes a lane."""

    condition: Condition
    undelivered: int
    oldest_age_seconds: float
    lanes: Sequence[LaneView]
    lane: LaneView | None = None
    #: How many of the undelivered messages are in the region of `lane`; None if all of them are.
    undelivered_there: int | None = None
    #: The HTTP status or the reason of the last failed push; "" if none is known.
    last_result: str = ""
    next_attempt_ms: float | None = None
    #: What has become of its messages, if none waits.
    outcomes: Outcomes | None = None
    notices: Sequence[Finding] = ()
    #: Who paused it and when, as far as the audit log tells.
    paused: Pause | None = None
    #: Why Redis takes nothing.
    redis_cause: Cause | None = None

    @property
    def level(self) -> Level:
        """The level of the condition alone."""
        if self.condition is Condition.IDLE and self.outcomes is not None and self.outcomes.acknowledged:
            return Level.GOOD
        return level_of(self.condition, self.lane)

    @property
    def worst_level(self) -> Level:
        """The worst level of the condition and the notices."""
        levels = [self.level, *(notice.level for notice in self.notices)]
        return max(levels, key=list(Level).index)


def level_of(condition: Condition, lane: LaneView | None) -> Level:
    """Return the level of a condition; that of a lane which is delivering depends on how pushes have ended."""
    if condition is not Condition.DELIVERING or lane is None:
        return condition.level
    if not lane.results:
        return Level.UNKNOWN
    return Level.WARN if lane.ack_share < WELL else Level.GOOD


def count_undelivered(subscription: Subscription, **of_region: str) -> int:
    """Return how many messages wait, of all regions or of the given `region`; MAX_COUNTED + 1 stands for more."""
    rows = Delivery.objects.filter(subscription=subscription, **of_region).order_by()
    return rows.values("pk")[: MAX_COUNTED + 1].count()


def subscription_status(subscription: Subscription, *, clock: Clock = utcnow) -> SubscriptionStatus:
    """Return the status. It takes a dozen queries at most, two more per further region, and a few calls of Redis."""
    waiting_regions = lanerows.lanes_waiting(subscription.pk)
    undelivered = count_undelivered(subscription)
    age = _oldest_age_seconds(subscription.pk, waiting_regions, clock)
    if subscription.detached:
        return SubscriptionStatus(Condition.DETACHED, undelivered, age, [])
    backlog = impatient_backlog()
    notices = [*stored_notices(subscription, waiting_regions, clock)]
    try:
        all_lanes = [Lane(subscription.pk, region) for region in sorted({settings.REGION, *waiting_regions})]
        views = lane_views(backlog, all_lanes)
        if len(views) < len(all_lanes):
            raise redis.ConnectionError("a node of the Cluster is away")
        lanes = list(views.values())
        waiting = [view for view in lanes if view.region in waiting_regions]
        notices += lane_notices(subscription, backlog, lanes, waiting)
        outcomes = None if undelivered else subscription_outcomes(subscription, clock=clock)
        condition, lane = _condition(subscription, backlog, lanes, waiting, outcomes)
    except redis.RedisError as error:
        redis_cause = outage_or_raise(error)
        return SubscriptionStatus(Condition.REDIS_DOWN, undelivered, age, [], notices=notices, redis_cause=redis_cause)
    return SubscriptionStatus(
        condition,
        undelivered,
        age,
        lanes,
        lane,
        undelivered_there=count_undelivered(subscription, region=lane.region) if len(waiting_regions) > 1 else None,
        last_result=_last_result(subscription.pk, lane) if condition in FAILING or lane.failures else "",
        next_attempt_ms=next_attempt_ms(condition, lane),
        outcomes=outcomes,
        notices=notices,
        paused=pause_of(subscription) if condition is Condition.PAUSED else None,
    )


def _condition(
    subscription: Subscription,
    backlog: Backlog,
    lanes: Sequence[LaneView],
    waiting: Sequence[LaneView],
    outcomes: Outcomes | None,
) -> tuple[Condition, LaneView]:
    """Return the condition, and the lane that it is about. `waiting` has the lanes with messages."""
    pushes = bool(subscription.push_endpoint)
    if pushes and subscription.paused:
        return Condition.PAUSED, lanes[0]
    condition, lane = worst_lane(waiting or lanes)
    if pushes and waiting and condition is Condition.NO_WORKER:
        return condition, lane
    mode = Mode.PUSH if pushes else Mode.PULL
    outdated = [view for view in lanes if view.is_known and view.mode != mode]
    if outdated:
        return Condition.OUTDATED, outdated[0]
    if outcomes is not None:
        return outcomes.condition, lane
    if pushes:
        return condition, lane
    if used_up(backlog.shared, [SUBSCRIBER], project=subscription.project.project_id):
        return Condition.QUOTA_USED, lane
    is_pulled = any(
        view.outstanding or (view.asked_ms_ago is not None and view.asked_ms_ago < PULLER_AWAY_MS) for view in lanes
    )
    elsewhere = [view for view in waiting if view.is_elsewhere]
    if elsewhere and not is_pulled:
        return Condition.ELSEWHERE, elsewhere[0]
    return (Condition.PULLED if is_pulled else Condition.UNPULLED), lane


def worst_lane(lanes: Sequence[LaneView]) -> tuple[Condition, LaneView]:
    """Return the most important condition of all lanes, and of its lanes the one that is held back for longest."""
    conditions = [(condition_of(lane), lane) for lane in lanes]
    return min(conditions, key=lambda pair: (pair[0].value, -pair[1].delay_ms))


def next_attempt_ms(condition: Condition, lane: LaneView) -> float | None:
    """Return how long the lane waits until its next attempt; None if that is not known, or nothing holds it back."""
    if condition == Condition.BACKING_OFF:
        has_others = lane.ready > 0 or lane.is_spilled
        return lane.pause_ms if has_others else max(lane.pause_ms, lane.retry_in_ms or 0.0)
    if condition == Condition.RETRYING:
        return lane.retry_in_ms
    return None


def _oldest_age_seconds(subscription_id: int, regions: Sequence[str], clock: Clock) -> float:
    rows = Delivery.objects.filter(subscription=subscription_id).order_by("message_id")
    oldest = [rows.filter(region=region).values_list("message_id", flat=True).first() for region in regions]
    first = min((message_id for message_id in oldest if message_id is not None), default=None)
    return age_seconds(first, clock())


def _last_result(subscription_id: int, lane: LaneView) -> str:
    """Return the result of the latest failed push of the next retries and the oldest deliveries."""
    rows = Delivery.objects.filter(subscription=subscription_id, region=lane.region)
    oldest = rows.order_by("message_id").values_list("message_id", flat=True)[:OLDEST_READ]
    # SQLite looks up one list of ids in the index. With an OR, it would read the whole backlog.
    chosen = rows.filter(message_id__in=[*lane.retry_ids, *oldest]).exclude(last_result="")
    return chosen.order_by("-last_attempt_at").values_list("last_result", flat=True).first() or ""
