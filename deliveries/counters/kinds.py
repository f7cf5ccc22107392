"""The counters that PushHub exports to Prometheus."""

from __future__ import annotations

from dataclasses import dataclass

#: Upper bounds of the latency histogram, in seconds. The ack deadline is 600 s at most.
LATENCY_BOUNDS_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 600.0)


@dataclass(frozen=True, slots=True)
class CounterKind:
    """A counter of one subscription or one topic. `labels` are in addition to `project` and the resource."""

    name: str
    help: str
    labels: tuple[str, ...] = ()

    @property
    def resource(self) -> str:
        """Return the label of the resource: `subscription` or `topic`."""
        return self.name.partition("_")[0]


PUSH_REQUESTS = CounterKind(
    "subscription_push_request_count", "Delivery attempts by push.", ("outcome", "response_class")
)
#: Its last label is the number of the bucket in LATENCY_BOUNDS_SECONDS; one more is the bucket without a bound.
PUSH_LATENCY = CounterKind(
    "subscription_push_request_latency_seconds", "Time from request to the end of an attempt.", ("outcome", "bucket")
)
PUSH_LATENCY_SUM = CounterKind("subscription_push_request_latency_microseconds_sum", "", ("outcome",))
SENT = CounterKind("subscription_sent_message_count", "Messages sent to subscribers.", ("delivery_type",))
ACKS = CounterKind("subscription_ack_message_count", "Messages acknowledged.", ("delivery_type",))
NACKS = CounterKind("subscription_nack_message_count", "Messages not acknowledged.", ("delivery_type",))
DEAD_LETTERS = CounterKind("subscription_dead_letter_message_count", "Messages published to the dead letter topic.")
EXPIRED = CounterKind(
    "subscription_expired_ack_deadlines_count", "Deliveries whose ack deadline expired.", ("delivery_type",)
)
TOPIC_MESSAGES = CounterKind("topic_send_message_operation_count", "Messages published.")
TOPIC_REQUESTS = CounterKind("topic_send_request_count", "Publish requests accepted.")
TOPIC_BYTES = CounterKind("topic_published_bytes", "Bytes of data published.")

#: The counters with one series for each combination of labels. PUSH_LATENCY is exported as a histogram.
PLAIN = (
    *(PUSH_REQUESTS, SENT, ACKS, NACKS, DEAD_LETTERS, EXPIRED),
    *(TOPIC_MESSAGES, TOPIC_REQUESTS, TOPIC_BYTES),
)
KINDS = {kind.name: kind for kind in (*PLAIN, PUSH_LATENCY, PUSH_LATENCY_SUM)}
