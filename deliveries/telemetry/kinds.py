"""The metrics, with Cloud Monitoring's names, kinds, units and labels (docs/spec.md#metric-names)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

PREFIX = "pubsub.googleapis.com/"
#: Metrics that Cloud Pub/Sub doesn't have are named like users' own metrics.
OWN_PREFIX = "custom.googleapis.com/pushhub/"

ACK_LATENCIES = f"{PREFIX}subscription/ack_latencies"

SUBSCRIPTION = "pubsub_subscription"
TOPIC = "pubsub_topic"
SNAPSHOT = "pubsub_snapshot"
ValueType = Literal["INT64", "DISTRIBUTION"]


@dataclass(frozen=True, slots=True)
class Kind:
    """A metric. A DELTA counts events with certain names; a GAUGE is a column of GaugeMinute or RegionGaugeMinute."""

    type: str
    unit: str
    value_type: ValueType = "INT64"
    resource_type: str = SUBSCRIPTION
    labels: tuple[str, ...] = ()
    events: tuple[str, ...] = ()
    #: Only events with these outcomes count; an empty tuple means all. The outcome of a push is its response class.
    classes: tuple[str, ...] = ()
    #: Events with these outcomes don't count.
    excluded_classes: tuple[str, ...] = ()
    #: Names of events that come from counters (telemetry/series/counterseries.py). Their response class is the value of
    #: the counter's first label, such as the delivery type.
    sampled: tuple[str, ...] = ()
    gauge: str = ""
    #: Without the label `region`, values of regions are added up; of ages, the largest counts.
    region_gauge: str = ""

    @property
    def metric_kind(self) -> str:
        return "GAUGE" if self.gauge or self.region_gauge else "DELTA"


_RESPONSE = ("response_class", "response_code", "delivery_type")
_REQUEST = ("response_class", "response_code")
_DELIVERY_TYPE = ("delivery_type",)
_PULLS = ("pull", "streaming_pull")


def _requests(name: str, event: str) -> Kind:
    """Return a metric of requests that are grouped by their result."""
    return Kind(f"{PREFIX}subscription/{name}", "1", labels=_REQUEST, sampled=(event,))


def _region_gauge(name: str, unit: str, column: str, resource_type: str = SUBSCRIPTION) -> Kind:
    labels = ("region",) if name.endswith("_by_region") else ()
    return Kind(f"{PREFIX}{name}", unit, resource_type=resource_type, labels=labels, region_gauge=column)


_KINDS = (
    Kind(f"{PREFIX}subscription/push_request_count", "1", labels=_RESPONSE, events=("push",)),
    Kind(f"{PREFIX}subscription/push_request_latencies", "us", "DISTRIBUTION", labels=_RESPONSE[1:], events=("push",)),
    Kind(
        f"{PREFIX}subscription/ack_message_count",
        "1",
        labels=("delivery_type",),
        events=("push", *_PULLS, "filter"),
        classes=("ack",),
        sampled=("acked",),
    ),
    Kind(
        f"{PREFIX}subscription/nack_requests",
        "1",
        labels=("delivery_type",),
        events=("push", *_PULLS),
        excluded_classes=("ack",),
    ),
    Kind(f"{PREFIX}subscription/sent_message_count", "1", labels=_DELIVERY_TYPE, events=("push",), sampled=("sent",)),
    Kind(
        f"{PREFIX}subscription/expired_ack_deadlines_count",
        "1",
        labels=_DELIVERY_TYPE,
        events=("push",),
        classes=("deadline_exceeded",),
        sampled=("expired",),
    ),
    Kind(
        ACK_LATENCIES,
        "ms",
        "DISTRIBUTION",
        labels=_DELIVERY_TYPE,
        events=("push",),
        classes=("ack",),
        sampled=("ack_latency",),
    ),
    Kind(
        f"{PREFIX}subscription/mod_ack_latencies",
        "ms",
        "DISTRIBUTION",
        labels=_DELIVERY_TYPE,
        sampled=("mod_ack_latency",),
    ),
    Kind(f"{PREFIX}subscription/mod_ack_deadline_message_count", "1", labels=_DELIVERY_TYPE, sampled=("mod_ack",)),
    _requests("mod_ack_deadline_request_count", "mod_ack_request"),
    _requests("pull_request_count", "pull_request"),
    _requests("pull_ack_request_count", "ack_request"),
    _requests("streaming_pull_response_count", "stream_response"),
    _requests("streaming_pull_ack_request_count", "stream_ack"),
    _requests("streaming_pull_mod_ack_deadline_request_count", "stream_mod_ack"),
    Kind(f"{PREFIX}subscription/seek_request_count", "1", labels=("response_code",), sampled=("seek_request",)),
    Kind(f"{PREFIX}subscription/dead_letter_message_count", "1", events=("dead_letter",)),
    Kind(f"{PREFIX}subscription/num_undelivered_messages", "1", gauge="undelivered"),
    Kind(f"{PREFIX}subscription/num_outstanding_messages", "1", gauge="outstanding"),
    Kind(f"{PREFIX}subscription/oldest_unacked_message_age", "s", gauge="oldest_unacked_seconds"),
    Kind(f"{PREFIX}subscription/open_streaming_pulls", "1", labels=("status",), gauge="open_streams"),
    _region_gauge("subscription/backlog_bytes", "By", "bytes"),
    _region_gauge("subscription/num_unacked_messages_by_region", "1", "messages"),
    _region_gauge("subscription/unacked_bytes_by_region", "By", "bytes"),
    _region_gauge("subscription/oldest_unacked_message_age_by_region", "s", "oldest_seconds"),
    _region_gauge("subscription/num_retained_acked_messages", "1", "acked_messages"),
    _region_gauge("subscription/num_retained_acked_messages_by_region", "1", "acked_messages"),
    _region_gauge("subscription/retained_acked_bytes", "By", "acked_bytes"),
    _region_gauge("subscription/retained_acked_bytes_by_region", "By", "acked_bytes"),
    _region_gauge("subscription/oldest_retained_acked_message_age", "s", "oldest_acked_seconds"),
    _region_gauge("subscription/oldest_retained_acked_message_age_by_region", "s", "oldest_acked_seconds"),
    Kind(f"{OWN_PREFIX}subscription/push_window", "1", gauge="push_window"),
    Kind(f"{OWN_PREFIX}subscription/push_backoff", "ms", gauge="backoff_ms"),
    Kind(f"{OWN_PREFIX}subscription/num_unserved_messages", "1", gauge="unserved"),
    Kind(f"{PREFIX}topic/send_message_operation_count", "1", resource_type=TOPIC, events=("publish",)),
    Kind(
        f"{PREFIX}topic/send_request_count",
        "1",
        resource_type=TOPIC,
        labels=_REQUEST,
        sampled=("send_request", "refused_request"),
    ),
    Kind(f"{PREFIX}topic/message_sizes", "By", "DISTRIBUTION", resource_type=TOPIC, sampled=("message_size",)),
    Kind(
        f"{PREFIX}topic/byte_cost",
        "By",
        resource_type=TOPIC,
        labels=("operation_type", "response_code"),
        sampled=("byte_cost",),
    ),
    _region_gauge("topic/num_retained_messages", "1", "kept_messages", TOPIC),
    _region_gauge("topic/retained_bytes", "By", "kept_bytes", TOPIC),
    _region_gauge("topic/oldest_retained_message_age", "s", "oldest_kept_seconds", TOPIC),
    _region_gauge("topic/num_unacked_messages_by_region", "1", "messages", TOPIC),
    _region_gauge("topic/unacked_bytes_by_region", "By", "bytes", TOPIC),
    _region_gauge("topic/oldest_unacked_message_age_by_region", "s", "oldest_seconds", TOPIC),
    _region_gauge("topic/num_retained_acked_messages_by_region", "1", "acked_messages", TOPIC),
    _region_gauge("topic/retained_acked_bytes_by_region", "By", "acked_bytes", TOPIC),
    _region_gauge("topic/oldest_retained_acked_message_age_by_region", "s", "oldest_acked_seconds", TOPIC),
    _region_gauge("snapshot/num_messages", "1", "messages", SNAPSHOT),
    _region_gauge("snapshot/num_messages_by_region", "1", "messages", SNAPSHOT),
    _region_gauge("snapshot/backlog_bytes", "By", "bytes", SNAPSHOT),
    _region_gauge("snapshot/backlog_bytes_by_region", "By", "bytes", SNAPSHOT),
    _region_gauge("snapshot/oldest_message_age", "s", "oldest_seconds", SNAPSHOT),
    _region_gauge("snapshot/oldest_message_age_by_region", "s", "oldest_seconds", SNAPSHOT),
)
KINDS = {kind.type: kind for kind in _KINDS}
