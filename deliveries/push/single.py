"""Pushes one message in a worker that is no push worker: a stock Celery worker on the same queue stays correct."""

from __future__ import annotations

import threading

from deliveries.backlog.backlog import Lane
from deliveries.journal.journal import journal
from deliveries.push.attempts import attempt_events
from deliveries.push.engine import Engine
from deliveries.push.flight import Flight
from deliveries.push.settler import settle_now
from deliveries.push.steward import prepare_now
from deliveries.rules.taskmessage import DeliverTask, task_id


def deliver_one(task: DeliverTask) -> str:
    """Push, wait for the result and settle it; returns the result for people. Raises when it could not be settled:
    then the broker gives the task to somebody again.
    """
    ended = threading.Event()
    flight = Flight(
        task,
        task_id(task.message_id, task.subscription_id, task.region),
        batch=None,
        lane=Lane(task.subscription_id, task.region),
        finish=lambda _: ended.set(),
    )
    engine = Engine(unprepared=lambda flights: None)
    engine.start()
    try:
        prepare_now(engine, [flight])
        ended.wait()
    finally:
        engine.stop()
    flows = settle_now([flight])
    kept = journal()
    if kept is not None:
        kept.append(attempt_events([flight], flows=flows, worker="single"))
    return f"{flight.code} {flight.result_text}"
