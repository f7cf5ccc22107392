"""A message's way through each subscription: its place, its attempts, and its next attempt."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import NamedTuple

import redis
from django.conf import settings
from django.db.models import QuerySet
from django.utils.translation import gettext as _

from deliveries.backlog import codes
from deliveries.backlog.default import impatient_backlog
from deliveries.backlog.records import Lane
from deliveries.inspection.attempts import Attempt, AttemptSearch, Span, gaps, numbers_of
from deliveries.inspection.conditions import HELD_BACK
from deliveries.inspection.lanes import key_holders, message_places
from deliveries.inspection.status import subscription_status
from deliveries.inspection.texts import result_text
from deliveries.inspection.words import status_sentence
from deliveries.models import Delivery, Message
from deliveries.rules.ids import publish_time_ms
from deliveries.rules.payload import parse_attributes
from pushhub.common.clock import duration_text
from pushhub.common.outages import outage_or_raise
from pushhub.common.pagetokens import read_token, write_token
from pushhub.common.rows import row_or_none
from subscriptions.models import Subscription
from subscriptions.resources.filters import matcher

#: Events are searched for this long after the publish, and where something is missing.
FIRST_MS = 10 * 60_000
#: The most subscriptions for which the search goes on beyond a page: its token names them.
MAX_SEARCHED = 60

Clock = Callable[[], float]


class Place(StrEnum):
    """Where a message is on its way to a subscription."""

    WAITING = "waiting"
    RETRYING = "retrying"
    OUTSTANDING = "outstanding"
    ACKED = "acked"
    DEAD_LETTERED = "dead_lettered"
    EXPIRED = "expired"
    DROPPED = "dropped"
    GONE = "gone"


#: The place of a message whose last event in the journal has this name and outcome.
ENDS = {
    ("dead_letter", "dead_letter"): Place.DEAD_LETTERED,
    ("push", "ack"): Place.ACKED,
    ("pull", "ack"): Place.ACKED,
    ("streaming_pull", "ack"): Place.ACKED,
    # A message transform filtered it.
    ("filter", "ack"): Place.ACKED,
    ("drop", "drop"): Place.DROPPED,
}


@dataclass(frozen=True, slots=True)
class Way:
    """A message's way to one subscription."""

    subscription: str
    subscription_id: int
    place: Place
    #: The attempts on this page.
    attempts: Sequence[Attempt]
    #: When the next attempt is due, in ms since 1970, or None if that isn't known.
    due_ms: float | None = None
    #: Attempts of which the journal has no event, if it was searched to its end.
    missing: int = 0
    #: Whether the next page may tell more of it.
    is_searched_on: bool = False
    #: The delivery of an earlier message of its ordering key, for which it waits.
    blocked_by: Delivery | None = None


@dataclass(frozen=True, slots=True)
class Ways:
    """A page of a message's ways: the first has all of them, the next ones those of which something is missing."""

    message_id: int
    ways: Sequence[Way]
    #: All events that were found for this page, whoever may see their subscriptions.
    events: Sequence[Attempt]
    #: "" on the last page.
    next_token: str = ""
    #: Segments of the journal that could not be read, on this page and those before.
    unreadable: int = 0


class _Found(NamedTuple):
    """What the pages so far have found of the attempts for a subscription."""

    #: The highest number of an attempt.
    last: int = 0
    #: How many attempts were found.
    attempts: int = 0


def message_ways(
    message_id: int, subscriptions: QuerySet[Subscription], *, token: str = "", monotonic: Clock = time.monotonic
) -> Ways:
    """Return a page of the message's ways to those of these subscriptions that it was for.

    Raises InvalidArgument if `token` isn't that of the page before.
    """
    return _Page(message_id, subscriptions, token, monotonic).ways()


