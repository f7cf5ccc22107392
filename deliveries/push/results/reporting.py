"""Reports on settled deliveries: counters, the health of endpoints, one event per attempt."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from operator import attrgetter
from typing import Any

from django.conf import settings

from deliveries.backlog.backlog import Lane, LaneFlow, grouped
from deliveries.push.sending.flight import Flight
from deliveries.rules.ids import publish_time_ms
from deliveries.rules.outcome import Reason, Verdict, response_class
from deliveries.rules.payload import data_size
from deliveries.telemetry import recording
from deliveries.telemetry.sinks.endpointhealth import Change, EndpointHealth, Result
from deliveries.telemetry.sinks.sampling import Sample
from deliveries.transforming import FILTER
from pushhub.common import names, tracing

logger = logging.getLogger(__name__)
attempt_logger = logging.getLogger("pushhub.attempts")

ATTEMPTED = "delivery.attempted"
DEAD_LETTERED = "delivery.dead_lettered"
#: Settled deliveries with one of these verdicts were attempted.
ATTEMPT_VERDICTS = frozenset({Verdict.ACK, Verdict.NACK, Verdict.DEAD_LETTER})
OUTCOMES = {Verdict.ACK: "ack", Verdict.NACK: "nack", Verdict.DEAD_LETTER: "nack"}
#: Reasons for which the endpoint is not responsible.
NOT_THE_ENDPOINTS = frozenset({str(Reason.ABORTED), str(Reason.INTERNAL), str(Reason.TRANSFORM_FAILED)})


class Reporter:
    """The settler's thread calls `settled` after each turn, and the heart calls `report_recovered` regularly."""

    def __init__(self, worker: str, *, clock: Callable[[], float] = time.time) -> None:
        self._worker = worker
        self._clock = clock
        #: The health of endpoints with a recent nack, by subscription id.
        self._health: dict[int, tuple[str, EndpointHealth]] = {}
        self._lock = threading.Lock()
        rate = settings.LOG_ATTEMPTS_PER_SECOND if settings.LOG_FORMAT == "JSON" else 0
        self._samples = {outcome: Sample(rate) for outcome in ("ack", "nack")} if rate else {}

    def settled(self, flights: Sequence[Flight], flows: Mapping[Lane, LaneFlow]) -> None:
        attempted = [flight for flight in flights if flight.verdict in ATTEMPT_VERDICTS]
        if self._samples:
            self._log(attempted, flows)
        if tracing.is_on():
            tracing.add_spans(span for flight in attempted for span in flight_spans(flight))
        count_filtered(flight for flight in flights if flight.verdict is Verdict.DROP and flight.reason == FILTER)
        lanes = grouped(attempted, attrgetter("lane"))
        with self._lock:
            for lane, group in lanes.items():
                count_attempts(lane.subscription_id, group)
                self._observe(lane, group, flows.get(lane))

    def report_recovered(self) -> None:
        """Report endpoints that recovered and have had no requests since."""
        with self._lock:
            for subscription_id, (name, health) in list(self._health.items()):
                change = health.settle(self._clock())
                if change is not None:
                    _report(name, change, backoff_ms=0)
                    del self._health[subscription_id]

    def _observe(self, lane: Lane, flights: list[Flight], flow: LaneFlow | None) -> None:
        entry = self._health.get(lane.subscription_id)
        if entry is None and all(flight.verdict is Verdict.ACK for flight in flights):
            return
        name, health = entry or (_short_name(flights[0]), EndpointHealth())
        self._health[lane.subscription_id] = (name, health)
        change = health.observe(
            Result(flight.verdict is Verdict.ACK, flight.result_text, flight.ended)
            for flight in flights
            if flight.reason not in NOT_THE_ENDPOINTS
        )
        if change is not None:
            _report(name, change, backoff_ms=flow.backoff_ms if flow else 0)
        if health.is_forgettable:
            del self._health[lane.subscription_id]

    def _log(self, flights: Iterable[Flight], flows: Mapping[Lane, LaneFlow]) -> None:
        groups: dict[str, list[Flight]] = {"nack": [], "ack": []}
        for flight in flights:
            groups[OUTCOMES[flight.verdict]].append(flight)
        for outcome, group in groups.items():
            for flight, weight in zip(group, self._samples[outcome].take(len(group)), strict=False):
                fields = attempt_fields(flight, flows.get(flight.lane), worker=self._worker, stands_for=weight)
                event = DEAD_LETTERED if flight.verdict is Verdict.DEAD_LETTER else ATTEMPTED
                attempt_logger.info("%s", outcome, extra={"event": event, "fields": fields})


