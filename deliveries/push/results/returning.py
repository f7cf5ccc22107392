"""What Redis gets of results: how each ended and, for those that come again, the next attempt's task and its time."""

from __future__ import annotations

import random
from collections.abc import Sequence

from django.conf import settings

from deliveries.backlog.records import Settlement
from deliveries.push.sending.delivery import PushDelivery
from deliveries.rules.outcome import Verdict
from deliveries.rules.payload import LEAN_BYTES, wire_size
from deliveries.rules.retry import countdown_ms
from deliveries.rules.taskmessage import TaskTemplate, escape_message, reference


def settlement_of(
    deliveries: Sequence[PushDelivery], dice: random.Random, *, worker: str = "", record: str = ""
) -> Settlement:
    """Return what Redis gets of results of a push worker, or of one whose `record` is as record.lua says."""
    settlement = Settlement()
    for delivery in deliveries:
        settlement.add(
            str(delivery.task.message["messageId"]),
            delivery.verdict,
            delivery.latency_ms,
            attempt=delivery.task.attempt,
            generation=delivery.generation,
            lease=delivery.batch.lease.name if delivery.batch is not None else "",
            batch=f"{worker}/{delivery.batch.name}" if delivery.batch is not None else record,
        )
        if delivery.verdict is Verdict.NACK:
            delivery.retry_in_ms = _countdown_ms(delivery, dice)
            settlement.returned += [delivery.retry_in_ms, next_task(delivery, delivery.task.attempt + 1)]
        elif delivery.verdict is Verdict.RELEASE:
            settlement.returned += [0, next_task(delivery, delivery.task.attempt)]
    return settlement


def _countdown_ms(delivery: PushDelivery, dice: random.Random) -> int:
    push = delivery.plan.settings if delivery.plan else None
    countdown = countdown_ms(
        delivery.task.attempt,
        minimum_ms=push.minimum_backoff_ms if push else None,
        maximum_ms=push.maximum_backoff_ms if push else None,
        dice=dice.random(),
        at_least_ms=delivery.retry_after_s * 1000,
    )
    scaled: float = settings.TIME_SCALE * countdown
    return round(scaled)


def next_task(delivery: PushDelivery, attempt: int) -> str:
    """Return the Celery message of the next attempt, with a reference unless the message is small."""
    task = delivery.task
    template = TaskTemplate(
        subscription_id=task.subscription_id,
        region=task.region,
        attempt=attempt,
        generation=delivery.generation,
        seek=delivery.seek,
    )
    is_reference = delivery.by_reference or wire_size(task.message) > LEAN_BYTES
    message = reference(delivery.message_id) if is_reference else task.message
    return template.render(str(task.message["messageId"]), escape_message(message))