class _Page:
    """Reads a page of the ways of one message."""

    def __init__(self, message_id: int, subscriptions: QuerySet[Subscription], token: str, monotonic: Clock) -> None:
        self._message_id = message_id
        self._published_ms = publish_time_ms(message_id)
        self._scope = f"message {message_id}"
        self._before: dict[int, _Found] = {}
        self._from_ms = self._unreadable = 0
        if token:
            self._from_ms, self._unreadable, *found = map(int, read_token(token, self._scope))
            parts = zip(found[::3], found[1::3], found[2::3], strict=True)
            self._before = {subscription_id: _Found(last, count) for subscription_id, last, count in parts}
            subscriptions = subscriptions.filter(pk__in=self._before)
        self._subscriptions = subscriptions.order_by().select_related("project")
        self._message = row_or_none(Message.objects.filter(pk=message_id))
        rows = Delivery.objects.filter(message=message_id, subscription__in=self._subscriptions)
        rows = rows.select_related("subscription__project").order_by("subscription_id")
        self._waiting = {row.subscription_id: row for row in rows}
        self._owed: dict[int, Subscription] = {}
        self._search = AttemptSearch(message_id, monotonic=monotonic)

    def ways(self) -> Ways:
        self._search.begin()
        self._search.read(self._spans, from_ms=self._from_ms)
        events, rest_ms = self._search.events, self._search.rest_ms
        own: dict[int, list[Attempt]] = defaultdict(list)
        for event in events:
            own[event.subscription_id].append(event)
        visible = self._subscriptions.filter(pk__in=[*own, *self._find_owed(events), *self._before]).in_bulk()
        shown = {**self._waiting, **visible}
        found = {pk: self._found(pk, own[pk]) for pk in shown}
        open_ids: list[int] = []
        if rest_ms is not None:
            open_ids = sorted(pk for pk in shown if self._is_open(pk, own[pk], found[pk]))[:MAX_SEARCHED]
        ways = [self._way(pk, visible.get(pk), own[pk], found[pk], is_searched_on=pk in open_ids) for pk in shown]
        unreadable = self._unreadable + self._search.unreadable
        token = ""
        if open_ids:
            parts = [part for pk in open_ids for part in (pk, *found[pk])]
            token = write_token([str(part) for part in (rest_ms, unreadable, *parts)], self._scope)
        return Ways(self._message_id, ways, events, token, unreadable)

    def _spans(self, events: Sequence[Attempt]) -> list[Span]:
        """Return the spans of time for which to read the journal."""
        now_ms = int(time.time() * 1000)
        spans = gaps(
            events,
            published_ms=self._published_ms,
            now_ms=now_ms,
            waiting=self._waiting,
            owed=self._find_owed(events),
            ended=ended_ids(events),
        )
        return spans if self._from_ms else [(self._published_ms, self._published_ms + FIRST_MS), *spans]

    def _find_owed(self, events: Sequence[Attempt]) -> Mapping[int, Subscription]:
        """Return the subscriptions of the topic that may have got the message."""
        topic_id = (
            self._message.topic_id if self._message is not None else max((row.topic_id for row in events), default=0)
        )
        if topic_id and not self._owed:
            published_at = datetime.fromtimestamp(self._published_ms / 1000, UTC)
            rows = self._subscriptions.filter(topic=topic_id, created_at__lte=published_at)
            self._owed = {row.pk: row for row in rows if not self._is_filtered(row)}
        return self._owed

    def _is_filtered(self, subscription: Subscription) -> bool:
        if self._message is None:
            return False
        return not matcher(subscription.filter)(parse_attributes(self._message.attributes))

    def _found(self, pk: int, own: Sequence[Attempt]) -> _Found:
        before, numbers = self._before.get(pk, _Found()), numbers_of(own)
        row = self._waiting.get(pk)
        return _Found(
            max(before.last, row.attempts if row is not None else 0, *numbers, 0), before.attempts + len(numbers)
        )

    def _is_open(self, pk: int, own: Sequence[Attempt], found: _Found) -> bool:
        """Return whether something of the way is missing."""
        return found.last > found.attempts or (pk not in self._waiting and _end(own) is Place.GONE)

    def _way(
        self, pk: int, subscription: Subscription | None, own: Sequence[Attempt], found: _Found, *, is_searched_on: bool
    ) -> Way:
        row = self._waiting.get(pk)
        place, due_ms = _present_place(row) if row is not None else (_end(own), None)
        name = (row.subscription if row is not None else subscription or self._owed[pk]).name
        missing = 0 if is_searched_on else max(found.last - found.attempts, 0)
        blocked_by = self._blocking(row) if row is not None and place is Place.WAITING else None
        return Way(name, pk, place, own, due_ms, missing=missing, is_searched_on=is_searched_on, blocked_by=blocked_by)

    def _blocking(self, row: Delivery) -> Delivery | None:
        """Return the delivery of an earlier message of the same ordering key, if this one waits for it."""
        if self._message is None or not self._message.ordering_key:
            return None
        lane = Lane(row.subscription_id, row.region)
        try:
            holders = key_holders(impatient_backlog(), lane, [self._message.ordering_key])
        except redis.RedisError as error:
            outage_or_raise(error)
            return None
        earlier = [holder.message_id for holder in holders.values() if holder.message_id < row.message_id]
        rows = Delivery.objects.filter(subscription=row.subscription_id, message__in=earlier)
        return row_or_none(rows.order_by())


