"""What is to be known of a subscription beside why its messages wait, in the reader's language."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import redis
from django.db import DatabaseError
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from deliveries.backlog.backlog import Backlog
from deliveries.backlog.default import impatient_backlog
from deliveries.backlog.records import Lane
from deliveries.deadletters.forwarding import dead_letter_topic_usable
from deliveries.inspection.conditions import Condition, Level
from deliveries.inspection.lanes import Holder, LaneView, condition_of, key_holders
from deliveries.inspection.texts import count_text, redis_text, result_text
from deliveries.models import Delivery
from deliveries.rules.regions import is_transit_allowed
from deliveries.store import statements
from deliveries.store.trial import refusal, seconds_to_store
from deliveries.telemetry.export.probes import Status
from deliveries.telemetry.export.readiness import maintenance_in
from pushhub.common.clock import Clock, duration_text, time_text
from pushhub.common.outages import Cause, outage_or_raise
from subscriptions.models import Subscription
from subscriptions.models.resources import Topic
from subscriptions.quotas import ADMINISTRATOR, PUBLISH_REQUESTS, PUBLISHER, Quota, used_up

#: A subscription that expires within this time is said to do so.
SOON = timedelta(days=1)
#: So many nacks in a row make a message poison.
MIN_ATTEMPTS = 3
#: Of the oldest deliveries, and of those whose retries are due next, so many are looked at.
LOOKED_AT = 100
#: Of the messages that wait for a poison message, so many are counted.
MAX_BEHIND = 1000
#: What a quota that is used up refuses.
REFUSED: dict[Quota, Any] = {
    ADMINISTRATOR: gettext_lazy("administrator operations"),
    PUBLISH_REQUESTS: gettext_lazy("publish requests"),
    PUBLISHER: gettext_lazy("publish requests"),
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is so of a subscription; `remedy` is "" where nothing is to be done."""

    condition: Condition
    level: Level
    sentence: str
    remedy: str = ""
    #: The message that it is about.
    message_id: int | None = None


def is_wrong(level: Level) -> bool:
    """Return whether something has to be done, or waited for."""
    return level in (Level.WARN, Level.BAD)


def _notice(condition: Condition, sentence: str, *, message_id: int | None = None, **names: str) -> Finding:
    """Return what is beside the condition of a subscription. The remedy may have `names` in it."""
    return Finding(condition, condition.level, sentence, str(condition.remedy % names), message_id)


def lane_notices(
    subscription: Subscription, backlog: Backlog, lanes: Sequence[LaneView], waiting: Sequence[LaneView]
) -> Iterator[Finding]:
    """Yield what Redis knows. `waiting` has the lanes with messages. May raise redis.RedisError."""
    if maintenance_in(backlog.shared).status != Status.OK:
        text = _("No maintenance worker gives a sign of life: lost messages are not found, and nothing expires.")
        yield _notice(Condition.NO_MAINTENANCE, text)
    if subscription.push_endpoint:
        idle = [view for view in lanes if view not in waiting and condition_of(view) is Condition.NO_WORKER]
        yield from (_notice(Condition.NO_WORKER, no_worker_sentence(view, "0"), region=view.region) for view in idle)
        yield from map(_taken_over, (view for view in lanes if view.is_adopted))
    yield from _quota_notices(backlog.shared, [ADMINISTRATOR], subscription.project.project_id)
    if subscription.topic is not None:
        yield from _quota_notices(backlog.shared, [PUBLISH_REQUESTS, PUBLISHER], subscription.topic.project.project_id)
    if subscription.enable_message_ordering and subscription.push_endpoint:
        yield from _poison_notices(backlog, subscription.pk, lanes)


def no_worker_sentence(lane: LaneView, count: str) -> str:
    words = {"region": lane.region, "count": count}
    if lane.silent_seconds is None:
        return _("Redis knows of no push worker of region %(region)s. Messages that wait: %(count)s.") % words
    words["silence"] = duration_text(lane.silent_seconds * 1000)
    return _("No push worker of region %(region)s has lived for %(silence)s. Messages that wait: %(count)s.") % words


def _taken_over(lane: LaneView) -> Finding:
    words = {"region": lane.region, "silence": duration_text((lane.silent_seconds or 0) * 1000)}
    text = _(
        "No push worker of region %(region)s has lived for %(silence)s. Workers of other regions push its messages."
    )
    return _notice(Condition.TAKEN_OVER, text % words, region=lane.region)


def stored_notices(subscription: Subscription, regions: Sequence[str], clock: Clock) -> Iterator[Finding]:
    """Yield what the database knows. `regions` are those in which messages wait."""
    yield from _database_notices()
    if subscription.topic is None:
        yield _notice(Condition.TOPIC_DELETED, _("The topic was deleted: nothing is published to it."))
    if subscription.expiration_ttl_seconds is not None:
        used_at = max(subscription.active_at, subscription.updated_at)
        ttl_seconds = subscription.expiration_ttl_seconds
        left_seconds = ttl_seconds - (clock() - used_at).total_seconds()
        # A policy of a day is about to end all the time, and one of 8,000 years ends when no datetime can be.
        if left_seconds < min(SOON.total_seconds(), ttl_seconds / 2):
            text = _("Unless it is used, the subscription is deleted at %(time)s.")
            yield _notice(Condition.EXPIRING, text % {"time": time_text(used_at + timedelta(seconds=ttl_seconds))})
    if subscription.max_delivery_attempts:
        yield from _held_dead_letters(subscription, regions)


