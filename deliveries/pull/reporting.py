"""What subscribers did with leases, as events."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from operator import attrgetter

from deliveries.backlog.records import grouped
from deliveries.rules.ackids import AckId
from deliveries.telemetry.events import Extended, Settled, Source
from deliveries.telemetry.sinks.observing import observe
from subscriptions.selectors import PushSettings

#: Delivery types, as metrics call them.
PULL, STREAMING_PULL = "pull", "streaming_pull"


def report_outcomes(
    leases: Iterable[AckId], push_settings: PushSettings, *, outcome: str, event: str | None = None
) -> None:
    """Report that these leases ended with "ack" or "nack". Without an `event`, a puller said so."""
    observe(
        [
            Settled(
                Source.of(push_settings, region),
                ids=[lease.message_id for lease in group],
                attempts=[lease.attempt for lease in group],
                event=event or _delivery_type(is_streamed),
                outcome=outcome,
                ages_ms=_ages_ms(group) if outcome == "ack" and not event else (),
            )
            for (region, is_streamed), group in grouped(leases, attrgetter("region", "is_streamed")).items()
        ]
    )


def count_modacks(leases: Iterable[AckId]) -> None:
    """Count leases whose deadline a subscriber has changed."""
    groups = grouped(leases, attrgetter("subscription_id", "is_streamed"))
    observe(
        [
            Extended(subscription_id, _delivery_type(is_streamed), len(group), _ages_ms(group))
            for (subscription_id, is_streamed), group in groups.items()
        ]
    )


def _ages_ms(leases: Sequence[AckId]) -> list[int]:
    """Return how long ago leases began."""
    now_ms = int(time.time() * 1000)
    return [max(now_ms - lease.leased_ms, 0) for lease in leases]


def _delivery_type(is_streamed: bool) -> str:
    return STREAMING_PULL if is_streamed else PULL
