"""Journal and count what services do: publishes, settlements of pullers, and dead letters."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from django.conf import settings

from deliveries.rules.payload import NewMessage
from deliveries.telemetry import recording
from deliveries.telemetry.journal.columns import Events
from deliveries.telemetry.journal.journal import journal
from pushhub.common import names
from subscriptions.models import Subscription, Topic
from subscriptions.selectors import PushSettings


def published(
    *, topic: Topic, ids: Sequence[int], messages: Sequence[NewMessage], region: str, publishes: Sequence[int] = ()
) -> None:
    """Record messages that were committed. `publishes` has the messages of each publish request, if there were more."""
    sizes = [len(message.data) for message in messages]
    remaining = iter(sizes)
    requests = [list(islice(remaining, count)) for count in publishes] if publishes else [sizes]
    recording.count_published(topic_id=topic.pk, requests=requests)
    if not settings.JOURNAL:
        return
    shared = {
        "event": "publish",
        "project": topic.project.project_id,
        "region": region,
        "topic": topic.name,
        "topic_id": topic.pk,
        "outcome": "accepted",
        "response_class": "success",
        "response_code": 0,
    }
    _append(ids, shared, bytes=sizes)


def pulled(
    *,
    subscription: PushSettings,
    region: str,
    ids: Sequence[int],
    attempts: Sequence[int],
    outcome: str,
    delivery_type: str,
) -> None:
    """Record that a puller acked or nacked messages that it got by `pull` or `streaming_pull`."""
    recording.count_pull_settled(
        subscription_id=subscription.id, messages=len(ids), outcome=outcome, delivery_type=delivery_type
    )
    _append(ids, {**_shared(subscription, region), "event": delivery_type, "outcome": outcome}, attempt=list(attempts))


def _shared(subscription: PushSettings | Subscription, region: str) -> dict[str, Any]:
    return {
        "project": names.parse_subscription(subscription.name)[0],
        "region": region,
        "subscription": subscription.name,
        "subscription_id": subscription.id,
        "topic_id": subscription.topic_id,
    }


def filtered(*, subscription: PushSettings, region: str, ids: Sequence[int], attempts: Sequence[int]) -> None:
    """Record that message transforms filtered messages on their way to a puller."""
    recording.count_filtered({subscription.id: len(ids)})
    _append(ids, {**_shared(subscription, region), "event": "filter", "outcome": "ack"}, attempt=list(attempts))


def skipped(*, subscription: Subscription, region: str, ids: Sequence[int], attempts: Sequence[int]) -> None:
    """Record that an operator skipped messages of a subscription."""
    shared = {**_shared(subscription, region), "event": "drop", "outcome": "drop", "reason": "skipped"}
    _append(ids, shared, attempt=list(attempts))


def dead_lettered(*, subscription: Subscription, region: str, attempts: Mapping[int, int]) -> None:
    """Record that messages went to the dead-letter topic. `attempts` has the number of attempts by message id."""
    recording.count_dead_letters(subscription_id=subscription.pk, messages=len(attempts))
    shared = {**_shared(subscription, region), "event": "dead_letter", "outcome": "dead_letter"}
    _append(list(attempts), shared, attempt=list(attempts.values()))


def _append(ids: Sequence[int], shared: dict[str, Any], **columns: list[Any]) -> None:
    process_journal = journal()
    if process_journal is None or not ids:
        return
    shared["time"] = time.time_ns() // 1000
    message_ids = [str(message_id) for message_id in ids]
    process_journal.append([Events(len(ids), {"message_id": message_ids, **columns}, shared)])
