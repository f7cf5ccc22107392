"""The metrics: a row for each, from which its names in Cloud Monitoring and in Prometheus follow."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

PREFIX = "pubsub.googleapis.com/"
#: Metrics that Cloud Pub/Sub doesn't have are named like users' own metrics.
OWN_PREFIX = "custom.googleapis.com/pushhub/"
EXPORTED_PREFIX = "pushhub_"

#: Upper bounds of the histogram of push latencies, in seconds. The ack deadline is 600 s at most.
LATENCY_BOUNDS_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 600.0)
#: Buckets of other distributions are 19 % wide, so that 10 minutes in milliseconds and 10 MB take at most 100 fields.
DISTRIBUTION_SCALE = 2
SUM = "sum"
#: How many of a unit make one of Prometheus' units, which are seconds and bytes.
UNITS = {"ms": 1000.0, "us": 1e6}

ValueType = Literal["INT64", "DISTRIBUTION"]
ExportedType = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True, slots=True)
class Kind:
    """A metric. It counts what the journal or a counter in Redis has (a DELTA), or it is a GAUGE."""

    #: Cloud Monitoring's name without its prefix; it begins with the resource.
    name: str
    #: What it counts or measures, in a sentence.
    help: str
    unit: str = "1"
    value_type: ValueType = "INT64"
    #: Cloud Monitoring's labels.
    labels: tuple[str, ...] = ()
    #: Whose the metric is: Cloud Pub/Sub's, PushHub's own, or one that only Prometheus gets.
    origin: Literal["pubsub", "own", "exported"] = "pubsub"
    #: Prometheus' name without its prefix, if it does not follow from `name`.
    alias: str = ""
    #: Whether Prometheus gets it. It gets gauges of regions once, with the label `region`.
    is_exported: bool = True

    #: The journal's events that count.
    events: tuple[str, ...] = ()
    #: Only events with these outcomes count; an empty tuple means all. The outcome of a push is its response class.
    classes: tuple[str, ...] = ()
    #: Events with these outcomes don't count.
    excluded_classes: tuple[str, ...] = ()

    #: The labels of the counter in Redis, beside the resource; None for a metric without one. A distribution's field
    #: has one more part at its end: a bucket (rules/histogram.py at DISTRIBUTION_SCALE, or LATENCY_BOUNDS_SECONDS), or
    #: SUM for the sum of all values.
    counter: tuple[str, ...] | None = None
    #: The event under which the counter is added to the tables of metrics each minute
    #: (telemetry/counting/counterseries.py). What the journal counts has none, and is not added twice.
    sampled: tuple[str, ...] = ()

    #: A column of GaugeMinute.
    gauge: str = ""
    #: A column of RegionGaugeMinute. Without the label `region`, values of regions are added up; of ages, the largest
    #: counts.
    region_gauge: str = ""
    #: A figure of a readiness check, or of the archive (telemetry/archive.py): the component and the figure.
    figure: tuple[str, str] = ("", "")

    #: The first part of the counter's fields in Redis, and Prometheus' name without its prefix.
    field: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "field", self.alias or _field(self.name, self.unit, is_distribution=self.is_distribution)
        )

    @property
    def is_distribution(self) -> bool:
        return self.value_type == "DISTRIBUTION"

    @property
    def type(self) -> str:
        """Cloud Monitoring's name."""
        return (OWN_PREFIX if self.origin == "own" else PREFIX) + self.name

    @property
    def metric_kind(self) -> str:
        return "GAUGE" if self.gauge or self.region_gauge else "DELTA"

    @property
    def resource(self) -> str:
        """The label of the resource: `subscription`, `topic` or `snapshot`."""
        return self.name.partition("/")[0]

    @property
    def resource_type(self) -> str:
        return f"pubsub_{self.resource}"

    @property
    def exported(self) -> str:
        """Prometheus' name."""
        return EXPORTED_PREFIX + self.field

    @property
    def exported_type(self) -> ExportedType:
        if self.counter is None:
            return "gauge"
        return "histogram" if self.is_distribution else "counter"

    def is_sampled(self, labels: tuple[str, ...]) -> bool:
        """Return whether a counter with these labels is added to the tables of metrics."""
        return bool(self.sampled) and not (labels and labels[0] in self.events)


