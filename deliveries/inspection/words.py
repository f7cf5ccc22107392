"""A subscription's status in one sentence, in the reader's language."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.utils.translation import gettext as _

from deliveries.inspection.conditions import ANSWERED, WELL, Condition
from deliveries.inspection.counting import NOT_COUNTED
from deliveries.inspection.lanes import LaneView
from deliveries.inspection.notices import Finding, is_wrong, no_worker_sentence
from deliveries.inspection.outcomes import Outcomes
from deliveries.inspection.status import SubscriptionStatus
from deliveries.inspection.texts import MAX_COUNTED, count_text, redis_text, result_advice, result_text
from pushhub.common.clock import duration_text, time_text
from subscriptions.quotas import SUBSCRIBER

#: Conditions whose sentences name the region themselves.
REGIONAL = frozenset({Condition.NO_WORKER, Condition.OUTDATED, Condition.ELSEWHERE})


def findings_of(status: SubscriptionStatus) -> list[Finding]:
    """Return why messages wait, or what became of them, and then what else is to be known."""
    names = {"region": status.lane.region if status.lane is not None else "", "quota": SUBSCRIBER.setting}
    remedy = str(status.condition.remedy % names)
    is_full_of_failures = status.condition is Condition.WINDOW_FULL and status.lane and status.lane.ack_share < WELL
    if status.condition in ANSWERED or is_full_of_failures:
        remedy = result_advice(status.last_result) or remedy
    first = Finding(
        status.condition, status.level, _condition_sentence(status), remedy if is_wrong(status.level) else ""
    )
    return [first, *status.notices]


def status_sentence(status: SubscriptionStatus) -> str:
    """Return why messages wait, when the next attempt is, and what else is to be known."""
    return " ".join(finding.sentence for finding in findings_of(status))


def _condition_sentence(status: SubscriptionStatus) -> str:
    values: dict[str, Any] = {"count": count_text(status.undelivered)}
    match status.condition:
        case Condition.DETACHED:
            sentence = _("Detached from its topic: it receives no messages any more.")
        case Condition.REDIS_DOWN:
            values["cause"] = redis_text(status.redis_cause)
            sentence = _("Redis takes no messages: %(cause)s. Messages that wait in the database: %(count)s.")
        case Condition.PAUSED if status.paused is not None:
            values |= {"caller": status.paused.by, "time": time_text(status.paused.since)}
            sentence = _("Paused by %(caller)s since %(time)s. Messages that wait until it is resumed: %(count)s.")
        case Condition.PAUSED:
            sentence = _("Paused by hand. Messages that wait until it is resumed: %(count)s.")
        case Condition.QUOTA_USED:
            sentence = _(
                "The project's quota for pulling is used up, so pulls are refused. Messages that wait to be pulled: "
                "%(count)s."
            )
        case Condition.UNPULLED:
            sentence = _("Nobody has asked for messages for a minute. Messages that wait to be pulled: %(count)s.")
        case Condition.PULLED if held := sum(lane.outstanding for lane in status.lanes):
            values["held"] = held
            sentence = _(
                "Subscribers hold messages that they have yet to acknowledge: %(held)d of %(count)s undelivered."
            )
        case Condition.PULLED:
            sentence = _("Subscribers ask for messages. Messages that wait to be pulled: %(count)s.")
        case Condition.IDLE | Condition.LOST | Condition.FILTERED:
            return _idle_sentence(status.outcomes or Outcomes())
        case _:
            assert status.lane is not None
            sentence = _lane_sentence(status, status.lane)
            if status.undelivered_there is None or status.condition in REGIONAL:
                return sentence
            values = {"region": status.lane.region, "sentence": sentence}
            sentence = _("In the region %(region)s: %(sentence)s")
    return sentence % values


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
            return no_worker_sentence(lane, words["count"])
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


def failing_text(condition: Condition, lane: LaneView, last_result: str) -> str:
    """Return in a few words why a lane fails: the last result, or that nobody serves its region."""
    if condition == Condition.NO_WORKER:
        return _("no push worker of region %(region)s") % {"region": lane.region}
    return last_result or "-"


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
