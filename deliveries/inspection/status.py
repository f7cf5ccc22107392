"""The status of a subscription: the condition that says why messages wait, what is said beside it, and the figures.

The number of queries doesn't depend on the backlog, and counts end at a bound.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import redis
from django.conf import settings
from django.db import DatabaseError

from deliveries.backlog.backlog import Backlog
from deliveries.backlog.codes import PULLER_AWAY_MS, Mode
from deliveries.backlog.default import impatient_backlog
from deliveries.backlog.records import Lane
from deliveries.deadletters.forwarding import dead_letter_topic_usable
from deliveries.inspection.conditions import FAILING, KINDS, Condition, Level
from deliveries.inspection.lanes import Holder, LaneView, key_holders, lane_views
from deliveries.inspection.outcomes import Outcomes, subscription_outcomes
from deliveries.models import Delivery
from deliveries.rules.ids import publish_time_ms
from deliveries.rules.regions import is_transit_allowed
from deliveries.store import lanerows, statements
from deliveries.store.trial import refusal, seconds_to_store
from deliveries.telemetry.export.probes import Status
from deliveries.telemetry.export.readiness import maintenance_in
from pushhub.common.clock import Clock, utcnow
from pushhub.common.outages import Cause, outage_or_raise
from subscriptions.models import Subscription
from subscriptions.models.resources import Topic
from subscriptions.quotas import ADMINISTRATOR, PUBLISH_REQUESTS, PUBLISHER, SUBSCRIBER, Quota, used_up
from subscriptions.selectors import Pause, pause_of

#: A larger backlog is shown as "more than 10,000": counting a million rows every two seconds would cost too much.
MAX_COUNTED = 10_000
#: Deliveries that are read, besides the next retries, to find the result of the last failed push.
OLDEST_READ = 20
#: Pushes fare well if that share of them is acknowledged.
WELL = 0.9
#: A subscription that expires within this time is said to do so.
SOON = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Notice:
    """Something that is so beside the condition."""

    condition: Condition
    #: When the subscription expires.
    at: datetime | None = None
    #: The delivery of the message that blocks its ordering key, and how many messages wait for it.
    poison: Delivery | None = None
    behind: int = 0
    dead_letter_topic: str = ""
    #: A lane of which nothing waits, or one that other workers serve.
    lane: LaneView | None = None
    region: str = ""
    #: What is used up.
    quota: Quota | None = None
    #: Why nothing can be stored, or Redis takes nothing.
    cause: Cause | None = None


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
    notices: Sequence[Notice] = ()
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
        levels = [self.level, *(KINDS[notice.condition].level for notice in self.notices)]
        return max(levels, key=list(Level).index)


def level_of(condition: Condition, lane: LaneView | None) -> Level:
    """Return the level of a condition; that of a lane which is delivering depends on how pushes have ended."""
    if condition is not Condition.DELIVERING or lane is None:
        return KINDS[condition].level
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
    cause = why_not_stored()
    notices = [Notice(Condition.DATABASE_DOWN, cause=cause)] if cause else []
    notices += _stored_notices(subscription, waiting_regions, clock)
    try:
        all_lanes = [Lane(subscription.pk, region) for region in sorted({settings.REGION, *waiting_regions})]
        views = lane_views(backlog, all_lanes)
        if len(views) < len(all_lanes):
            raise redis.ConnectionError("a node of the Cluster is away")
        lanes = list(views.values())
        waiting = [view for view in lanes if view.region in waiting_regions]
        notices += _notices(subscription, backlog, lanes, waiting)
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


def _notices(
    subscription: Subscription, backlog: Backlog, lanes: Sequence[LaneView], waiting: Sequence[LaneView]
) -> Iterator[Notice]:
    """Yield what Redis knows. `waiting` has the lanes with messages. May raise redis.RedisError."""
    if maintenance_in(backlog.shared).status != Status.OK:
        yield Notice(Condition.NO_MAINTENANCE)
    if subscription.push_endpoint:
        idle = [view for view in lanes if view not in waiting and condition_of(view) is Condition.NO_WORKER]
        yield from (Notice(Condition.NO_WORKER, lane=view) for view in idle)
        yield from (Notice(Condition.TAKEN_OVER, lane=view) for view in lanes if view.is_adopted)
    yield from quota_notices(backlog.shared, [ADMINISTRATOR], subscription.project.project_id)
    if subscription.topic is not None:
        yield from quota_notices(backlog.shared, [PUBLISH_REQUESTS, PUBLISHER], subscription.topic.project.project_id)
    if subscription.enable_message_ordering and subscription.push_endpoint:
        poison = find_poison(backlog, subscription.pk, lanes)
        if poison is not None:
            yield Notice(Condition.BLOCKED, poison=poison[0], behind=poison[1])


def _stored_notices(subscription: Subscription, regions: Sequence[str], clock: Clock) -> Iterator[Notice]:
    """Yield what the database knows. `regions` are those in which messages wait."""
    if subscription.topic is None:
        yield Notice(Condition.TOPIC_DELETED)
    if subscription.expiration_ttl_seconds is not None:
        used_at = max(subscription.active_at, subscription.updated_at)
        ttl_seconds = subscription.expiration_ttl_seconds
        left_seconds = ttl_seconds - (clock() - used_at).total_seconds()
        # A policy of a day is about to end all the time, and one of 8,000 years ends when no datetime can be.
        if left_seconds < min(SOON.total_seconds(), ttl_seconds / 2):
            yield Notice(Condition.EXPIRING, at=used_at + timedelta(seconds=ttl_seconds))
    if subscription.max_delivery_attempts:
        yield from _held_dead_letters(subscription, regions)


def _held_dead_letters(subscription: Subscription, regions: Sequence[str]) -> Iterator[Notice]:
    """Yield why messages without further attempts don't become dead letters."""
    topic = subscription.dead_letter_topic
    if topic is None:
        yield Notice(Condition.NO_DEAD_LETTER_TOPIC)
    elif dead_letter_topic_usable(subscription) is None:
        yield Notice(Condition.DEAD_LETTERS_DENIED, dead_letter_topic=topic.name)
    else:
        for region in regions:
            if not is_transit_allowed(topic.message_storage_policy, region):
                yield Notice(Condition.DEAD_LETTERS_BANNED, dead_letter_topic=topic.name, region=region)


