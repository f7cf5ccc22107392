"""A subscription's status in one sentence, in the reader's language."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from deliveries.inspection.advice import result_advice
from deliveries.inspection.conditions import ANSWERED, KINDS, Condition, Level
from deliveries.inspection.counting import NOT_COUNTED
from deliveries.inspection.lanes import LaneView
from deliveries.inspection.outcomes import Outcomes
from deliveries.inspection.status import MAX_BEHIND, MAX_COUNTED, WELL, Notice, SubscriptionStatus
from deliveries.models import Delivery
from deliveries.rules.outcome import Reason
from pushhub.common.clock import time_text, utcnow
from pushhub.common.outages import Cause
from pushhub.common.redisurls import is_cluster
from subscriptions.quotas import ADMINISTRATOR, PUBLISH_REQUESTS, PUBLISHER, SUBSCRIBER, Quota

#: What happened where a push got no HTTP status. People read it behind the reason's own name, which is the only one on
#: every surface: in metrics, the journal, the API, Flower and the logs.
REASONS: dict[str, Any] = {
    Reason.DEADLINE_EXCEEDED: gettext_lazy("no answer within the ack deadline"),
    Reason.CONNECT_TIMEOUT: gettext_lazy("a connection that timed out"),
    Reason.CONNECT_FAILED: gettext_lazy("no connection was accepted"),
    Reason.DNS_FAILED: gettext_lazy("a host name that cannot be resolved"),
    Reason.TLS_FAILED: gettext_lazy("a failed TLS handshake"),
    Reason.RESET: gettext_lazy("a connection that was reset"),
    Reason.INVALID_RESPONSE: gettext_lazy("an invalid HTTP response"),
    Reason.HEADER_TOO_LARGE: gettext_lazy("a response whose header is too large"),
    Reason.BODY_INCOMPLETE: gettext_lazy("an incomplete response"),
    Reason.BODY_TIMEOUT: gettext_lazy("a response that did not end in time"),
    Reason.BODY_TOO_LARGE: gettext_lazy("a response that is too large"),
    Reason.ABORTED: gettext_lazy("the stop of a push worker"),
    Reason.ADDRESS_DENIED: gettext_lazy("an address that the address guard denies"),
    Reason.TOKEN_DENIED: gettext_lazy("a token that cannot be signed"),
    Reason.INVALID_ENDPOINT: gettext_lazy("an endpoint URL that is not valid"),
    Reason.TRANSFORM_FAILED: gettext_lazy("a message transform that failed"),
    Reason.INTERNAL: gettext_lazy("an internal error"),
}
#: What a quota that is used up refuses.
REFUSED: dict[Quota, Any] = {
    ADMINISTRATOR: gettext_lazy("administrator operations"),
    PUBLISH_REQUESTS: gettext_lazy("publish requests"),
    PUBLISHER: gettext_lazy("publish requests"),
}
#: Conditions whose sentences name the region themselves.
REGIONAL = frozenset({Condition.NO_WORKER, Condition.OUTDATED, Condition.ELSEWHERE})
#: The minutes that a rate is the mean of.
MEAN_MINUTES = 5


def result_text(result: str) -> str:
    """Return the result of a failed push: an HTTP status as it is, or a reason's name with what happened."""
    if result not in REASONS:
        return result
    return _("%(reason)s (%(words)s)") % {"reason": result, "words": REASONS[result]}


def nack_text(result: str) -> str:
    """Return why a message was nacked, as a phrase. The result of a pull subscription is ""."""
    if not result:
        return _("a subscriber did not acknowledge it")
    if result.isdecimal():
        return _("the endpoint answered %(status)s") % {"status": result}
    return result_text(result)


def redis_text(cause: Cause | None) -> str:
    """Return why Redis takes nothing; with a Cluster, one of its servers is enough for that."""
    text = _(cause or Cause.REDIS_AWAY)
    return _("%(cause)s (at least one of its servers)") % {"cause": text} if is_cluster(settings.REDIS_URL) else text


def blocked_sentence(blocking: Delivery) -> str:
    """Return that a message waits for the one before it in its ordering key, and what becomes of that one."""
    values = {"id": blocking.message_id, "count": blocking.attempts, "result": result_text(blocking.last_result)}
    sentence = _("It waits for the message %(id)s, which comes before it in its ordering key.")
    if not blocking.attempts:
        nacks = ""
    elif not blocking.last_result:
        nacks = _("Nacks of that message: %(count)d.")
    else:
        nacks = _("Nacks of that message: %(count)d, the last with %(result)s.")
    return f"{sentence} {nacks}".rstrip() % values


