"""The frozen record of pushes that end, which all sinks take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from deliveries.backlog.records import Lane, LaneFlow, grouped
from deliveries.push.sending.delivery import PushDelivery
from deliveries.push.sending.plans import PushPlan
from deliveries.rules.payload import data_size
from deliveries.telemetry.events import Attempt, Attempts, Source


def attempts_of(deliveries: Sequence[PushDelivery], flows: Mapping[Lane, LaneFlow], *, worker: str) -> list[Attempts]:
    """Return an event for each lane and plan, of which a lane nearly always has one."""
    groups = grouped(deliveries, lambda delivery: (delivery.lane, id(delivery.plan)))
    return [
        Attempts(
            _source(lane, group[0].plan, flows.get(lane), worker=worker), [_attempt(delivery) for delivery in group]
        )
        for (lane, _), group in groups.items()
    ]


def _attempt(delivery: PushDelivery) -> Attempt:
    task = delivery.task
    return Attempt(
        delivery.task_id,
        task.message["messageId"],
        task.attempt,
        delivery.verdict,
        delivery.status,
        delivery.reason,
        delivery.latency_ms,
        delivery.ended,
        delivery.data_bytes or data_size(task.message),
        delivery.answer,
        delivery.retry_in_ms,
        delivery.trace,
        delivery.shown,
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
