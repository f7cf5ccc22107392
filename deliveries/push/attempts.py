"""What the journal is told of settled flights."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from deliveries.backlog.backlog import Lane, LaneFlow
from deliveries.journal.columns import Events
from deliveries.push.flight import Flight
from deliveries.push.plans import PushPlan
from deliveries.rules.outcome import Reason
from deliveries.rules.payload import data_size
from pushhub.common import names

#: That a nack went to the dead-letter topic is an event of its own (journal/records.py).
OUTCOMES = {"a": "ack", "n": "nack", "r": "release", "x": "drop", "d": "nack"}


def attempt_events(flights: Sequence[Flight], *, flows: Mapping[Lane, LaneFlow], worker: str) -> list[Events]:
    """An event for each attempt, and for each delivery that ended without one. What never left is no event."""
    groups: dict[tuple[Lane, int, str], list[Flight]] = defaultdict(list)
    for flight in flights:
        code = flight.code
        if code == "r" and flight.reason != Reason.ABORTED:
            continue
        # Nearly always one plan a lane: the settings and the endpoint are then told once for all.
        groups[flight.lane, id(flight.plan), "drop" if code == "x" else "push"].append(flight)
    return [_events(event, lane, group, flows.get(lane), worker=worker) for (lane, _, event), group in groups.items()]


def _events(event: str, lane: Lane, flights: list[Flight], flow: LaneFlow | None, *, worker: str) -> Events:
    messages = [flight.task.message for flight in flights]
    columns: dict[str, list[Any]] = {
        "time": [int(flight.ended * 1e6) for flight in flights],
        "message_id": [message["messageId"] for message in messages],
        "attempt": [flight.task.attempt for flight in flights],
        "outcome": [OUTCOMES[flight.code] for flight in flights],
        "reason": [flight.reason for flight in flights],
        "bytes": [flight.data_bytes or data_size(flight.task.message) for flight in flights],
    }
    if event == "push":
        columns["response_code"] = [flight.status for flight in flights]
        columns["latency_us"] = [int(flight.latency_ms * 1000) for flight in flights]
    return Events(len(flights), columns, _shared(event, lane, flights[0].plan, flow, worker=worker))


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
