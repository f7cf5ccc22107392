"""`celery inspect` for push workers: their messages, which aren't Celery requests, and their threads."""

from __future__ import annotations

from typing import Any

from celery.worker.control import Panel, inspect_command

from deliveries.push.sending.flight import Flight
from deliveries.rules.taskmessage import TASK_NAME
from pushhub.common import background

#: The most messages that are listed. A push worker may have tens of thousands.
MAX_LISTED = 100


def install() -> None:
    """Wrap Celery's own `active` command, which also has an older name."""
    original = Panel.data["active"]

    def active(state: Any, **kwargs: Any) -> list[dict[str, Any]]:
        listed: list[dict[str, Any]] = original(state, **kwargs)
        push_worker = getattr(state.consumer.controller, "push_worker", None)
        if push_worker is not None:
            outstanding = list(push_worker.outstanding.values())[:MAX_LISTED]
            name_of = push_worker.engine.plans.name_of
            listed += [_row(flight, name_of(flight.task.subscription_id), state.hostname) for flight in outstanding]
        return listed

    Panel.data["active"] = Panel.data["dump_active"] = active


@inspect_command()
def threads(state: Any, **kwargs: Any) -> dict[str, float]:
    """Return, for each background thread, the seconds since its last sign of life or of its oldest job."""
    return background.stuck_seconds()


def _row(flight: Flight, subscription: str, hostname: str) -> dict[str, Any]:
    task = flight.task
    return {
        "id": flight.task_id,
        "name": TASK_NAME,
        "args": [subscription, task.region, task.attempt, {"messageId": task.message["messageId"]}],
        "kwargs": {},
        "type": TASK_NAME,
        "hostname": hostname,
        "time_start": flight.started or None,
        "acknowledged": False,
        "delivery_info": {"exchange": "", "routing_key": f"deliveries.{task.region}", "redelivered": None},
        "worker_pid": None,
    }