def _field(name: str, unit: str, *, is_distribution: bool) -> str:
    name = name.replace("/", "_")
    if is_distribution:
        name = name.removesuffix("ies") + "y" if name.endswith("ies") else name.removesuffix("s")
    ending = {"By": "_bytes", "s": "_seconds", "ms": "_seconds", "us": "_seconds"}.get(unit, "")
    return name if ending == "_bytes" and "byte" in name else name + ending


_RESPONSE = ("response_class", "response_code", "delivery_type")
_REQUEST = ("response_class", "response_code")
_CODE = ("response_code",)
_TYPE = ("delivery_type",)
_PULLS = ("pull", "streaming_pull")


def _requests(name: str, help_: str, event: str) -> Kind:
    """Return a metric of requests that are grouped by their result."""
    return Kind(f"subscription/{name}", help_, labels=_REQUEST, counter=_CODE, sampled=(event,))


def _region_gauge(name: str, help_: str, column: str, unit: str = "1") -> Kind:
    """Return a metric of all regions together, which Prometheus gets by region."""
    return Kind(name, help_, unit, region_gauge=column)


def _by_region(name: str, help_: str, column: str, unit: str = "1", *, is_exported: bool = False) -> Kind:
    help_ = help_.replace(".", ", by region.")
    return Kind(f"{name}_by_region", help_, unit, labels=("region",), region_gauge=column, is_exported=is_exported)


def _both(name: str, help_: str, column: str, unit: str = "1") -> tuple[Kind, Kind]:
    return _region_gauge(name, help_, column, unit), _by_region(name, help_, column, unit)


PUSH_REQUESTS = Kind(
    "subscription/push_request_count",
    "Delivery attempts by push.",
    labels=_RESPONSE,
    events=("push",),
    counter=("outcome", "response_class"),
)
PUSH_LATENCY = Kind(
    "subscription/push_request_latencies",
    "Time from request to the end of an attempt.",
    "us",
    "DISTRIBUTION",
    labels=_RESPONSE[1:],
    events=("push",),
    counter=("outcome",),
)
#: What a filter acknowledges has the delivery type `filter`, and is in the counter only.
ACKS = Kind(
    "subscription/ack_message_count",
    "Messages acknowledged.",
    labels=_TYPE,
    events=("push", *_PULLS),
    classes=("ack",),
    counter=_TYPE,
    sampled=("acked",),
)
NACKS = Kind(
    "subscription/nack_requests",
    "Messages not acknowledged.",
    labels=_TYPE,
    alias="subscription_nack_message_count",
    events=("push", *_PULLS),
    excluded_classes=("ack",),
    counter=_TYPE,
)
SENT = Kind(
    "subscription/sent_message_count",
    "Messages sent to subscribers.",
    labels=_TYPE,
    events=("push",),
    counter=_TYPE,
    sampled=("sent",),
)
EXPIRED = Kind(
    "subscription/expired_ack_deadlines_count",
    "Deliveries whose ack deadline expired.",
    labels=_TYPE,
    events=("push",),
    classes=("deadline_exceeded",),
    counter=_TYPE,
    sampled=("expired",),
)
ACK_LATENCY = Kind(
    "subscription/ack_latencies",
    "Time from the lease of a pulled message to its acknowledgement.",
    "ms",
    "DISTRIBUTION",
    labels=_TYPE,
    events=("push",),
    classes=("ack",),
    counter=_TYPE,
    sampled=("ack_latency",),
)
MODACK_LATENCY = Kind(
    "subscription/mod_ack_latencies",
    "Time from the lease of a pulled message to a change of its ack deadline.",
    "ms",
    "DISTRIBUTION",
    labels=_TYPE,
    counter=_TYPE,
    sampled=("mod_ack_latency",),
)
MODACKED = Kind(
    "subscription/mod_ack_deadline_message_count",
    "Messages whose ack deadline was changed.",
    labels=_TYPE,
    counter=_TYPE,
    sampled=("mod_ack",),
)
MODACK_REQUESTS = _requests("mod_ack_deadline_request_count", "ModifyAckDeadline requests.", "mod_ack_request")
PULL_REQUESTS = _requests("pull_request_count", "Pull requests.", "pull_request")
ACK_REQUESTS = _requests("pull_ack_request_count", "Acknowledge requests.", "ack_request")
STREAM_RESPONSES = _requests("streaming_pull_response_count", "Responses of streaming pulls.", "stream_response")
STREAM_ACK_REQUESTS = _requests(
    "streaming_pull_ack_request_count", "Requests of streams that have ack ids.", "stream_ack"
)
STREAM_MODACK_REQUESTS = _requests(
    "streaming_pull_mod_ack_deadline_request_count", "Requests of streams that change ack deadlines.", "stream_mod_ack"
)
SEEK_REQUESTS = Kind(
    "subscription/seek_request_count", "Seek requests.", labels=_CODE, counter=_CODE, sampled=("seek_request",)
)
DEAD_LETTERS = Kind(
    "subscription/dead_letter_message_count",
    "Messages published to the dead letter topic.",
    events=("dead_letter",),
    counter=(),
)
TOPIC_MESSAGES = Kind("topic/send_message_operation_count", "Messages published.", events=("publish",), counter=())
#: Prometheus gets accepted and refused requests apart.
TOPIC_REQUESTS = Kind(
    "topic/send_request_count",
    "Publish requests accepted.",
    labels=_REQUEST,
    counter=(),
    sampled=("send_request", "refused_request"),
)
TOPIC_REFUSED = Kind(
    "topic/refused_request_count",
    "Publish requests refused.",
    origin="exported",
    counter=_CODE,
    sampled=("refused_request",),
)
TOPIC_SIZES = Kind(
    "topic/message_sizes",
    "Sizes of the data of published messages.",
    "By",
    "DISTRIBUTION",
    counter=(),
    sampled=("message_size",),
)
TOPIC_BYTES = Kind("topic/published_bytes", "Bytes of data published.", "By", origin="exported", counter=())
TOPIC_BYTE_COST = Kind(
    "topic/byte_cost",
    "Bytes of publish requests, at least 1,000 for each request.",
    "By",
    labels=("operation_type", "response_code"),
    counter=(),
    sampled=("byte_cost",),
)