def quota_notices(client: redis.Redis, quotas: Sequence[Quota], project: str) -> Iterator[Notice]:
    """Yield which of these quotas of a project are used up. May raise redis.RedisError."""
    for quota in used_up(client, quotas, project=project):
        yield Notice(Condition.QUOTA_USED, quota=quota)


def topic_notices(topic: Topic) -> list[Notice]:
    """Return why publishes to a topic are refused."""
    cause = why_not_stored()
    notices = [Notice(Condition.DATABASE_DOWN, cause=cause)] if cause else []
    quotas = [PUBLISH_REQUESTS, PUBLISHER, ADMINISTRATOR]
    try:
        notices += quota_notices(impatient_backlog().shared, quotas, topic.project.project_id)
    except redis.RedisError as error:
        outage_or_raise(error)
    return notices


def why_not_stored() -> Cause | None:
    """Return why the database takes no writes, or did not take the last publish of this process; None if it does."""
    try:
        seconds_to_store()
    except DatabaseError as error:
        return outage_or_raise(error)
    return refusal()


def worst_lane(lanes: Sequence[LaneView]) -> tuple[Condition, LaneView]:
    """Return the most important condition of all lanes, and of its lanes the one that is held back for longest."""
    conditions = [(condition_of(lane), lane) for lane in lanes]
    order = list(Condition)
    return min(conditions, key=lambda pair: (order.index(pair[0]), -pair[1].delay_ms))


def condition_of(lane: LaneView) -> Condition:
    """Return why messages of a lane wait, given that some do."""
    if lane.is_elsewhere:
        return Condition.ELSEWHERE
    if lane.is_silent and not lane.is_adopted:
        return Condition.NO_WORKER
    if lane.pause_ms > 0 or lane.is_backing_off:
        return Condition.BACKING_OFF
    if lane.gap_ms > 0:
        return Condition.SLOWED
    if lane.retrying and not lane.outstanding:
        return Condition.RETRYING
    if not (lane.ready or lane.is_spilled or lane.retrying):
        # Nothing is held back: all of its messages are on their way, or wait for their ordering keys.
        return Condition.DELIVERING
    if lane.cap and lane.outstanding >= lane.cap:
        return Condition.LIMITED
    if lane.window and lane.outstanding >= lane.window:
        return Condition.WINDOW_FULL
    return Condition.LIMITED if lane.is_rate_spent else Condition.DELIVERING


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
    return max(clock().timestamp() - publish_time_ms(first) / 1000, 0.0) if first is not None else 0.0


def _last_result(subscription_id: int, lane: LaneView) -> str:
    """Return the result of the latest failed push of the next retries and the oldest deliveries."""
    rows = Delivery.objects.filter(subscription=subscription_id, region=lane.region)
    oldest = rows.order_by("message_id").values_list("message_id", flat=True)[:OLDEST_READ]
    # SQLite looks up one list of ids in the index. With an OR, it would read the whole backlog.
    chosen = rows.filter(message_id__in=[*lane.retry_ids, *oldest]).exclude(last_result="")
    return chosen.order_by("-last_attempt_at").values_list("last_result", flat=True).first() or ""


#: So many nacks in a row make a message poison.
MIN_ATTEMPTS = 3
#: Of the oldest deliveries, and of those whose retries are due next, so many are looked at.
LOOKED_AT = 100
#: Of the messages that wait for a poison message, so many are counted.
MAX_BEHIND = 1000


def find_poison(backlog: Backlog, subscription_id: int, views: Sequence[LaneView]) -> tuple[Delivery, int] | None:
    """Return the poison message that most others of its ordering key wait for in Redis, and how many do in all.

    May raise redis.RedisError.
    """
    found = [pair for view in views for pair in _poisoned(backlog, Lane(subscription_id, view.region), view)]
    if not found:
        return None
    poison, _ = max(found, key=lambda pair: (pair[1].has_left, pair[1].parked))
    behind = statements.count_of_key(subscription_id, poison.region, poison.message_id, limit=MAX_BEHIND + 2) - 1
    return (poison, behind) if behind > 0 else None


def _poisoned(backlog: Backlog, lane: Lane, view: LaneView) -> Sequence[tuple[Delivery, Holder]]:
    """Return the poison messages of a lane, each with what it holds up."""
    rows = Delivery.objects.filter(subscription=lane.subscription_id, region=lane.region)
    oldest = rows.order_by("message_id").values_list("message_id", flat=True)[:LOOKED_AT]
    ordering_keys = statements.ordering_keys(sorted({*view.retry_ids, *oldest}))
    holders = key_holders(backlog, lane, {key for key in ordering_keys.values() if key})
    held = {holder.message_id: holder for holder in holders.values()}
    poison = rows.filter(message_id__in=list(held), attempts__gte=MIN_ATTEMPTS).order_by("message_id")
    return [(row, held[row.message_id]) for row in poison]
