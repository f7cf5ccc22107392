"""Leases: the ack ids that stand for them, their lanes, and the settings of their subscription."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from operator import attrgetter
from typing import Any, NamedTuple

from django.conf import settings

from deliveries.backlog.backlog import Backlog
from deliveries.backlog.default import default_backlog
from deliveries.backlog.records import Lane, grouped
from deliveries.rules.ackids import AckId, ack_id_text, parse_ack_id
from pushhub.common.errors import FailedPrecondition, InvalidArgument, clipped
from subscriptions.models import Subscription
from subscriptions.selectors import PushSettings, push_settings_of, resource_missing

#: The most bytes of all ack ids of a request together (docs/spec-delivery.md#ack-ids).
MAX_ACK_REQUEST_BYTES = 524_288


class Leased(NamedTuple):
    """A leased message; `message` is in the JSON form of PubsubMessage."""

    lease: AckId
    message: Mapping[str, Any]
    #: Bytes of the data, attributes and ordering key.
    size: int


def read_ack_ids(subscription: Subscription, ack_ids: Sequence[str]) -> list[AckId]:
    """Return the leases of a request's ack ids. Raises InvalidArgument, which shows the first invalid ack id."""
    if not ack_ids:
        raise InvalidArgument("You have not specified an ack ID in the request.", field="ackIds")
    if sum(map(len, ack_ids)) > MAX_ACK_REQUEST_BYTES:
        raise InvalidArgument(f"Request payload size exceeds the limit: {MAX_ACK_REQUEST_BYTES} bytes.", field="ackIds")
    return parse_leases(subscription, ack_ids)


def parse_leases(subscription: Subscription, ack_ids: Sequence[str]) -> list[AckId]:
    """Return the leases of any number of ack ids. Raises InvalidArgument as `read_ack_ids` does."""
    leases = []
    secret = _secret()
    for text in ack_ids:
        lease = parse_ack_id(text, secret=secret)
        if lease is None or lease.subscription_id != subscription.pk:
            raise InvalidArgument(
                f"You have passed an invalid ack ID to the service (ack_id={clipped(text)}).", field="ackIds"
            )
        leases.append(lease)
    return leases


def ack_ids_of(leases: Iterable[AckId]) -> list[str]:
    secret = _secret()
    return [ack_id_text(lease, secret=secret) for lease in leases]


def ack_ids_ended(*, subscription: Subscription, ack_ids: Sequence[str]) -> set[str]:
    """Return the ack ids whose leases have ended, by acknowledgement, lapse or nack."""
    return set(ack_ids_of(leases_ended(parse_leases(subscription, ack_ids))))


def leases_ended(leases: Iterable[AckId]) -> set[AckId]:
    """Return the leases that have ended, by acknowledgement, lapse or nack."""
    return find_ended(leases, default_backlog().lost)


def accept_acks(leases: Iterable[AckId], backlog: Backlog | None = None) -> set[AckId]:
    """Note that these leases are acknowledged. Return those that have ended, but for acks that were noted before."""
    return find_ended(leases, (backlog or default_backlog()).accept)


def find_ended(leases: Iterable[AckId], ended_of: Callable[..., set[int]]) -> set[AckId]:
    """Call a verb with the newest lease of each message. Return the leases that have ended, as all older ones have."""
    ended: set[AckId] = set()
    for (lane, generation, _), group in leases_by_origin(leases).items():
        newest = newest_by_id(group)
        pairs = [(lease.message_id, lease.times) for lease in newest.values()]
        ended_ids = ended_of(lane, pairs, generation=generation)
        ended |= {it for it in group if it.message_id in ended_ids or it.times < newest[it.message_id].times}
    return ended


def newest_by_id(leases: Iterable[AckId]) -> dict[int, AckId]:
    """Return the newest lease of each message of an origin, by the message's id."""
    return {lease.message_id: lease for lease in sorted(leases, key=attrgetter("times"))}


class Origin(NamedTuple):
    """What leases that are settled together have in common."""

    lane: Lane
    #: The generation of the lane.
    generation: str
    #: The last seek that made the subscription owe the messages, or 0.
    seek: int


def leases_by_origin(leases: Iterable[AckId]) -> dict[Origin, list[AckId]]:
    groups = grouped(leases, attrgetter("subscription_id", "region", "generation", "seek"))
    return {
        Origin(Lane(pk, region), generation, seek): group for (pk, region, generation, seek), group in groups.items()
    }


def require_settings(subscription: Subscription) -> PushSettings:
    """Return the settings. Raises NotFound or FailedPrecondition for a subscription that is deleted or detached."""
    push_settings = push_settings_of(subscription.pk)
    if push_settings is None:
        raise resource_missing(subscription.subscription_id)
    if push_settings.detached:
        raise FailedPrecondition(f"Subscription is detached (resource={subscription.subscription_id}).")
    return push_settings


def countdown_bounds_ms(push_settings: PushSettings) -> tuple[int, int]:
    """Return the retry policy's bounds. Without one, messages are due at once (docs/spec-messages.md#retry-policy)."""
    if push_settings.minimum_backoff_ms is None or push_settings.maximum_backoff_ms is None:
        return 0, 0
    return push_settings.minimum_backoff_ms, push_settings.maximum_backoff_ms


@cache
def _secret_of(key: str) -> bytes:
    return hashlib.blake2s(key.encode(), person=b"pushhub").digest()


def _secret() -> bytes:
    return _secret_of(settings.SECRET_KEY)
