"""Remote control of push workers, whose pushes aren't Celery requests: `celery inspect` and `celery control`.

What a push worker can't do is answered with an error that names what to use instead (docs/celery.md).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from datetime import UTC, datetime
from functools import partial, wraps
from typing import TYPE_CHECKING, Any

import orjson
from celery.worker.control import Panel, inspect_command
from django.conf import settings

from deliveries.backlog.codes import STATE_CODES, Mode
from deliveries.backlog.default import default_backlog
from deliveries.rules.taskmessage import TASK_NAME, DeliverTask, parse_body
from pushhub.common import background

if TYPE_CHECKING:
    from deliveries.push.sending.delivery import PushDelivery
    from deliveries.push.worker import PushWorker

#: The most messages that are listed. A push worker may have tens of thousands.
MAX_LISTED = 100
NO_RATE_LIMIT = (
    f"{TASK_NAME} has no rate limit per worker: set the attribute x-pushhub-rate in the subscription's pushConfig, "
    "which limits all workers together"
)
NO_TIME_LIMIT = f"{TASK_NAME} has no time limit of Celery's: set the subscription's ackDeadlineSeconds"

Row = dict[str, Any]
Command = Callable[..., Any]
#: Gets Celery's own command, the state and the push worker, and then the command's arguments.
Extension = Callable[..., Any]


def install() -> None:
    """Extend Celery's own commands by what a push worker does. Some have an older name too."""
    extensions: dict[tuple[str, ...], Extension] = {
        ("active", "dump_active"): partial(_list, partial(_outstanding, has_begun=True)),
        ("reserved", "dump_reserved"): partial(_list, partial(_outstanding, has_begun=False)),
        ("scheduled", "dump_schedule"): partial(_list, _scheduled),
        ("query_task",): _query,
        ("rate_limit",): partial(_refuse, NO_RATE_LIMIT),
        ("time_limit",): partial(_refuse, NO_TIME_LIMIT),
        ("revoke",): _revoke,
        ("terminate",): _terminate,
        ("enable_events",): partial(_switch, is_on=True),
        ("disable_events",): partial(_switch, is_on=False),
    }
    for names, extend in extensions.items():
        command = _for_push_workers(Panel.data[names[0]], extend)
        for name in names:
            Panel.data[name] = command


@inspect_command()
def threads(state: Any, **kwargs: Any) -> dict[str, float]:
    """Return, for each background thread, the seconds since its last sign of life or of its oldest job."""
    return background.stuck_seconds()


def _for_push_workers(original: Command, extend: Extension) -> Command:
    """Return a command that is Celery's own in any other worker."""

    @wraps(original)
    def command(state: Any, **kwargs: Any) -> Any:
        push_worker = getattr(state.consumer.controller, "push_worker", None)
        if push_worker is None:
            return original(state, **kwargs)
        return extend(original, state, push_worker, **kwargs)

    return command


def _list(
    rows: Callable[[PushWorker, str], list[Row]], original: Command, state: Any, push_worker: PushWorker, **kwargs: Any
) -> list[Row]:
    return [*original(state, **kwargs), *rows(push_worker, state.hostname)]


def _outstanding(push_worker: PushWorker, hostname: str, *, has_begun: bool) -> list[Row]:
    """Return what the worker has begun to push, or else what it has only fetched."""
    fetched = list(push_worker.stages.outstanding.values())
    chosen = (delivery for delivery in fetched if bool(delivery.started) == has_begun)
    return _delivery_rows(chosen, push_worker, hostname)


def _scheduled(push_worker: PushWorker, hostname: str) -> list[Row]:
    """Return the retries that are due first in the worker's regions."""
    retries, total = _next_retries({settings.REGION, *push_worker.adopted})
    rows = []
    for due_ms, text in retries:
        message = orjson.loads(text)
        request = _row(message["headers"]["id"], parse_body(message["body"]), push_worker, hostname)
        eta = datetime.fromtimestamp(due_ms / 1000, UTC).isoformat(timespec="milliseconds")
        rows.append({"eta": eta, "priority": None, "request": request, "total": total})
    return rows


