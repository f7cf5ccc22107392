"""The counters that PushHub exports to Prometheus."""

from __future__ import annotations

from dataclasses import dataclass

#: Upper bounds of the latency histogram, in seconds. The ack deadline is 600 s at most.
LATENCY_BOUNDS_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 600.0)

#: Buckets of distributions are 19 % wide, so that 10 minutes in milliseconds and 10 MB take at most 100 fields.
DISTRIBUTION_SCALE = 2
SUM = "sum"


@dataclass(frozen=True, slots=True)
class CounterKind:
    """A counter of one subscription or one topic. `labels` are in addition to `project` and the resource.

    The field of a distribution has one more part at its end: the number of a bucket (rules/histogram.py at
    DISTRIBUTION_SCALE), or SUM for the sum of all values.
    """

    name: str
    help: str
    labels: tuple[str, ...] = ()
    #: The event under which the counter is added to the tables of metrics each minute
    #: (telemetry/series/counterseries.py); empty for what the journal counts.
    event: str = ""
    #: Values of the first label that the journal counts all the same.
    journalled: frozenset[str] = frozenset()
    #: The unit of a distribution's values, and how many of them a unit of the metric has; empty for a plain counter.
    unit: str = ""
    units: float = 1.0

    def is_sampled(self, labels: tuple[str, ...]) -> bool:
        """Return whether a counter with these labels is added to the tables of metrics."""
        return bool(self.event) and not (labels and labels[0] in self.journalled)

    @property
    def resource(self) -> str:
        """Return the label of the resource: `subscription` or `topic`."""
        return self.name.partition("_")[0]


_PUSH = frozenset({"push"})
_CODE = ("response_code",)

PUSH_REQUESTS = CounterKind(
    "subscription_push_request_count", "Delivery attempts by push.", ("outcome", "response_class")
)
#: Its last label is the number of the bucket in LATENCY_BOUNDS_SECONDS; one more is the bucket without a bound.
PUSH_LATENCY = CounterKind(
    "subscription_push_request_latency_seconds", "Time from request to the end of an attempt.", ("outcome", "bucket")
)
PUSH_LATENCY_SUM = CounterKind("subscription_push_request_latency_microseconds_sum", "", ("outcome",))
SENT = CounterKind(
    "subscription_sent_message_count", "Messages sent to subscribers.", ("delivery_type",), "sent", _PUSH
)
ACKS = CounterKind(
    "subscription_ack_message_count",
    "Messages acknowledged.",
    ("delivery_type",),
    "acked",
    frozenset({"push", "pull", "streaming_pull"}),
)
NACKS = CounterKind("subscription_nack_message_count", "Messages not acknowledged.", ("delivery_type",))
DEAD_LETTERS = CounterKind("subscription_dead_letter_message_count", "Messages published to the dead letter topic.")
EXPIRED = CounterKind(
    "subscription_expired_ack_deadlines_count",
    "Deliveries whose ack deadline expired.",
    ("delivery_type",),
    "expired",
    _PUSH,
)
ACK_LATENCY = CounterKind(
    "subscription_ack_latency_seconds",
    "Time from the lease of a pulled message to its acknowledgement.",
    ("delivery_type",),
    "ack_latency",
    unit="ms",
    units=1000.0,
)
MODACK_LATENCY = CounterKind(
    "subscription_mod_ack_latency_seconds",
    "Time from the lease of a pulled message to a change of its ack deadline.",
    ("delivery_type",),
    "mod_ack_latency",
    unit="ms",
    units=1000.0,
)
MODACKED = CounterKind(
    "subscription_mod_ack_deadline_message_count",
    "Messages whose ack deadline was changed.",
    ("delivery_type",),
    "mod_ack",
)
PULL_REQUESTS = CounterKind("subscription_pull_request_count", "Pull requests.", _CODE, "pull_request")
ACK_REQUESTS = CounterKind("subscription_pull_ack_request_count", "Acknowledge requests.", _CODE, "ack_request")
MODACK_REQUESTS = CounterKind(
    "subscription_mod_ack_deadline_request_count", "ModifyAckDeadline requests.", _CODE, "mod_ack_request"
)
STREAM_RESPONSES = CounterKind(
    "subscription_streaming_pull_response_count", "Responses of streaming pulls.", _CODE, "stream_response"
)
STREAM_ACK_REQUESTS = CounterKind(
    "subscription_streaming_pull_ack_request_count", "Requests of streams that have ack ids.", _CODE, "stream_ack"
)
STREAM_MODACK_REQUESTS = CounterKind(
    "subscription_streaming_pull_mod_ack_deadline_request_count",
    "Requests of streams that change ack deadlines.",
    _CODE,
    "stream_mod_ack",
)
SEEK_REQUESTS = CounterKind("subscription_seek_request_count", "Seek requests.", _CODE, "seek_request")
TOPIC_MESSAGES = CounterKind("topic_send_message_operation_count", "Messages published.")
TOPIC_REQUESTS = CounterKind("topic_send_request_count", "Publish requests accepted.", (), "send_request")
TOPIC_REFUSED = CounterKind("topic_refused_request_count", "Publish requests refused.", _CODE, "refused_request")
TOPIC_BYTES = CounterKind("topic_published_bytes", "Bytes of data published.")
TOPIC_BYTE_COST = CounterKind(
    "topic_byte_cost", "Bytes of publish requests, at least 1,000 for each request.", (), "byte_cost"
)
TOPIC_SIZES = CounterKind("topic_message_size_bytes", "Sizes of published messages.", (), "message_size", unit="By")

#: The counters with one series for each combination of labels. PUSH_LATENCY is exported as a histogram.
PLAIN = (
    *(PUSH_REQUESTS, SENT, ACKS, NACKS, DEAD_LETTERS, EXPIRED),
    *(MODACKED, PULL_REQUESTS, ACK_REQUESTS, MODACK_REQUESTS, SEEK_REQUESTS),
    *(STREAM_RESPONSES, STREAM_ACK_REQUESTS, STREAM_MODACK_REQUESTS),
    *(TOPIC_MESSAGES, TOPIC_REQUESTS, TOPIC_REFUSED, TOPIC_BYTES, TOPIC_BYTE_COST),
)
DISTRIBUTIONS = (ACK_LATENCY, MODACK_LATENCY, TOPIC_SIZES)
KINDS = {kind.name: kind for kind in (*PLAIN, *DISTRIBUTIONS, PUSH_LATENCY, PUSH_LATENCY_SUM)}