def count_text(count: int, *, most: int = MAX_COUNTED) -> str:
    """Return a number of rows that were counted up to a bound."""
    return _("more than %(count)s") % {"count": f"{most:,}"} if count > most else str(count)


def duration_text(milliseconds: float) -> str:
    """Return a duration as people read it: 400 ms, 18 s, 5 min, 3 h, 2 d."""
    seconds = milliseconds / 1000
    if seconds < 1:
        return f"{round(milliseconds)} ms"
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{int(seconds // size)} {unit}"
    return f"{seconds:.1f} s" if seconds < 10 else f"{round(seconds)} s"


def rate_text(rates: Sequence[float]) -> str:
    """Return the mean of the last five of the rates of minutes; "-" if none was counted."""
    recent = rates[-MEAN_MINUTES:]
    return f"{sum(recent) / len(recent):.1f} / s" if recent else "-"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is so of a subscription, in the reader's language; `remedy` is "" where nothing is to be done."""

    condition: Condition
    level: Level
    sentence: str
    remedy: str = ""
    #: The message that it is about.
    message_id: int | None = None


def findings_of(status: SubscriptionStatus) -> list[Finding]:
    """Return why messages wait, or what became of them, and then what else is to be known."""
    remedy = _remedy(status.condition, status.lane, SUBSCRIBER)
    is_full_of_failures = status.condition is Condition.WINDOW_FULL and status.lane and status.lane.ack_share < WELL
    if status.condition in ANSWERED or is_full_of_failures:
        remedy = result_advice(status.last_result) or remedy
    first = Finding(
        status.condition, status.level, _condition_sentence(status), remedy if is_wrong(status.level) else ""
    )
    return [first, *map(noticed, status.notices)]


def is_wrong(level: Level) -> bool:
    """Return whether something has to be done, or waited for."""
    return level in (Level.WARN, Level.BAD)


def status_sentence(status: SubscriptionStatus) -> str:
    """Return why messages wait, when the next attempt is, and what else is to be known."""
    return " ".join(finding.sentence for finding in findings_of(status))


def noticed(notice: Notice) -> Finding:
    """Return a notice in the reader's language."""
    remedy = _remedy(notice.condition, notice.lane, notice.quota)
    message_id = notice.poison.message_id if notice.poison is not None else None
    level = KINDS[notice.condition].level
    return Finding(notice.condition, level, _notice_sentence(notice), remedy, message_id)


def _remedy(condition: Condition, lane: LaneView | None, quota: Quota | None) -> str:
    names = {"region": lane.region if lane is not None else "", "quota": quota.setting if quota is not None else ""}
    return str(KINDS[condition].remedy % names)


def _notice_sentence(notice: Notice) -> str:
    match notice.condition:
        case Condition.DATABASE_DOWN:
            values = {"cause": _(notice.cause or Cause.DATABASE_FAILS)}
            return _("The database takes no writes, so nothing can be published or settled: %(cause)s.") % values
        case Condition.REDIS_DOWN:
            return _("Redis takes no messages: %(cause)s.") % {"cause": redis_text(notice.cause)}
        case Condition.QUOTA_USED if notice.quota is not None:
            return _("A quota of the project is used up, so %(refused)s are refused.") % {
                "refused": REFUSED[notice.quota]
            }
        case Condition.NO_MAINTENANCE:
            return _("No maintenance worker gives a sign of life: lost messages are not found, and nothing expires.")
        case Condition.TOPIC_DELETED:
            return _("The topic was deleted: nothing is published to it.")
        case Condition.EXPIRING:
            values = {"time": time_text(notice.at or utcnow())}
            return _("Unless it is used, the subscription is deleted at %(time)s.") % values
        case Condition.NO_DEAD_LETTER_TOPIC:
            return _("The dead letter topic was deleted, so messages without further attempts go on being tried.")
        case Condition.DEAD_LETTERS_BANNED:
            return _(
                "The message storage policy of the dead letter topic %(topic)s allows nothing from %(region)s, so "
                "messages there go on being tried when they have no further attempts."
            ) % {"topic": notice.dead_letter_topic, "region": notice.region}
        case Condition.TAKEN_OVER if notice.lane is not None:
            return _(
                "No push worker of region %(region)s has lived for %(silence)s. Workers of other regions push its "
                "messages."
            ) % {"region": notice.lane.region, "silence": duration_text((notice.lane.silent_seconds or 0) * 1000)}
        case Condition.DEAD_LETTERS_DENIED:
            return _(
                "The service agent may not move messages to the dead letter topic %(topic)s, so those without further "
                "attempts go on being tried."
            ) % {"topic": notice.dead_letter_topic}
    if notice.lane is not None:
        return _no_worker_sentence(notice.lane, "0")
    poison = notice.poison
    assert poison is not None
    behind = count_text(notice.behind, most=MAX_BEHIND)
    found = {"id": poison.message_id, "behind": behind, "count": poison.attempts}
    return _(
        "The message %(id)s is refused again and again. Its nacks: %(count)d, the last with %(result)s. Later messages "
        "of its ordering key wait for it: %(behind)s."
    ) % {**found, "result": result_text(poison.last_result)}


def _condition_sentence(status: SubscriptionStatus) -> str:
    match status.condition:
        case Condition.DETACHED:
            return _("Detached from its topic: it receives no messages any more.")
        case Condition.REDIS_DOWN:
            values = {**_counted(status), "cause": redis_text(status.redis_cause)}
            return _("Redis takes no messages: %(cause)s. Messages that wait in the database: %(count)s.") % values
        case Condition.PAUSED if status.paused is not None:
            values = {**_counted(status), "caller": status.paused.by, "time": time_text(status.paused.since)}
            return _("Paused by %(caller)s since %(time)s. Messages that wait until it is resumed: %(count)s.") % values
        case Condition.PAUSED:
            return _("Paused by hand. Messages that wait until it is resumed: %(count)s.") % _counted(status)
        case Condition.QUOTA_USED:
            return _(
                "The project's quota for pulling is used up, so pulls are refused. Messages that wait to be pulled: "
                "%(count)s."
            ) % _counted(status)
        case Condition.UNPULLED:
            return _(
                "Nobody has asked for messages for a minute. Messages that wait to be pulled: %(count)s."
            ) % _counted(status)
        case Condition.PULLED:
            values = {**_counted(status), "held": sum(lane.outstanding for lane in status.lanes)}
            if not values["held"]:
                return _("Subscribers ask for messages. Messages that wait to be pulled: %(count)s.") % values
            return (
                _("Subscribers hold messages that they have yet to acknowledge: %(held)d of %(count)s undelivered.")
                % values
            )
        case Condition.IDLE | Condition.LOST | Condition.FILTERED:
            return _idle_sentence(status.outcomes or Outcomes())
    assert status.lane is not None
    sentence = _lane_sentence(status, status.lane)
    if status.undelivered_there is None or status.condition in REGIONAL:
        return sentence
    return _("In the region %(region)s: %(sentence)s") % {"region": status.lane.region, "sentence": sentence}


def _idle_sentence(outcomes: Outcomes) -> str:
    """Return what has become of the messages, as none waits."""
    parts = [
        (outcomes.acknowledged, _("%(count)d acknowledged")),
        (outcomes.dead_lettered, _("%(count)d dead-lettered")),
        (outcomes.filtered, _("%(count)d filtered out")),
        (outcomes.dropped, _("%(count)d expired, revoked or skipped")),
    ]
    counted = _(", ").join(text % {"count": count} for count, text in parts if count)
    sentences = [_("Nothing waits.")]
    if counted:
        sentences.append(_("Counted in the last 24 hours: %(outcomes)s.") % {"outcomes": counted})
    elif not settings.JOURNAL:
        sentences.append(str(NOT_COUNTED))
    else:
        sentences.append(_("No message was counted in the last 24 hours."))
    if outcomes.dead_letters_waiting:
        waiting = {"count": count_text(outcomes.dead_letters_waiting)}
        sentences.append(_("Dead letters that nobody has dealt with: %(count)s.") % waiting)
    return " ".join(sentences)


def _lane_sentence(status: SubscriptionStatus, lane: LaneView) -> str:
    there = status.undelivered if status.undelivered_there is None else status.undelivered_there
    words: dict[str, Any] = {"count": count_text(there), "region": lane.region, "failed": _failed(status, lane)}
    words |= {"next": _next(status), "gap": duration_text(lane.gap_ms), "outstanding": lane.outstanding}
    match status.condition:
        case Condition.NO_WORKER:
            return _no_worker_sentence(lane, words["count"])
        case Condition.OUTDATED:
            sentence = _("Redis has other settings of the subscription in %(region)s.")
        case Condition.BACKING_OFF if lane.pause_ms:
            sentence = _("Paused by push backoff after %(failed)s; %(next)s.")
        case Condition.BACKING_OFF:
            sentence = _("The push backoff lets one message at a time through after %(failed)s; %(next)s.")
        case Condition.SLOWED:
            words |= {"share": round(100 * lane.nack_share), "whole": _whole_text(there, lane)}
            sentence = _(
                "Slowed down to one message every %(gap)s, as %(share)d %% of the results are nacks: %(failed)s. "
                "At this rate, the waiting messages take %(whole)s: %(count)s."
            )
        case Condition.RETRYING:
            sentence = _("Waiting for a retry after %(failed)s; %(next)s.")
        case Condition.WINDOW_FULL if lane.failures:
            sentence = _(
                "The push window is full, so the rest waits. Outstanding messages: %(outstanding)d; %(failed)s."
            )
        case Condition.WINDOW_FULL:
            sentence = _("The push window is full, so the rest waits. Outstanding messages: %(outstanding)d.")
        case Condition.LIMITED:
            words["limit"] = "x-pushhub-rate" if lane.is_rate_spent else "x-pushhub-max-outstanding"
            sentence = _(
                "Held back by its own limit %(limit)s. Outstanding messages: %(outstanding)d of %(count)s undelivered."
            )
        case Condition.ELSEWHERE:
            sentence = _(
                "Only the region that holds %(region)s knows how messages fare there. Undelivered there: %(count)s."
            )
        case _ if not lane.results:
            sentence = _(
                "No result of a push is known yet. Outstanding messages: %(outstanding)d of %(count)s undelivered."
            )
        case _ if lane.failures:
            sentence = _("Outstanding messages: %(outstanding)d of %(count)s undelivered; %(failed)s.")
        case _:
            sentence = _("Delivering. Outstanding messages: %(outstanding)d of %(count)s undelivered.")
    return sentence % words


def _whole_text(undelivered: int, lane: LaneView) -> str:
    """Return how long the waiting messages take at the lane's rate; at least that long if they were not all counted."""
    duration = duration_text(min(undelivered, MAX_COUNTED) * lane.gap_ms)
    return duration if undelivered <= MAX_COUNTED else _("more than %(duration)s") % {"duration": duration}


def _no_worker_sentence(lane: LaneView, count: str) -> str:
    words = {"region": lane.region, "count": count}
    if lane.silent_seconds is None:
        return _("Redis knows of no push worker of region %(region)s. Messages that wait: %(count)s.") % words
    words["silence"] = duration_text(lane.silent_seconds * 1000)
    return _("No push worker of region %(region)s has lived for %(silence)s. Messages that wait: %(count)s.") % words


def failing_text(condition: Condition, lane: LaneView, last_result: str) -> str:
    """Return in a few words why a lane fails: the last result, or that nobody serves its region."""
    if condition == Condition.NO_WORKER:
        return _("no push worker of region %(region)s") % {"region": lane.region}
    return last_result or "-"


def _counted(status: SubscriptionStatus) -> dict[str, Any]:
    return {"count": count_text(status.undelivered)}


def backoff_text(lane: LaneView) -> str:
    """Return what the push backoff does to a lane: how long it holds each message back, or "-"."""
    if lane.delay_ms:
        return duration_text(lane.delay_ms)
    return _("one at a time") if lane.is_backing_off else "-"


def _failed(status: SubscriptionStatus, lane: LaneView) -> str:
    """Return "12 of the last 20 pushes failed, most recently with 503"."""
    words = {"failures": lane.failures, "results": lane.results, "result": result_text(status.last_result)}
    if lane.failures == lane.results == 1:
        return _("the last push failed with %(result)s") % words if status.last_result else _("the last push failed")
    if not status.last_result:
        return _("%(failures)d of the last %(results)d pushes failed") % words
    return _("%(failures)d of the last %(results)d pushes failed, most recently with %(result)s") % words


def _next(status: SubscriptionStatus) -> str:
    if not status.next_attempt_ms:
        is_under_way = status.lane is not None and status.lane.outstanding > 0
        return _("the next attempt is under way") if is_under_way else _("the next attempt is due")
    return _("next attempt in %(duration)s") % {"duration": duration_text(status.next_attempt_ms)}