def count_attempts(subscription_id: int, flights: Sequence[Flight]) -> None:
    """Count attempts of one subscription in PushHub's metrics."""
    acks = [flight for flight in flights if flight.verdict is Verdict.ACK]
    nacks = [flight for flight in flights if flight.verdict is not Verdict.ACK] if len(acks) < len(flights) else []
    recording.count_attempts(subscription_id=subscription_id, acks=acks, nacks=nacks)


def count_filtered(flights: Iterable[Flight]) -> None:
    """Count messages that a subscription's message transforms have filtered."""
    for lane, group in grouped(flights, attrgetter("lane")).items():
        recording.count_filtered({lane.subscription_id: len(group)})


def attempt_fields(flight: Flight, flow: LaneFlow | None, *, worker: str, stands_for: int) -> dict[str, Any]:
    """Return the fields of an attempt's event. They never include a token, payload, attribute or URL."""
    plan = flight.plan
    return {
        "subscription": plan.settings.name if plan and plan.settings else None,
        "message_id": str(flight.message_id),
        "attempt": flight.task.attempt,
        "outcome": OUTCOMES[flight.verdict],
        "status": flight.status or None,
        "reason": flight.reason or None,
        "response_class": response_class(flight.status, flight.reason),
        "latency_ms": round(flight.latency_ms, 3),
        "bytes": flight.data_bytes or data_size(flight.task.message),
        "ended": datetime.fromtimestamp(flight.ended, UTC).isoformat(timespec="milliseconds"),
        "host": plan.endpoint.origin.host if plan and plan.endpoint else None,
        "region": flight.lane.region,
        "push_window": flow.window if flow else None,
        "backoff_ms": flow.backoff_ms if flow else None,
        "worker": worker,
        "stands_for": stands_for,
    }


def flight_spans(flight: Flight) -> list[tracing.Span]:
    """Return the span of an attempt. Before it comes, for the first attempt, the span of the wait since the publish."""
    settings = flight.plan.settings if flight.plan else None
    if flight.trace is None or settings is None:
        return []
    task = flight.task
    parent = tracing.publish_context(flight.trace, flight.message_id)
    name = names.parse_subscription(settings.name)[1]
    started = flight.ended - flight.latency_ms / 1000
    shared = {
        "messaging.system": "gcp_pubsub",
        "messaging.destination.subscription.name": settings.name,
        "messaging.message.id": str(flight.message_id),
    }
    attributes: dict[str, str | int | float] = {
        **shared,
        "messaging.operation.name": "push",
        "pushhub.task_id": flight.task_id,
        "pushhub.attempt": task.attempt,
        "pushhub.outcome": OUTCOMES[flight.verdict],
        "pushhub.region": flight.lane.region,
        "pushhub.latency_ms": round(flight.latency_ms, 3),
    }
    if flight.status:
        attributes["http.response.status_code"] = flight.status
    if flight.plan and flight.plan.endpoint:
        attributes["server.address"] = flight.plan.endpoint.origin.host
    context = tracing.attempt_context(flight.trace, flight.message_id, task.subscription_id, task.attempt)
    error = "" if flight.verdict is Verdict.ACK else flight.result_text
    spans = [tracing.Span(f"{name} push", "CLIENT", context, parent, started, flight.ended, attributes, error)]
    if task.attempt == 1:
        context = tracing.context_of(flight.trace, "wait", flight.message_id, task.subscription_id)
        published = publish_time_ms(flight.message_id) / 1000
        wait = {**shared, "messaging.operation.name": "wait"}
        spans.insert(0, tracing.Span(f"{name} wait", "INTERNAL", context, parent, published, started, wait))
    return spans


def _report(name: str, change: Change, *, backoff_ms: float) -> None:
    fields = {
        "subscription": f"projects/{name.replace('/', '/subscriptions/')}",
        "reason": change.reason or None,
        "failed": change.failed,
    }
    level = logging.WARNING if change.reason else logging.INFO
    extra = {"event": "endpoint.failing" if change.reason else "endpoint.healthy", "fields": fields}
    logger.log(level, "%s", change.describe(name, backoff_ms=backoff_ms), extra=extra)


def _short_name(flight: Flight) -> str:
    """Return `project/subscription`, which is shorter than the full name."""
    if flight.plan is None or flight.plan.settings is None:
        return f"subscription {flight.lane.subscription_id}"
    return "/".join(names.parse_subscription(flight.plan.settings.name))
