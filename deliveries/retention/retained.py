"""Which messages are kept although nobody is owed them: for seeks and snapshots (docs/spec.md#retained-messages).

Nothing is written for that when a message is published or acknowledged. The sweep of settled messages asks here from
which id on the messages of a topic stay.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

from django.db.models import Max, Min

from deliveries.rules.ids import first_id_at
from subscriptions.models import Snapshot, Subscription, Topic


def kept_from(topic_pks: Iterable[int]) -> Mapping[int, int]:
    """The first id that is kept, for those of the topics that keep anything."""
    wanted = set(topic_pks)
    now_ms = time.time_ns() // 1_000_000
    kept: dict[int, int] = {}

    def keep(topic_pk: int, first_id: int) -> None:
        kept[topic_pk] = min(kept.get(topic_pk, first_id), first_id)

    topics = Topic.objects.filter(pk__in=wanted, message_retention_seconds__gt=0)
    for pk, seconds in topics.values_list("pk", "message_retention_seconds"):
        keep(pk, first_id_at(now_ms - (seconds or 0) * 1000))
    retaining = Subscription.objects.filter(topic_id__in=wanted, retain_acked_messages=True, detached=False)
    for pk, seconds in retaining.values_list("topic_id").annotate(longest=Max("message_retention_seconds")):
        keep(pk, first_id_at(now_ms - seconds * 1000))
    for pk, boundary in (
        Snapshot.objects.filter(topic_pk__in=wanted).values_list("topic_pk").annotate(first=Min("boundary_id"))
    ):
        keep(pk, boundary)
    return kept


def seekable_from(subscription: Subscription) -> int | None:
    """The first id that a subscription can go back to, or None where what is acknowledged is gone for it.

    A topic's retention reaches back to before the subscription was made; the subscription's own does not.
    """
    now_ms = time.time_ns() // 1_000_000
    reached = []
    if subscription.topic is not None and subscription.topic.message_retention_seconds:
        reached.append(first_id_at(now_ms - subscription.topic.message_retention_seconds * 1000))
    if subscription.retain_acked_messages:
        made = first_id_at(int(subscription.created_at.timestamp() * 1000))
        reached.append(max(first_id_at(now_ms - subscription.message_retention_seconds * 1000), made))
    return min(reached, default=None)
