"""When the events of a message were that are not found yet, by the attempts' numbers and by what has ended."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from deliveries.inspection.attempts import Attempt, Span
from deliveries.models import Delivery

#: Events of these names are attempts; the others tell how a delivery ended.
ATTEMPTS = frozenset({"push", "pull", "streaming_pull"})


def ms_of(event: Attempt) -> int:
    return int(event.at.timestamp() * 1000)


def numbers_of(events: Iterable[Attempt]) -> set[int]:
    """Return the numbers of the attempts among these events."""
    return {event.attempt for event in events if event.event in ATTEMPTS and event.attempt}


def gaps(
    events: Sequence[Attempt],
    *,
    published_ms: int,
    now_ms: int,
    waiting: Mapping[int, Delivery],
    owed: Collection[int],
    ended: Collection[int],
) -> list[Span]:
    """Return the times of events that are missing.

    `waiting` has the deliveries that wait, `owed` the subscriptions that may have got the message, and `ended` those
    whose last event is known; the keys are those of subscriptions.
    """
    spans: list[Span] = []
    for subscription_id in {*waiting, *owed} - {*ended}:
        own = [event for event in events if event.subscription_id == subscription_id and event.event in ATTEMPTS]
        last_ms, last_number = published_ms, 0
        for event in own:
            if event.attempt > last_number + 1 or 1 < event.attempt < last_number:
                spans.append((last_ms, ms_of(event)))
            last_ms, last_number = ms_of(event), event.attempt
        row = waiting.get(subscription_id)
        if row is None:
            spans.append((last_ms, now_ms))
        elif row.attempts > last_number:
            at = row.last_attempt_at
            spans.append((last_ms, max(last_ms, int(at.timestamp() * 1000)) if at is not None else now_ms))
    return spans