def _held_dead_letters(subscription: Subscription, regions: Sequence[str]) -> Iterator[Finding]:
    """Yield why messages without further attempts don't become dead letters."""
    topic = subscription.dead_letter_topic
    if topic is None:
        text = _("The dead letter topic was deleted, so messages without further attempts go on being tried.")
        yield _notice(Condition.NO_DEAD_LETTER_TOPIC, text)
    elif dead_letter_topic_usable(subscription) is None:
        text = _(
            "The service agent may not move messages to the dead letter topic %(topic)s, so those without further "
            "attempts go on being tried."
        )
        yield _notice(Condition.DEAD_LETTERS_DENIED, text % {"topic": topic.name})
    else:
        text = _(
            "The message storage policy of the dead letter topic %(topic)s allows nothing from %(region)s, so messages "
            "there go on being tried when they have no further attempts."
        )
        for region in regions:
            if not is_transit_allowed(topic.message_storage_policy, region):
                yield _notice(Condition.DEAD_LETTERS_BANNED, text % {"topic": topic.name, "region": region})


def topic_notices(topic: Topic) -> list[Finding]:
    """Return why publishes to a topic are refused."""
    notices = [*_database_notices()]
    quotas = [PUBLISH_REQUESTS, PUBLISHER, ADMINISTRATOR]
    try:
        notices += _quota_notices(impatient_backlog().shared, quotas, topic.project.project_id)
    except redis.RedisError as error:
        outage_or_raise(error)
    return notices


def redis_notice(cause: Cause) -> Finding:
    return _notice(Condition.REDIS_DOWN, _("Redis takes no messages: %(cause)s.") % {"cause": redis_text(cause)})


def _quota_notices(client: redis.Redis, quotas: Sequence[Quota], project: str) -> Iterator[Finding]:
    """Yield which of these quotas of a project are used up. May raise redis.RedisError."""
    text = _("A quota of the project is used up, so %(refused)s are refused.")
    for quota in used_up(client, quotas, project=project):
        yield _notice(Condition.QUOTA_USED, text % {"refused": REFUSED[quota]}, quota=quota.setting)


def _database_notices() -> Iterator[Finding]:
    if cause := why_not_stored():
        text = _("The database takes no writes, so nothing can be published or settled: %(cause)s.")
        yield _notice(Condition.DATABASE_DOWN, text % {"cause": _(cause)})


def why_not_stored() -> Cause | None:
    """Return why the database takes no writes, or did not take the last publish of this process; None if it does."""
    try:
        seconds_to_store()
    except DatabaseError as error:
        return outage_or_raise(error)
    return refusal()


def _poison_notices(backlog: Backlog, subscription_id: int, views: Sequence[LaneView]) -> Iterator[Finding]:
    """Yield the poison message that most others of its ordering key wait for in Redis. May raise redis.RedisError."""
    pairs = [pair for view in views for pair in _poisoned(backlog, Lane(subscription_id, view.region), view)]
    if not pairs:
        return
    poison, _holder = max(pairs, key=lambda pair: (pair[1].has_left, pair[1].parked))
    behind = statements.count_of_key(subscription_id, poison.region, poison.message_id, limit=MAX_BEHIND + 2) - 1
    if behind > 0:
        text = _(
            "The message %(id)s is refused again and again. Its nacks: %(count)d, the last with %(result)s. Later "
            "messages of its ordering key wait for it: %(behind)s."
        ) % {
            "id": poison.message_id,
            "behind": count_text(behind, most=MAX_BEHIND),
            "count": poison.attempts,
            "result": result_text(poison.last_result),
        }
        yield _notice(Condition.BLOCKED, text, message_id=poison.message_id)


def _poisoned(backlog: Backlog, lane: Lane, view: LaneView) -> Sequence[tuple[Delivery, Holder]]:
    """Return the poison messages of a lane, each with what it holds up."""
    rows = Delivery.objects.filter(subscription=lane.subscription_id, region=lane.region)
    oldest = rows.order_by("message_id").values_list("message_id", flat=True)[:LOOKED_AT]
    ordering_keys = statements.ordering_keys(sorted({*view.retry_ids, *oldest}))
    holders = key_holders(backlog, lane, {key for key in ordering_keys.values() if key})
    held = {holder.message_id: holder for holder in holders.values()}
    poison = rows.filter(message_id__in=list(held), attempts__gte=MIN_ATTEMPTS).order_by("message_id")
    return [(row, held[row.message_id]) for row in poison]
