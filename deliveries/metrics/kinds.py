"""The metrics, with Cloud Monitoring's names, kinds, units and labels (docs/spec.md#metric-names)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

PREFIX = "pubsub.googleapis.com/"
#: What Cloud Pub/Sub doesn't show of itself is named as users' own metrics are.
OWN_PREFIX = "custom.googleapis.com/pushhub/"

SUBSCRIPTION = "pubsub_subscription"
TOPIC = "pubsub_topic"
ValueType = Literal["INT64", "DISTRIBUTION"]


@dataclass(frozen=True, slots=True)
class Kind:
    """A metric. A DELTA counts events of some names; a GAUGE is a column of GaugeMinute."""

    type: str
    unit: str
    value_type: ValueType = "INT64"
    resource_type: str = SUBSCRIPTION
    labels: tuple[str, ...] = ()
    events: tuple[str, ...] = ()
    #: Only events that ended so; empty is all. For pushes this is the response's class.
    classes: tuple[str, ...] = ()
    #: The other way round.
    but_classes: tuple[str, ...] = ()
    gauge: str = ""

    @property
    def metric_kind(self) -> str:
        return "GAUGE" if self.gauge else "DELTA"


_RESPONSE = ("response_class", "response_code", "delivery_type")
_PULLS = ("pull", "streaming_pull")
_KINDS = (
    Kind(f"{PREFIX}subscription/push_request_count", "1", labels=_RESPONSE, events=("push",)),
    Kind(f"{PREFIX}subscription/push_request_latencies", "us", "DISTRIBUTION", labels=_RESPONSE[1:], events=("push",)),
    Kind(
        f"{PREFIX}subscription/ack_message_count",
        "1",
        labels=("delivery_type",),
        events=("push", *_PULLS, "filter"),
        classes=("ack",),
    ),
    Kind(
        f"{PREFIX}subscription/nack_requests",
        "1",
        labels=("delivery_type",),
        events=("push", *_PULLS),
        but_classes=("ack",),
    ),
    # Pulled messages are not in the journal until they are settled, so these two count pushes alone.
    Kind(f"{PREFIX}subscription/sent_message_count", "1", labels=("delivery_type",), events=("push",)),
    Kind(
        f"{PREFIX}subscription/expired_ack_deadlines_count",
        "1",
        labels=("delivery_type",),
        events=("push",),
        classes=("deadline_exceeded",),
    ),
    Kind(f"{PREFIX}subscription/dead_letter_message_count", "1", events=("dead_letter",)),
    Kind(f"{PREFIX}subscription/num_undelivered_messages", "1", gauge="undelivered"),
    Kind(f"{PREFIX}subscription/num_outstanding_messages", "1", gauge="outstanding"),
    Kind(f"{PREFIX}subscription/oldest_unacked_message_age", "s", gauge="oldest_unacked_seconds"),
    Kind(f"{OWN_PREFIX}subscription/push_window", "1", gauge="push_window"),
    Kind(f"{OWN_PREFIX}subscription/push_backoff", "ms", gauge="backoff_ms"),
    Kind(f"{OWN_PREFIX}subscription/num_unserved_messages", "1", gauge="unserved"),
    Kind(f"{PREFIX}topic/send_message_operation_count", "1", resource_type=TOPIC, events=("publish",)),
)
KINDS = {kind.type: kind for kind in _KINDS}
