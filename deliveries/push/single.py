"""Pushes one message in a worker that isn't a push worker, so that a stock Celery worker on the queue works too."""

from __future__ import annotations

import threading

from deliveries.backlog.backlog import Lane
from deliveries.push.preparer import prepare_now
from deliveries.push.results.attempts import attempt_events
from deliveries.push.results.reporting import ATTEMPT_VERDICTS, count_attempts, count_filtered, flight_spans
from deliveries.push.results.settler import settle_now
from deliveries.push.sending.engine import Engine
from deliveries.push.sending.flight import Flight
from deliveries.push.transformer import Transformer
from deliveries.rules.outcome import Verdict
from deliveries.rules.taskmessage import DeliverTask
from deliveries.telemetry.journal.journal import journal
from deliveries.transforming import FILTER
from pushhub.common import tracing


def deliver_one(task: DeliverTask, *, task_id: str) -> str:
    """Push a message, wait for the result, settle it, and return the result as text.

    Raises the errors of the database and of Redis if it cannot settle; the broker then delivers the task again.
    """
    ended = threading.Event()
    flight = Flight(
        task,
        task_id,
        batch=None,
        lane=Lane(task.subscription_id, task.region),
        finish=lambda _: ended.set(),
    )
    transformer = Transformer(resume=lambda flights: engine.accept(flights), admit=lambda flight: True)
    engine = Engine(unprepared=lambda flights: None, transform=transformer.take_on, starting=lambda flights: None)
    engine.start()
    try:
        prepare_now(engine, flight)
        ended.wait()
    finally:
        transformer.stop()
        engine.stop()
    flows = settle_now([flight])
    if flight.verdict in ATTEMPT_VERDICTS:
        count_attempts(task.subscription_id, [flight])
        if tracing.is_on():
            tracing.add_spans(flight_spans(flight))
    if flight.verdict is Verdict.DROP and flight.reason == FILTER:
        count_filtered([flight])
    journal_ = journal()
    if journal_ is not None:
        journal_.append(attempt_events([flight], flows=flows, worker="single"))
    return f"{flight.verdict} {flight.result_text}"
