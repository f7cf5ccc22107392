"""The status of a subscription: one condition that says why messages wait, and the figures behind it.

The number of queries doesn't depend on the backlog, and counts end at a bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import redis
from django.conf import settings

from deliveries.backlog.backlog import DEAD_AFTER_MS, Lane
from deliveries.backlog.default import default_backlog
from deliveries.inspection.lanes import LaneView, lane_views
from deliveries.inspection.outcomes import Outcomes, subscription_outcomes
from deliveries.models import Delivery
from deliveries.rules.ids import publish_time_ms
from deliveries.store import statements
from pushhub.common.clock import Clock, utcnow
from pushhub.common.outages import outage_or_raise
from subscriptions.models import Subscription

#: A larger backlog is shown as "more than 10000": counting a million rows every two seconds would cost too much.
MAX_COUNTED = 10_000
#: Deliveries that are read, besides the next retries, to find the result of the last failed push.
OLDEST_READ = 20


class Condition(StrEnum):
    """Why messages of a subscription wait, the most important reason first."""

    DETACHED = "detached"
    REDIS_DOWN = "redis_down"
    PAUSED = "paused"
    PULL = "pull"
    IDLE = "idle"
    NO_WORKER = "no_worker"
    BACKING_OFF = "backing_off"
    SLOWED = "slowed"
    RETRYING = "retrying"
    WINDOW_FULL = "window_full"
    DELIVERING = "delivering"


@dataclass(frozen=True, slots=True)
class SubscriptionStatus:
    """The current status of a subscription. `condition` describes `lane`, if it describes a lane."""

    condition: Condition
    undelivered: int
    oldest_age_seconds: float
    lanes: Sequence[LaneView]
    lane: LaneView | None = None
    #: The HTTP status or the reason of the last failed push; "" if none is known.
    last_result: str = ""
    next_attempt_ms: float | None = None
    #: What has become of its messages, if none waits.
    outcomes: Outcomes | None = None

    @property
    def is_failing(self) -> bool:
        return self.condition in FAILING

    @property
    def has_losses(self) -> bool:
        """Whether messages that no longer wait were not delivered, although no filter left them out."""
        outcomes = self.outcomes
        return outcomes is not None and bool(
            outcomes.dead_lettered or outcomes.dropped or outcomes.dead_letters_waiting
        )


FAILING = frozenset({Condition.BACKING_OFF, Condition.SLOWED, Condition.RETRYING, Condition.NO_WORKER})


def subscription_status(subscription: Subscription, *, clock: Clock = utcnow) -> SubscriptionStatus:
    """Return the status. It takes eight queries at most, two more per further region, and one round trip to Redis."""
    waiting_regions = statements.lanes_waiting(subscription.pk)
    rows = Delivery.objects.filter(subscription=subscription).order_by()
    undelivered = rows.values("pk")[: MAX_COUNTED + 1].count()
    age = _oldest_age_seconds(subscription.pk, waiting_regions, clock)
    if subscription.detached:
        return SubscriptionStatus(Condition.DETACHED, undelivered, age, [])
    try:
        regions = sorted({settings.REGION, *waiting_regions})
        lanes = lane_views(default_backlog(), [Lane(subscription.pk, region) for region in regions])
    except redis.RedisError as error:
        outage_or_raise(error)
        return SubscriptionStatus(Condition.REDIS_DOWN, undelivered, age, [])
    outcomes = None if undelivered else subscription_outcomes(subscription, clock=clock)
    if not subscription.push_endpoint:
        return SubscriptionStatus(Condition.PULL, undelivered, age, lanes, outcomes=outcomes)
    if subscription.paused:
        return SubscriptionStatus(Condition.PAUSED, undelivered, age, lanes)
    if not undelivered:
        return SubscriptionStatus(Condition.IDLE, undelivered, age, lanes, outcomes=outcomes)
    condition, lane = worst_lane(lanes)
    return SubscriptionStatus(
        condition,
        undelivered,
        age,
        lanes,
        lane,
        last_result=_last_result(subscription.pk, lane) if condition in FAILING else "",
        next_attempt_ms=next_attempt_ms(condition, lane),
    )


def worst_lane(lanes: Sequence[LaneView]) -> tuple[Condition, LaneView]:
    """Return the most important condition of all lanes, and its lane."""
    conditions = [(condition_of(lane), lane) for lane in lanes]
    order = list(Condition)
    return min(conditions, key=lambda pair: order.index(pair[0]))


def condition_of(lane: LaneView) -> Condition:
    """Return why messages of a lane wait, given that some do."""
    if lane.silent_seconds is None or lane.silent_seconds * 1000 > DEAD_AFTER_MS:
        return Condition.NO_WORKER
    if lane.pause_ms > 0 or lane.is_backing_off:
        return Condition.BACKING_OFF
    if lane.gap_ms > 0:
        return Condition.SLOWED
    if lane.retrying and not lane.outstanding:
        return Condition.RETRYING
    if lane.window and lane.outstanding >= lane.window:
        return Condition.WINDOW_FULL
    return Condition.DELIVERING


def next_attempt_ms(condition: Condition, lane: LaneView) -> float | None:
    """Return how long the lane waits until its next attempt; None if that is not known, or nothing holds it back."""
    if condition == Condition.BACKING_OFF:
        return max(lane.pause_ms, lane.retry_in_ms or 0.0 if not lane.is_spilled else 0.0)
    if condition == Condition.RETRYING:
        return lane.retry_in_ms
    return None


def _oldest_age_seconds(subscription_id: int, regions: Sequence[str], clock: Clock) -> float:
    rows = Delivery.objects.filter(subscription=subscription_id).order_by("message_id")
    oldest = [rows.filter(region=region).values_list("message_id", flat=True).first() for region in regions]
    first = min((message_id for message_id in oldest if message_id is not None), default=None)
    return max(clock().timestamp() - publish_time_ms(first) / 1000, 0.0) if first is not None else 0.0


def _last_result(subscription_id: int, lane: LaneView) -> str:
    """Return the result of the latest failed push of the next retries and the oldest deliveries."""
    rows = Delivery.objects.filter(subscription=subscription_id, region=lane.region)
    oldest = rows.order_by("message_id").values_list("message_id", flat=True)[:OLDEST_READ]
    # SQLite looks up one list of ids in the index. With an OR, it would read the whole backlog.
    chosen = rows.filter(message_id__in=[*lane.retry_ids, *oldest]).exclude(last_result="")
    return chosen.order_by("-last_attempt_at").values_list("last_result", flat=True).first() or ""