METRICS = (
    *(PUSH_REQUESTS, PUSH_LATENCY, ACKS, NACKS, SENT, EXPIRED, ACK_LATENCY, MODACK_LATENCY, MODACKED, MODACK_REQUESTS),
    *(PULL_REQUESTS, ACK_REQUESTS, STREAM_RESPONSES, STREAM_ACK_REQUESTS, STREAM_MODACK_REQUESTS, SEEK_REQUESTS),
    DEAD_LETTERS,
    Kind("subscription/num_undelivered_messages", "Messages not yet acknowledged.", gauge="undelivered"),
    Kind("subscription/num_outstanding_messages", "Messages leased to push requests or pullers.", gauge="outstanding"),
    Kind("subscription/oldest_unacked_message_age", "Age of the oldest message.", "s", gauge="oldest_unacked_seconds"),
    Kind("subscription/open_streaming_pulls", "Open streaming pulls.", labels=("status",), gauge="open_streams"),
    _region_gauge("subscription/backlog_bytes", "Bytes of messages not yet acknowledged.", "bytes", "By"),
    _by_region("subscription/num_unacked_messages", "Messages not yet acknowledged.", "messages", is_exported=True),
    _by_region("subscription/unacked_bytes", "Bytes of messages not yet acknowledged.", "bytes", "By"),
    _by_region("subscription/oldest_unacked_message_age", "Age of the oldest message.", "oldest_seconds", "s"),
    *_both("subscription/num_retained_acked_messages", "Acknowledged messages that are retained.", "acked_messages"),
    *_both(
        "subscription/retained_acked_bytes", "Bytes of acknowledged messages that are retained.", "acked_bytes", "By"
    ),
    *_both(
        "subscription/oldest_retained_acked_message_age",
        "Age of the oldest retained acked message.",
        "oldest_acked_seconds",
        "s",
    ),
    Kind(
        "subscription/push_window",
        "Messages that may be outstanding to the push endpoint.",
        origin="own",
        gauge="push_window",
    ),
    Kind(
        "subscription/push_backoff",
        "Pause of the subscription's push backoff; at least 1 until it ends, while messages wait.",
        "ms",
        origin="own",
        gauge="backoff_ms",
    ),
    Kind(
        "subscription/num_unserved_messages",
        "Messages in regions that no push worker serves.",
        origin="own",
        gauge="unserved",
    ),
    *(TOPIC_MESSAGES, TOPIC_REQUESTS, TOPIC_REFUSED, TOPIC_SIZES, TOPIC_BYTES, TOPIC_BYTE_COST),
    _region_gauge("topic/num_retained_messages", "Messages that a topic's retention keeps.", "kept_messages"),
    _region_gauge("topic/retained_bytes", "Bytes of messages that a topic's retention keeps.", "kept_bytes", "By"),
    _region_gauge(
        "topic/oldest_retained_message_age",
        "Age of the oldest message that a topic's retention keeps.",
        "oldest_kept_seconds",
        "s",
    ),
    # The next ones add up all subscriptions and snapshots of the topic.
    _by_region("topic/num_unacked_messages", "Messages that a subscription has not acknowledged.", "messages"),
    _by_region("topic/unacked_bytes", "Bytes of messages that a subscription has not acknowledged.", "bytes", "By"),
    _by_region("topic/oldest_unacked_message_age", "Age of the oldest unacked message.", "oldest_seconds", "s"),
    _by_region("topic/num_retained_acked_messages", "Acknowledged messages that are retained.", "acked_messages"),
    _by_region("topic/retained_acked_bytes", "Bytes of acknowledged messages that are retained.", "acked_bytes", "By"),
    _by_region(
        "topic/oldest_retained_acked_message_age",
        "Age of the oldest retained acked message.",
        "oldest_acked_seconds",
        "s",
    ),
    *_both("snapshot/num_messages", "Messages of a snapshot.", "messages"),
    *_both("snapshot/backlog_bytes", "Bytes of the messages of a snapshot.", "bytes", "By"),
    *_both("snapshot/oldest_message_age", "Age of the oldest message of a snapshot.", "oldest_seconds", "s"),
)


