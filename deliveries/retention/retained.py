"""Which settled messages are retained for seeks and snapshots (docs/spec-messages.md#retained-messages).

Publishing and acknowledging write nothing for this. The sweep of settled messages asks here for the first id of a topic
that must stay.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

from django.db.models import Max, Min

from deliveries.rules.ids import first_id_at
from subscriptions.models import Snapshot, Subscription, Topic


def kept_from(topic_pks: Iterable[int]) -> Mapping[int, int]:
    """Return the first retained id of each topic. Topics that retain nothing are left out."""
    wanted_pks = set(topic_pks)
    now_ms = time.time_ns() // 1_000_000
    kept: dict[int, int] = {}

    def keep(topic_pk: int, first_id: int) -> None:
        kept[topic_pk] = min(kept.get(topic_pk, first_id), first_id)

    topics = Topic.objects.filter(pk__in=wanted_pks, message_retention_seconds__gt=0)
    for pk, seconds in topics.values_list("pk", "message_retention_seconds"):
        keep(pk, first_id_at(now_ms - (seconds or 0) * 1000))
    retaining = Subscription.objects.filter(topic_id__in=wanted_pks, retain_acked_messages=True, detached=False)
    for pk, seconds in retaining.values_list("topic_id").annotate(longest=Max("message_retention_seconds")):
        keep(pk, first_id_at(now_ms - seconds * 1000))
    for pk, boundary in (
        Snapshot.objects.filter(topic_pk__in=wanted_pks).values_list("topic_pk").annotate(first=Min("boundary_id"))
    ):
        keep(pk, boundary)
    return kept


def seekable_from(subscription: Subscription) -> int | None:
    """Return the first id that a subscription can seek to, or None if it retains no acknowledged messages.

    A topic's retention reaches back to before the subscription was created; the subscription's own does not.
    """
    now_ms = time.time_ns() // 1_000_000
    first_ids = []
    if subscription.topic is not None and subscription.topic.message_retention_seconds:
        first_ids.append(first_id_at(now_ms - subscription.topic.message_retention_seconds * 1000))
    if subscription.retain_acked_messages:
        created_id = first_id_at(int(subscription.created_at.timestamp() * 1000))
        first_ids.append(max(first_id_at(now_ms - subscription.message_retention_seconds * 1000), created_id))
    return min(first_ids, default=None)
