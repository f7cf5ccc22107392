"""Spans of messages whose publisher traces them: `publish`, `wait` until the first attempt, and `push`."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence

from deliveries.rules.envelope import traceparent_of
from deliveries.rules.ids import publish_time_ms
from deliveries.rules.outcome import Verdict
from deliveries.telemetry.events import OUTCOMES, Attempt, Attempts, Event, Published, Source
from pushhub.common import names, tracing
from pushhub.common.tracing import Span, TraceContext

SYSTEM: Mapping[str, str | int | float] = {"messaging.system": "gcp_pubsub"}


class Spans:
    """Hands spans to OpenTelemetry's exporter, which bounds what waits."""

    def take(self, events: Sequence[Event]) -> None:
        tracing.add_spans(span for event in events for span in _spans(event))


def _spans(event: Event) -> Iterator[Span]:
    if isinstance(event, Published):
        yield from _published(event)
    elif isinstance(event, Attempts) and event.source.subscription is not None:
        for attempt in event.attempts:
            if attempt.trace is not None and attempt.verdict in OUTCOMES:
                yield from _attempted(event.source, event.source.subscription, attempt, attempt.trace)


def _published(event: Published) -> Iterator[Span]:
    """Yield the span of each traced message, until it is stored and offered."""
    now = time.time()
    for message_id, message in zip(event.ids, event.messages, strict=True):
        traceparent = traceparent_of(message.attributes)
        trace = tracing.parse_context(traceparent) if traceparent else None
        if trace is not None:
            attributes = {
                **SYSTEM,
                "messaging.destination.name": event.topic.name,
                "messaging.operation.name": "publish",
                "messaging.message.id": str(message_id),
                "messaging.message.body.size": len(message.data),
                "pushhub.region": event.region,
            }
            name, context = f"{event.topic.topic_id} publish", tracing.publish_context(trace, message_id)
            yield Span(name, "SERVER", context, trace, publish_time_ms(message_id) / 1000, now, attributes)


def _attempted(source: Source, subscription: str, attempt: Attempt, trace: TraceContext) -> Iterator[Span]:
    """Yield the span of an attempt. Before it comes, for the first attempt, the span of the wait since the publish."""
    message_id = int(attempt.message_id)
    parent = tracing.publish_context(trace, message_id)
    name = names.parse_subscription(subscription)[1]
    started = attempt.ended - attempt.latency_ms / 1000
    shared = {
        **SYSTEM,
        "messaging.destination.subscription.name": subscription,
        "messaging.message.id": attempt.message_id,
    }
    if attempt.attempt == 1:
        context = tracing.context_of(trace, "wait", message_id, source.subscription_id)
        published = publish_time_ms(message_id) / 1000
        wait = {**shared, "messaging.operation.name": "wait"}
        yield Span(f"{name} wait", "INTERNAL", context, parent, published, started, wait)
    attributes: dict[str, str | int | float] = {
        **shared,
        "messaging.operation.name": "push",
        "pushhub.task_id": attempt.task_id,
        "pushhub.attempt": attempt.attempt,
        "pushhub.outcome": OUTCOMES[attempt.verdict],
        "pushhub.region": source.region,
        "pushhub.latency_ms": round(attempt.latency_ms, 3),
    }
    if attempt.status:
        attributes["http.response.status_code"] = attempt.status
    if source.host:
        attributes["server.address"] = source.host
    context = tracing.attempt_context(trace, message_id, source.subscription_id, attempt.attempt)
    error = "" if attempt.verdict is Verdict.ACK else attempt.result_text
    yield Span(f"{name} push", "CLIENT", context, parent, started, attempt.ended, attributes, error)
