"""The frozen record of pushes that end, which all sinks take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from deliveries.backlog.backlog import Lane, LaneFlow, grouped
from deliveries.push.sending.flight import Flight
from deliveries.push.sending.plans import PushPlan
from deliveries.rules.payload import data_size
from deliveries.telemetry.events import Attempt, Attempts, Source


def attempts_of(flights: Sequence[Flight], flows: Mapping[Lane, LaneFlow], *, worker: str) -> list[Attempts]:
    """Return an event for each lane and plan, of which a lane nearly always has one."""
    groups = grouped(flights, lambda flight: (flight.lane, id(flight.plan)))
    return [
        Attempts(_source(lane, group[0].plan, flows.get(lane), worker=worker), [_attempt(flight) for flight in group])
        for (lane, _), group in groups.items()
    ]


def _attempt(flight: Flight) -> Attempt:
    task = flight.task
    return Attempt(
        flight.task_id,
        task.message["messageId"],
        task.attempt,
        flight.verdict,
        flight.status,
        flight.reason,
        flight.latency_ms,
        flight.ended,
        flight.data_bytes or data_size(task.message),
        flight.answer,
        flight.retry_in_ms,
        flight.trace,
        flight.shown,
    )


def _source(lane: Lane, plan: PushPlan | None, flow: LaneFlow | None, *, worker: str) -> Source:
    settings = plan.settings if plan is not None else None
    return Source(
        *lane,
        subscription=settings.name if settings is not None else None,
        topic_id=settings.topic_id if settings is not None else None,
        topic=settings.topic if settings is not None else "",
        host=plan.endpoint.origin.host if plan is not None and plan.endpoint is not None else None,
        push_window=flow.window if flow is not None else None,
        backoff_ms=flow.backoff_ms if flow is not None else None,
        settled_ms=flow.settled_ms if flow is not None else 0,
        worker=worker,
    )
