"""Summaries of dead letters by subscription, and the sweep of those that were acknowledged."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from django.db.models import Count, Exists, Max, Min, OuterRef, Q, QuerySet

from deliveries.models import DeadLetter, Delivery
from deliveries.rules.ids import first_id_at
from deliveries.store.writelock import write_transaction
from subscriptions.models import Subscription

#: Dead letters that one run of the sweep looks at.
SWEPT = 5_000


@dataclass(slots=True)
class Summary:
    """The dead letters of one subscription."""

    subscription_id: int
    count: int = 0
    first_id: int = 0
    last_id: int = 0
    max_attempts: int = 0
    #: How many ended with each result of a last nack, the most frequent first.
    reasons: list[tuple[str, int]] = field(default_factory=list)


def summaries(subscriptions: QuerySet[Subscription] | None) -> list[Summary]:
    """Return a summary for each of the subscriptions, the largest number first; None stands for all of them.

    It is one query over an index. Dead letters that were acknowledged since the last sweep are counted too.
    """
    rows = DeadLetter.objects.order_by()
    if subscriptions is not None:
        rows = rows.filter(subscription__in=subscriptions.order_by())
    groups = rows.values_list("subscription_id", "result").annotate(
        Count("message_id"), Min("message_id"), Max("message_id"), Max("attempts")
    )
    by_subscription: dict[int, Summary] = {}
    for subscription_id, result, count, first_id, last_id, attempts in groups:
        summary = by_subscription.setdefault(subscription_id, Summary(subscription_id, first_id=first_id))
        summary.count += count
        summary.first_id = min(summary.first_id, first_id)
        summary.last_id = max(summary.last_id, last_id)
        summary.max_attempts = max(summary.max_attempts, attempts)
        summary.reasons.append((result, count))
    for summary in by_subscription.values():
        summary.reasons.sort(key=lambda reason: -reason[1])
    return sorted(by_subscription.values(), key=lambda summary: (-summary.count, summary.subscription_id))


def unsettled(source: Subscription) -> QuerySet[DeadLetter]:
    """Return the dead letters of a subscription that nobody has dealt with yet."""
    waiting = Exists(Delivery.objects.filter(message=OuterRef("message_id")))
    return DeadLetter.objects.filter(Q(is_kept=True) | waiting, subscription=source)


def sweep_settled(after_id: int = 0) -> int:
    """Forget dead letters that the dead-letter topic's subscriptions acknowledged, and kept ones past their retention.

    Returns the id to go on from; 0 when the run came to the end.
    """
    rows = list(
        DeadLetter.objects.filter(message_id__gt=after_id)
        .order_by("message_id")
        .values_list("message_id", "subscription_id", "is_kept")[:SWEPT]
    )
    if not rows:
        return 0
    ids = [message_id for message_id, _, _ in rows]
    letters = DeadLetter.objects.filter(message_id__gte=ids[0], message_id__lte=ids[-1])
    owed = Exists(Delivery.objects.filter(message=OuterRef("message_id")))
    gone = list(letters.filter(~owed, is_kept=False).values_list("message_id", flat=True)) + _expired(rows)
    for start in range(0, len(gone), 500):
        with write_transaction():
            DeadLetter.objects.filter(message_id__in=gone[start : start + 500]).delete()
    return ids[-1] if len(rows) == SWEPT else 0


def _expired(rows: Sequence[tuple[int, int, bool]]) -> list[int]:
    """Return the kept dead letters that are past the retention of their subscription, or whose subscription is gone."""
    kept = [(message_id, subscription_id) for message_id, subscription_id, is_kept in rows if is_kept]
    retentions = dict(
        Subscription.objects.filter(pk__in={subscription_id for _, subscription_id in kept}).values_list(
            "pk", "message_retention_seconds"
        )
    )
    now_ms = time.time_ns() // 1_000_000
    return [
        message_id
        for message_id, subscription_id in kept
        if message_id < first_id_at(now_ms - retentions.get(subscription_id, 0) * 1000)
    ]
