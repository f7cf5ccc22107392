"""What happens to messages, as frozen events. Each is made once, for many messages, and every sink takes the same one.

`observe` (observing.py) hands them to the sinks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from deliveries.rules.outcome import Verdict
from deliveries.rules.payload import NewMessage
from pushhub.common import names
from pushhub.common.tracing import TraceContext
from subscriptions.models import Subscription, Topic
from subscriptions.selectors import PushSettings

#: The outcome of a push that was attempted. A dead letter is a nack, and has an event of its own too.
OUTCOMES = {Verdict.ACK: "ack", Verdict.NACK: "nack", Verdict.DEAD_LETTER: "nack"}


class Source(NamedTuple):
    """A subscription in a region. The fields with defaults belong to pushes only."""

    subscription_id: int
    region: str
    #: The full name; None if the subscription was deleted.
    subscription: str | None
    topic_id: int | None
    topic: str = ""
    host: str | None = None
    #: The state of the lane after the settle, and when that was, in ms since 1970 by Redis' clock.
    push_window: int | None = None
    backoff_ms: int | None = None
    settled_ms: int = 0
    worker: str | None = None

    @classmethod
    def of(cls, subscription: PushSettings | Subscription, region: str) -> Source:
        return cls(subscription.id, region, subscription.name, subscription.topic_id)

    @property
    def project(self) -> str | None:
        return names.parse_subscription(self.subscription)[0] if self.subscription else None


class Attempt(NamedTuple):
    """How the push of one message ended, which may not have begun. It is a tuple, as there are thousands a second."""

    task_id: str
    message_id: str
    attempt: int
    verdict: Verdict
    status: int
    reason: str
    latency_ms: float
    #: In seconds since 1970.
    ended: float
    #: Bytes of the message's data.
    bytes: int
    #: The beginning of a failing answer, if the subscription keeps those.
    answer: str
    #: After a nack, the time until the next attempt.
    retry_in_ms: int
    #: The publisher's trace, if it is sampled and traces are on.
    trace: TraceContext | None
    #: For how many pushes Flower shows this one; 0 if it doesn't show it.
    shown: int

    @property
    def result_text(self) -> str:
        """The HTTP status or the reason, as text."""
        return self.reason or str(self.status)


@dataclass(frozen=True, slots=True)
class Attempts:
    """Pushes that had the same plan and were settled together."""

    source: Source
    attempts: Sequence[Attempt]


@dataclass(frozen=True, slots=True)
class Owed:
    """The messages of a request that one subscription is owed, as indices; the others count as acknowledged."""

    subscriber: PushSettings
    indices: Sequence[int]


@dataclass(frozen=True, slots=True)
class Published:
    """Messages that were stored together, and the subscriptions that are owed them."""

    topic: Topic
    ids: Sequence[int]
    messages: Sequence[NewMessage]
    owed: Sequence[Owed]
    region: str
    #: The messages of each publish request, if there were several.
    publishes: Sequence[int] = ()
    #: For each message, the one before it in its ordering key: 0 if the database had none. Empty if nobody knows.
    befores: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class Sent:
    """Messages that a puller got. The delivery type is "pull" or "streaming_pull"."""

    subscription_id: int
    delivery_type: str
    messages: int


@dataclass(frozen=True, slots=True)
class Extended:
    """Leases whose ack deadline a puller has changed, and how long each had lasted."""

    subscription_id: int
    delivery_type: str
    messages: int
    ages_ms: Sequence[int]


@dataclass(frozen=True, slots=True)
class Settled:
    """Deliveries that ended otherwise than by a push, with the attempts of each."""

    source: Source
    ids: Sequence[int]
    attempts: Sequence[int]
    #: The journal's event: `pull` or `streaming_pull` for a puller's answer, `filter`, or `drop`.
    event: str
    outcome: str
    reason: str | None = None
    #: How long the leases that are acknowledged had lasted.
    ages_ms: Sequence[int] = ()

    @classmethod
    def as_expired(cls, source: Source, ids: Sequence[int], attempts: Sequence[int]) -> Settled:
        """Return that these are past their retention."""
        return cls(source, ids, attempts, event="drop", outcome="drop", reason="expired")


@dataclass(frozen=True, slots=True)
class DeadLettered:
    """Messages that went to the dead-letter topic; `attempts` has the number of attempts by message id."""

    source: Source
    attempts: Mapping[int, int]


Event = Attempts | Published | Sent | Extended | Settled | DeadLettered
