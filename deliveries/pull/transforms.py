"""The message transforms of a subscription, applied to messages that were just leased."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from deliveries.pull.deadlines import end_leases, nack_leases
from deliveries.pull.leases import Leased, leases_ended
from deliveries.pull.settling import settle_acks
from deliveries.rules.outcome import FILTER
from deliveries.rules.payload import wire_size
from deliveries.transforming import Wire, transform_wire_messages
from pushhub.common import names
from pushhub.common.errors import ResourceExhausted
from subscriptions.selectors import PushSettings
from subscriptions.transforms.results import FILTERED, Failed, Filtered

logger = logging.getLogger(__name__)

#: The time that the message transforms of a subscription may take in one pull.
TRANSFORM_SECONDS = 1.0
#: Bounds of the countdown after a failed transform, because it is likely to fail again.
FAILED_COUNTDOWN_MS = (1_000, 60_000)


def transform_leased(
    push_settings: PushSettings, leased: Sequence[Leased], *, ends_ms: int, max_bytes: int, at_least_one: bool
) -> tuple[list[Leased], bool]:
    """Transform messages of one lane, whose leases end at `ends_ms`. Return the results, and whether messages are left.

    Filtered messages are acknowledged, and those with which a function fails are nacked. Messages for which there was
    no time, or whose results don't fit into `max_bytes`, are given back.
    """
    transformed: list[Leased] = []
    filtered, failed = [], []
    tried = 0
    for original, result in zip(leased, _results(push_settings, leased), strict=False):
        if result is FILTERED:
            filtered.append(original.lease)
        elif isinstance(result, Failed):
            logger.debug("a message transform failed with message %d: %s", original.lease.message_id, result.why)
            failed.append(original.lease)
        else:
            size = wire_size(result)
            if size > max_bytes and (transformed or not at_least_one):
                break
            max_bytes -= size
            transformed.append(Leased(original.lease, result, size))
        tried += 1
    end_leases({original.lease: ends_ms for original in leased[tried:]})
    nack_leases(failed, push_settings, countdown_ms=_failed_countdown_ms(push_settings))
    settle_acks(filtered, push_settings, event=FILTER)
    if push_settings.ordered and failed:
        # The nack of a message has ended the leases of the later messages of its key.
        ended = leases_ended(message.lease for message in transformed)
        transformed = [message for message in transformed if message.lease not in ended]
    return transformed, tried < len(leased)


def _results(push_settings: PushSettings, leased: Sequence[Leased]) -> list[Wire | Failed | Filtered]:
    """Return the results of the first messages, as many as there is time for."""
    try:
        return transform_wire_messages(
            project=names.parse_subscription(push_settings.name)[0],
            functions=push_settings.transforms,
            messages=[original.message for original in leased],
            seconds=TRANSFORM_SECONDS,
        )
    except ResourceExhausted:
        return []


def _failed_countdown_ms(push_settings: PushSettings) -> tuple[int, int]:
    """Return the bounds of the countdown after a failed transform: those of the subscription, but never 0."""
    least, most = FAILED_COUNTDOWN_MS
    if push_settings.minimum_backoff_ms is None or push_settings.maximum_backoff_ms is None:
        return least, most
    return max(push_settings.minimum_backoff_ms, least), max(push_settings.maximum_backoff_ms, least)