def _next_retries(regions: Container[str]) -> tuple[list[tuple[float, bytes]], int]:
    """Return the pushes of these regions that are retried first, and the number of all of them.

    They wait in Redis for any worker. Each has the time in ms since 1970 when it is due, if no push backoff pauses its
    lane then, and the Celery message of its next attempt. It takes five round trips besides those of the list of lanes.
    """
    backlog = default_backlog()
    lanes = [lane for lane in backlog.lanes() if lane.region in regions]
    pipe = backlog.client.pipeline(transaction=False)
    for lane in lanes:
        pipe.hget(lane.state_key, STATE_CODES["mode"])
    modes = pipe.execute()
    pushed = [lane for lane, mode in zip(lanes, modes, strict=True) if mode is not None and int(mode) != Mode.PULL]
    keys = [lane.root for lane in pushed]
    for key in keys:
        pipe.zcard(f"{key}:z")
        pipe.zrange(f"{key}:z", 0, 0, withscores=True)
    replies = pipe.execute()
    total = sum(replies[0::2])
    firsts = sorted((first[0][1], key) for key, first in zip(keys, replies[1::2], strict=True) if first)[:MAX_LISTED]
    for _, key in firsts:
        pipe.zrange(f"{key}:z", 0, MAX_LISTED - 1, withscores=True)
    due = sorted(
        (due_ms, key, name) for (_, key), rows in zip(firsts, pipe.execute(), strict=True) for name, due_ms in rows
    )[:MAX_LISTED]
    for _, key, name in due:
        pipe.hget(f"{key}:m", name)
    messages = pipe.execute()
    # A delivery without a message was pushed or settled since.
    return [(at, message) for (at, _, _), message in zip(due, messages, strict=True) if message], total


def _query(original: Command, state: Any, push_worker: PushWorker, *, ids: Sequence[str] | str, **kwargs: Any) -> Any:
    """Return the state of the tasks with these ids, as Celery does of its own requests."""
    wanted = [ids] if isinstance(ids, str) else ids
    known = [delivery for delivery in map(push_worker.stages.outstanding.get, wanted) if delivery is not None]
    states = ("active" if delivery.started else "reserved" for delivery in known)
    rows = _delivery_rows(known, push_worker, state.hostname)
    pushes = {row["id"]: [place, row] for place, row in zip(states, rows, strict=False)}
    return {**original(state, ids=ids, **kwargs), **pushes}


def _refuse(reason: str, original: Command, state: Any, push_worker: PushWorker, **kwargs: Any) -> Any:
    # Celery shows such a reply as an error.
    return {"error": reason} if kwargs.get("task_name") == TASK_NAME else original(state, **kwargs)


def _revoke(
    original: Command,
    state: Any,
    push_worker: PushWorker,
    *,
    task_id: Sequence[str] | str,
    terminate: bool = False,
    **kwargs: Any,
) -> Any:
    """Revoke, and drop what this worker has of the deliveries if they are to be terminated, with whatever signal."""
    reply = original(state, task_id=task_id, **kwargs)
    if not terminate:
        return reply
    count = push_worker.stages.terminate([task_id] if isinstance(task_id, str) else task_id)
    return {"ok": f"revoked, and {count} of them ended here"}


def _terminate(original: Command, state: Any, push_worker: PushWorker, **kwargs: Any) -> Any:
    return Panel.data["revoke"](state, terminate=True, **kwargs)


def _switch(original: Command, state: Any, push_worker: PushWorker, *, is_on: bool, **kwargs: Any) -> Any:
    push_worker.stages.flower.is_on = is_on
    return original(state, **kwargs)


def _delivery_rows(deliveries: Iterable[PushDelivery], push_worker: PushWorker, hostname: str) -> list[Row]:
    rows = []
    for delivery, _ in zip(deliveries, range(MAX_LISTED), strict=False):
        row = _row(delivery.task_id, delivery.task, push_worker, hostname)
        rows.append({**row, "time_start": delivery.started or None})
    return rows


def _row(task_id: str, task: DeliverTask, push_worker: PushWorker, hostname: str) -> Row:
    name = push_worker.stages.engine.plans.name_of(task.subscription_id)
    return {
        "id": task_id,
        "name": TASK_NAME,
        "args": [name, task.region, task.attempt, {"messageId": task.message["messageId"]}],
        "kwargs": {},
        "type": TASK_NAME,
        "hostname": hostname,
        "time_start": None,
        "acknowledged": False,
        "delivery_info": {"exchange": "", "routing_key": f"deliveries.{task.region}", "redelivered": None},
        "worker_pid": None,
    }