def why_waiting(way: Way) -> str:
    """Return why the message waits and when its next attempt is, or why nobody knows what became of it, or ""."""
    if way.place is Place.GONE and way.is_searched_on:
        return _("It does not wait any more. The journal was not read to its end yet.")
    if way.place is Place.GONE:
        return _("It does not wait any more, and the journal does not tell what became of it.")
    if way.blocked_by is not None:
        return _blocked_sentence(way.blocked_by)
    if way.place not in (Place.WAITING, Place.RETRYING, Place.OUTSTANDING):
        return ""
    subscription = row_or_none(Subscription.objects.select_related("project").filter(pk=way.subscription_id))
    status = subscription_status(subscription) if subscription is not None else None
    if way.due_ms is not None and (status is None or status.condition not in HELD_BACK):
        left_ms = max(way.due_ms - time.time() * 1000, 0)
        return _("Its next attempt is due in %(duration)s.") % {"duration": duration_text(left_ms)}
    if status is None or (way.place == Place.OUTSTANDING and status.condition not in HELD_BACK):
        return ""
    return status_sentence(status)


def _blocked_sentence(blocking: Delivery) -> str:
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


def why_missing(way: Way, page: Ways) -> str:
    """Return how many of the way's attempts are missing and why, or "" if none is."""
    if not way.missing:
        return ""
    kept_since_ms = (time.time() - settings.JOURNAL_DAYS * 86400) * 1000
    if not settings.JOURNAL:
        cause = _("The journal is off.")
    elif page.unreadable:
        cause = _("Segments of the journal that cannot be read: %(count)d.") % {"count": page.unreadable}
    elif publish_time_ms(page.message_id) < kept_since_ms:
        cause = _("It is kept for %(days)d days.") % {"days": settings.JOURNAL_DAYS}
    elif not Subscription.objects.exclude(push_endpoint="").filter(pk=way.subscription_id).exists():
        cause = _("A lease that ends by its ack deadline leaves no event.")
    else:
        cause = _(
            "Their worker died before it wrote them down, had no room for its journal, or runs on another machine and "
            "has yet to."
        )
    return " ".join([_("Attempts that the journal does not have: %(count)d.") % {"count": way.missing}, cause])


def ended_ids(events: Sequence[Attempt]) -> set[int]:
    """Return the subscriptions for which the last of the events says how the delivery ended."""
    last = {event.subscription_id: event for event in events}
    return {pk for pk, event in last.items() if _end([event]) is not Place.GONE}


def _end(own: Sequence[Attempt]) -> Place:
    """Return what the last event says of a delivery that no longer waits."""
    if not own:
        return Place.GONE
    place = ENDS.get((own[-1].event, own[-1].outcome), Place.GONE)
    return Place.EXPIRED if place is Place.DROPPED and own[-1].result == "expired" else place


def _present_place(row: Delivery) -> tuple[Place, float | None]:
    """Return the place of a delivery that waits, and when its retry is due if it waits for one."""
    try:
        stored, due_at_ms = message_places(impatient_backlog(), Lane(row.subscription_id, row.region), row.message_id)
    except redis.RedisError as error:
        outage_or_raise(error)
        return Place.WAITING, None
    if stored in (codes.Place.OUTSTANDING, codes.Place.LEASED):
        return Place.OUTSTANDING, None
    if due_at_ms is not None:
        return Place.RETRYING, due_at_ms
    return Place.WAITING, None
