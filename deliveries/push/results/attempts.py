"""The journal's events of settled flights."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from deliveries.backlog.backlog import Lane, LaneFlow
from deliveries.push.sending.flight import Flight
from deliveries.push.sending.plans import PushPlan
from deliveries.rules.outcome import Reason, Verdict
from deliveries.rules.payload import data_size
from deliveries.telemetry.journal.columns import Events
from deliveries.transforming import FILTER
from pushhub.common import names


def attempt_events(flights: Sequence[Flight], *, flows: Mapping[Lane, LaneFlow], worker: str) -> list[Events]:
    """Return the events of attempts, and of deliveries that ended without one. Released deliveries have none."""
    groups: dict[tuple[Lane, int, str], list[Flight]] = defaultdict(list)
    for flight in flights:
        if flight.verdict is Verdict.RELEASE and flight.reason != Reason.ABORTED:
            continue
        # There is nearly always one plan per lane, so that its settings and endpoint are written only once.
        groups[flight.lane, id(flight.plan), _event(flight)].append(flight)
    return [_events(event, lane, group, flows.get(lane), worker=worker) for (lane, _, event), group in groups.items()]


def _events(event: str, lane: Lane, flights: list[Flight], flow: LaneFlow | None, *, worker: str) -> Events:
    messages = [flight.task.message for flight in flights]
    columns: dict[str, list[Any]] = {
        "time": [int(flight.ended * 1e6) for flight in flights],
        "message_id": [message["messageId"] for message in messages],
        "attempt": [flight.task.attempt for flight in flights],
        "outcome": [_outcome(flight) for flight in flights],
        "reason": [flight.reason for flight in flights],
        "bytes": [flight.data_bytes or data_size(flight.task.message) for flight in flights],
    }
    if event == "push":
        columns["response_code"] = [flight.status for flight in flights]
        columns["latency_us"] = [int(flight.latency_ms * 1000) for flight in flights]
        if any(flight.answer for flight in flights):
            columns["answer"] = [flight.answer or None for flight in flights]
    return Events(len(flights), columns, _shared(event, lane, flights[0].plan, flow, worker=worker))


def _event(flight: Flight) -> str:
    if flight.verdict is not Verdict.DROP:
        return "push"
    return FILTER if flight.reason == FILTER else "drop"


def _outcome(flight: Flight) -> str:
    """Return the journal's word for a verdict. A dead letter is a nack, and has another event too (records.py)."""
    if flight.verdict is Verdict.DEAD_LETTER:
        return Verdict.NACK
    return Verdict.ACK if _event(flight) == FILTER else flight.verdict


def _shared(event: str, lane: Lane, plan: PushPlan | None, flow: LaneFlow | None, *, worker: str) -> dict[str, Any]:
    settings = plan.settings if plan is not None else None
    name = settings.name if settings is not None else None
    return {
        "event": event,
        "project": names.parse_subscription(name)[0] if name else None,
        "region": lane.region,
        "subscription": name,
        "subscription_id": lane.subscription_id,
        "topic_id": settings.topic_id if settings is not None else None,
        "host": plan.endpoint.origin.host if plan is not None and plan.endpoint is not None else None,
        "push_window": flow.window if flow is not None else None,
        "backoff_ms": flow.backoff_ms if flow is not None else None,
        "worker": worker,
    }