def _health(name: str, help_: str, *labels: str, figure: tuple[str, str] = ("", "")) -> Kind:
    """Return a metric of the whole deployment, which only Prometheus gets."""
    return Kind(name, help_, origin="exported", alias=name, labels=labels, figure=figure)


def _figure(component: str, figure: str, help_: str, *, name: str = "") -> Kind:
    """Return the metric of a component's figure."""
    return _health(name or f"{component}_{figure}", help_, figure=(component, figure))


COMPONENT_UP = _health(
    "component_up", "Whether a component works: 1, 0.5 if it is degraded, 0 if it is unavailable.", "component"
)
RUN_AGE = _health("pipeline_run_age_seconds", "Time since the pipeline's last run ended or reported.", "kind")
RUN_FAILED = _health("pipeline_run_failed", "1 if the last run failed, or ended without saying so.", "kind")
RUN_DURATION = _health("pipeline_run_duration_seconds", "How long the pipeline's last run took or has taken.", "kind")
RUN_ROWS = _health("pipeline_run_rows", "Rows that the pipeline's last run counted, wrote or published.", "kind")
RUN_LAG = _health("pipeline_run_lag_seconds", "How far behind the pipeline's last run was.", "kind")
FIGURES = (
    _figure("redis", "backlog_bytes", "Bytes of Redis that the messages of all subscriptions take."),
    _figure("redis", "budget_bytes", "Bytes of Redis that the messages of all subscriptions may take."),
    _figure("push_workers", "workers", "Push workers that gave a sign of life lately.", name="push_workers"),
    _figure(
        "push_workers", "oldest_job_seconds", "Age of the oldest job of a push worker.", name="push_oldest_job_seconds"
    ),
    _figure("maintenance", "last_sign_of_life_seconds", "Time since the maintenance worker's last audit."),
    _figure("maintenance", "oldest_job_seconds", "Time since the oldest timed task that is not done was sent."),
    _figure("pipeline", "lag_seconds", "How long segments wait while none is counted."),
    _figure("journal", "stopped", "Processes whose journal has stopped.", name="journals_stopped"),
    _figure("archive", "messages", "Messages in the archive."),
    _figure("archive", "bytes", "Bytes of the archive's files."),
    _figure("archive", "files", "Files of the archive."),
    _figure(
        "archive",
        "oldest_seconds",
        "Age of the oldest message in the archive.",
        name="archive_oldest_message_age_seconds",
    ),
    _figure(
        "archive", "lag_seconds", "How long the oldest message has waited for the archive, with PUSHHUB_ARCHIVING."
    ),
)
RUNS = (RUN_AGE, RUN_FAILED, RUN_DURATION, RUN_ROWS, RUN_LAG)

#: The metrics of Cloud Monitoring's API, by type.
KINDS = {kind.type: kind for kind in METRICS if kind.origin != "exported"}
#: The counters in Redis, by the first part of their fields.
COUNTERS = {kind.field: kind for kind in METRICS if kind.counter is not None}
#: What Prometheus gets.
EXPORTED = (*(kind for kind in METRICS if kind.is_exported), COMPONENT_UP, *FIGURES, *RUNS)
