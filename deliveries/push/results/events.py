"""Task events for Flower, sent in batches. Above a rate, successes are sampled; failures and retries never are.

They are the events of Celery's own worker (`task-received`, `task-started`, `task-succeeded`, `task-retried`), so that
Flower and `celery events` work unchanged. Keyword arguments name the subscription, the message and the attempt, so that
Flower finds `kwargs:message_id=...`. A thread sends the waiting events; if it lags, the oldest are discarded.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import orjson
from django.conf import settings
from kombu import serialization

from deliveries.backlog.backlog import Lane, LaneFlow
from deliveries.push.sending.flight import Flight
from deliveries.rules.outcome import Verdict
from deliveries.rules.taskmessage import TASK_NAME
from deliveries.telemetry.sinks.sampling import Sample
from pushhub.common.background import BackgroundThread

logger = logging.getLogger(__name__)

FLUSH_SECONDS = 0.5
#: Events that may wait to be sent.
MAX_WAITING = 20_000
EVENTS_PER_MESSAGE = 500
#: The result that Flower shows for a task that was not retried.
SUCCESSES = {Verdict.ACK: "ack", Verdict.RELEASE: "released", Verdict.DROP: "dropped"}

#: The same JSON as that of kombu's serializer, in a tenth of the time.
SERIALIZER = "pushhub-json"
serialization.register(
    SERIALIZER,
    lambda events: orjson.dumps(events).decode(),
    None,
    content_type="application/json",
    content_encoding="utf-8",
)

Event = tuple[str, dict[str, Any]]


class TaskEvents:
    """Collects events from the worker's threads and sends them from its own thread."""

    def __init__(self, app: Any, hostname: str, *, name_of: Callable[[int], str]) -> None:
        """`name_of` returns the name of a subscription that may have been deleted."""
        self._app = app
        self._name_of = name_of
        self._hostname = hostname
        self._sample = Sample(settings.EVENTS_PER_SECOND)
        #: By task id, the number of pushes that an event stands for, if more than 1, until the push is settled.
        self._weights: dict[str, int] = {}
        self._waiting: deque[Event] = deque(maxlen=MAX_WAITING)
        #: Kept between turns, because connecting costs more than sending.
        self._dispatcher: Any = None
        #: Whether events are sent; `celery control disable_events` turns them off.
        self.is_on = True
        self._thread = BackgroundThread("push-events", self._gather_and_send, at_end=self._end)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._thread.stop(timeout=5)

    def started(self, flights: Sequence[Flight]) -> None:
        now = time.time()
        for flight in flights:
            flight.started = now
        # A sample ends with the last of its flights.
        for flight, weight in zip(flights, self._sample.take(len(flights)), strict=False):
            if weight > 1:
                self._weights[flight.task_id] = weight
            self._show(flight)

    def settled(self, flights: Sequence[Flight], flows: Mapping[Lane, LaneFlow]) -> None:
        for flight in flights:
            weight = self._weights.pop(flight.task_id, 1) if self._weights else 1
            if flight.verdict is Verdict.NACK or flight.verdict is Verdict.DEAD_LETTER:
                self._show(flight)
            if not flight.shown:
                continue
            if flight.verdict is Verdict.NACK:
                self._waiting.append(("task-retried", _retried(flight, flows[flight.lane])))
            elif flight.verdict is Verdict.DEAD_LETTER:
                self._waiting.append(("task-failed", _retried(flight, flows[flight.lane])))
            else:
                self._waiting.append(("task-succeeded", _succeeded(flight, weight)))

    def _show(self, flight: Flight) -> None:
        if flight.shown or not self.is_on:
            return
        flight.shown = True
        started = flight.started or time.time() - flight.latency_ms / 1000
        self._waiting.append(("task-received", self._received(flight, started)))
        self._waiting.append(("task-started", {"uuid": flight.task_id, "timestamp": started}))

    def _received(self, flight: Flight, started: float) -> dict[str, Any]:
        plan = flight.plan
        arguments = {
            "subscription": self._name_of(flight.task.subscription_id),
            "topic": plan.settings.topic if plan is not None and plan.settings is not None else "",
            "message_id": str(flight.message_id),
            "attempt": flight.task.attempt,
        }
        return {
            "uuid": flight.task_id,
            "name": TASK_NAME,
            "args": "()",
            "kwargs": repr(arguments),
            "retries": flight.task.attempt - 1,
            # Clears the time of the next attempt that the previous attempt set.
            "eta": None,
            "root_id": flight.task_id,
            "parent_id": None,
            "timestamp": started,
        }

    def _gather_and_send(self) -> None:
        if not self._thread.stopping.wait(FLUSH_SECONDS):
            self._send()

    def _end(self) -> None:
        self._send()
        self._disconnect()

    def _send(self) -> None:
        events = [self._waiting.popleft() for _ in range(len(self._waiting))]
        if not events:
            return None
        if self._dispatcher is not None:
            try:
                return self._dispatch(events)
            except Exception as error:
                # Redis may have been restarted since the last turn.
                logger.debug("events are sent over a new connection: %s", type(error).__name__)
                self._disconnect()
        try:
            self._connect()
            self._dispatch(events)
        except Exception as error:
            # Events only inform people: an error here must not stop deliveries.
            logger.warning("events were not sent", exc_info=error)
            self._disconnect()
        return None

    def _connect(self) -> None:
        self._dispatcher = self._app.events.Dispatcher(
            self._app.connection_for_write(),
            hostname=self._hostname,
            buffer_group=["task"],
            buffer_limit=EVENTS_PER_MESSAGE,
            buffer_while_offline=False,
            serializer=SERIALIZER,
        )

    def _dispatch(self, events: Iterable[Event]) -> None:
        for kind, fields in events:
            self._dispatcher.send(kind, **fields)
        self._dispatcher.flush(errors=False, groups=["task"])

    def _disconnect(self) -> None:
        dispatcher, self._dispatcher = self._dispatcher, None
        if dispatcher is not None:
            dispatcher.close()
            with suppress(Exception):
                dispatcher.connection.release()


def _succeeded(flight: Flight, weight: int) -> dict[str, Any]:
    result = f"{SUCCESSES[flight.verdict]} {flight.result_text}"
    if weight > 1:
        result += f", stands for {weight} pushes"
    return {"uuid": flight.task_id, "result": result, "runtime": flight.latency_ms / 1000}


def _retried(flight: Flight, flow: LaneFlow) -> dict[str, Any]:
    """Return the fields of a nack, with the time of the next attempt that Redis has as Celery's `eta`.

    A push backoff of the subscription may hold the message back for longer.
    """
    fields: dict[str, Any] = {
        "uuid": flight.task_id,
        # Flower searches in results and not in exceptions.
        "result": f"nack {flight.result_text}",
        "exception": f"Nack({flight.result_text})",
        "traceback": f"attempt {flight.task.attempt} was nacked: {flight.result_text}",
    }
    if flight.verdict is Verdict.DEAD_LETTER:
        fields["result"] = f"dead-lettered after {flight.result_text}"
    if flight.verdict is Verdict.NACK:
        next_attempt = datetime.fromtimestamp((flow.settled_ms + flight.retry_in_ms) / 1000, UTC)
        fields["result"] += f", next attempt after {flight.retry_in_ms} ms"
        fields["eta"] = next_attempt.isoformat(timespec="milliseconds")
    return fields
