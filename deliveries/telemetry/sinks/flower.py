"""Task events for Flower, sent in batches. Above a rate, successes are sampled; failures and retries never are.

They are the events of Celery's own worker (`task-received`, `task-started`, `task-succeeded`, `task-retried`), so that
Flower and `celery events` work unchanged. Keyword arguments name the subscription, the message and the attempt, so that
Flower finds `kwargs:message_id=...`. A thread sends the waiting events; if it lags, the oldest are discarded.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import orjson
from django.conf import settings
from kombu import serialization

from deliveries.rules.outcome import Verdict
from deliveries.rules.taskmessage import TASK_NAME
from deliveries.telemetry.events import Attempt, Attempts, Event, Source
from deliveries.telemetry.sinks.sampling import Sample
from pushhub.common.background import BackgroundThread

logger = logging.getLogger(__name__)

FLUSH_SECONDS = 0.5
#: Events that may wait to be sent.
MAX_WAITING = 20_000
EVENTS_PER_MESSAGE = 500
#: The result that Flower shows for a task that was not retried.
SUCCESSES = {Verdict.ACK: "ack", Verdict.RELEASE: "released", Verdict.DROP: "dropped"}
#: The events of the others, which are always shown.
RETRIED = {Verdict.NACK: "task-retried", Verdict.DEAD_LETTER: "task-failed"}

#: The same JSON as that of kombu's serializer, in a tenth of the time.
SERIALIZER = "pushhub-json"
serialization.register(
    SERIALIZER,
    lambda events: orjson.dumps(events).decode(),
    None,
    content_type="application/json",
    content_encoding="utf-8",
)

TaskEvent = tuple[str, dict[str, Any]]


class Flower:
    """A push worker's sink. It collects from the worker's threads, and sends from a thread of its own."""

    def __init__(self, app: Any, hostname: str, *, name_of: Callable[[int], str]) -> None:
        """`name_of` returns the name of a subscription that may have been deleted."""
        self._app = app
        self._name_of = name_of
        self._hostname = hostname
        self._sample = Sample(settings.EVENTS_PER_SECOND)
        self._waiting: deque[TaskEvent] = deque(maxlen=MAX_WAITING)
        #: Kept between turns, because connecting costs more than sending.
        self._dispatcher: Any = None
        #: Whether events are sent; `celery control disable_events` turns them off.
        self.is_on = True
        self._thread = BackgroundThread("push-events", self._gather_and_send, at_end=self._end)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._thread.stop(timeout=5)

    def sample(self, count: int) -> list[int]:
        """Return, for each of the first pushes of `count` that begin, for how many it is to be shown."""
        return self._sample.take(count) if self.is_on else []

    def started(self, pushes: Sequence[Attempts]) -> None:
        """Show that pushes begin now."""
        for event in pushes:
            for attempt in event.attempts:
                self._show(event.source, attempt, time.time())

    def take(self, events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, Attempts):
                for attempt in event.attempts:
                    if attempt.shown or (attempt.verdict in RETRIED and self.is_on):
                        self._end_task(event.source, attempt)

    def _end_task(self, source: Source, attempt: Attempt) -> None:
        if not attempt.shown:
            self._show(source, attempt, attempt.ended - attempt.latency_ms / 1000)
        if attempt.verdict in RETRIED:
            fields = {"uuid": attempt.task_id, **retried_fields(source, attempt)}
            self._waiting.append((RETRIED[attempt.verdict], fields))
        else:
            self._waiting.append(("task-succeeded", _succeeded(attempt)))

    def _show(self, source: Source, attempt: Attempt, started: float) -> None:
        self._waiting.append(("task-received", self._received(source, attempt, started)))
        self._waiting.append(("task-started", {"uuid": attempt.task_id, "timestamp": started}))

    def _received(self, source: Source, attempt: Attempt, started: float) -> dict[str, Any]:
        name = self._name_of(source.subscription_id)
        return {
            "uuid": attempt.task_id,
            "name": TASK_NAME,
            "args": "()",
            "kwargs": arguments_text(name, source.topic, attempt.message_id, attempt.attempt),
            "retries": attempt.attempt - 1,
            # Clears the time of the next attempt that the previous attempt set.
            "eta": None,
            "root_id": attempt.task_id,
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

    def _dispatch(self, events: Iterable[TaskEvent]) -> None:
        for kind, fields in events:
            self._dispatcher.send(kind, **fields)
        self._dispatcher.flush(errors=False, groups=["task"])

    def _disconnect(self) -> None:
        dispatcher, self._dispatcher = self._dispatcher, None
        if dispatcher is not None:
            dispatcher.close()
            with suppress(Exception):
                dispatcher.connection.release()


def arguments_text(subscription: str, topic: str, message_id: str, attempt: int) -> str:
    """Return what Flower shows as the arguments of a push."""
    return repr({"subscription": subscription, "topic": topic, "message_id": message_id, "attempt": attempt})


def success_text(attempt: Attempt) -> str:
    """Return what Flower shows as the result of a push that was not retried."""
    return f"{SUCCESSES[attempt.verdict]} {attempt.result_text}"


def _succeeded(attempt: Attempt) -> dict[str, Any]:
    result = success_text(attempt)
    if attempt.shown > 1:
        result += f", stands for {attempt.shown} pushes"
    return {"uuid": attempt.task_id, "result": result, "runtime": attempt.latency_ms / 1000}


def retried_fields(source: Source, attempt: Attempt) -> dict[str, Any]:
    """Return the fields of a nack but the task's id. Celery's `eta` is the time of the next attempt that Redis has.

    A push backoff of the subscription may hold the message back for longer.
    """
    text = attempt.result_text
    fields: dict[str, Any] = {
        # Flower searches in results and not in exceptions.
        "result": f"nack {text}",
        "exception": f"Nack({text})",
        "traceback": f"attempt {attempt.attempt} was nacked: {text}",
    }
    if attempt.verdict is Verdict.DEAD_LETTER:
        fields["result"] = f"dead-lettered after {text}"
    if attempt.verdict is Verdict.NACK:
        next_attempt = datetime.fromtimestamp((source.settled_ms + attempt.retry_in_ms) / 1000, UTC)
        fields["result"] += f", next attempt after {attempt.retry_in_ms} ms"
        fields["eta"] = next_attempt.isoformat(timespec="milliseconds")
    return fields
