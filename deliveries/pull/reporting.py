"""What subscribers did with leases, for the journal and the counters."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from deliveries.backlog.backlog import Lane
from deliveries.rules.ackids import AckId
from deliveries.telemetry import kinds, recording, records
from subscriptions.selectors import PushSettings

#: Delivery types, as metrics call them.
PULL, STREAMING_PULL = "pull", "streaming_pull"


def report_outcomes(leases: Iterable[AckId], push_settings: PushSettings, *, outcome: str) -> None:
    """Report that these leases ended with "ack" or "nack"."""
    for (lane, delivery_type), group in _by_lane_and_type(leases).items():
        records.pulled(
            subscription=push_settings,
            region=lane.region,
            ids=[lease.message_id for lease in group],
            attempts=[lease.attempt for lease in group],
            outcome=outcome,
            delivery_type=delivery_type,
        )
        if outcome == "ack":
            _ages_count(kinds.ACK_LATENCY, lane, delivery_type, group)


def count_modacks(leases: Iterable[AckId]) -> None:
    """Count leases whose deadline a subscriber has changed."""
    for (lane, delivery_type), group in _by_lane_and_type(leases).items():
        recording.count_modacks(subscription_id=lane.subscription_id, messages=len(group), delivery_type=delivery_type)
        _ages_count(kinds.MODACK_LATENCY, lane, delivery_type, group)


def _ages_count(kind: kinds.Kind, lane: Lane, delivery_type: str, leases: Sequence[AckId]) -> None:
    """Count how long ago these leases of a lane began."""
    now_ms = int(time.time() * 1000)
    ages_ms = [max(now_ms - lease.leased_ms, 0) for lease in leases if lease.leased_ms]
    recording.count_lease_ages(kind, subscription_id=lane.subscription_id, delivery_type=delivery_type, ages_ms=ages_ms)


def _by_lane_and_type(leases: Iterable[AckId]) -> dict[tuple[Lane, str], list[AckId]]:
    groups: dict[tuple[Lane, str], list[AckId]] = {}
    for lease in leases:
        delivery_type = STREAMING_PULL if lease.is_streamed else PULL
        groups.setdefault((Lane(lease.subscription_id, lease.region), delivery_type), []).append(lease)
    return groups
