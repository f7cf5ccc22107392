"""The deliver task in Celery's workers: a push worker hands its messages to the engine, any other worker runs it.

Of the pushes of a stock worker, Celery sends Flower's events, and here they get a push worker's words.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from billiard.einfo import ExceptionWithTraceback  # type: ignore[attr-defined]
from celery.exceptions import Retry
from celery.worker.request import Request
from celery.worker.strategy import default
from django.db import Error, close_old_connections

from deliveries.push import waker
from deliveries.push.sending.plans import MAX_NAMES
from deliveries.rules.outcome import Nack, Verdict
from deliveries.rules.taskmessage import DeliverTask, parse_body
from deliveries.telemetry.events import Attempts
from deliveries.telemetry.sinks.flower import arguments_text, retried_fields, success_text
from subscriptions.selectors import push_settings_of

logger = logging.getLogger(__name__)

#: A subscription's topic is read again after this time, and sooner if the database was away.
NAMES_SECONDS = 60.0
OUTAGE_SECONDS = 1.0


def deliver_strategy(task: Any, app: Any, consumer: Any, **kwargs: Any) -> Callable[..., Any]:
    """Return the function that Celery calls with every message of the task. Celery calls this once per connection."""
    push_worker = getattr(consumer.controller, "push_worker", None)
    handler: Callable[..., Any] = default(task, app, consumer, **kwargs)
    if push_worker is not None and push_worker.serves(consumer):
        # From now on the transport offers each message of the task to the push worker before Celery sees it. Celery's
        # own work for a message (a message object, two promises, a lookup) costs as much as pushing it.
        push_worker.has_strategy = True
    return handler if waker.here is None else _noting(waker.here, handler)


def _noting(here: waker.Waker, handler: Callable[..., Any]) -> Callable[..., Any]:
    """Return a handler that notes for the audit which deliveries this stock worker has, and names them in Flower."""
    arguments = Arguments()

    def handle(message: Any, body: Any, ack: Callable[..., Any], reject: Callable[..., Any], *args: Any) -> Any:
        task = parse_body(message.body)

        def ended(*ack_args: Any, **kwargs: Any) -> Any:
            here.end(task)
            return ack(*ack_args, **kwargs)

        here.note(task)
        message.headers |= {"argsrepr": "()", "kwargsrepr": arguments.text_of(task)}
        return handler(message, body, ended, reject, *args)

    return handle


def end_task(event: Attempts) -> str:
    """Return what Celery shows as the result of an event's only push.

    For a dead letter it raises `Nack`, and after another nack `Retry`, for which Celery sends no message, as the next
    attempt waits in Redis.
    """
    [attempt] = event.attempts
    if attempt.verdict not in (Verdict.NACK, Verdict.DEAD_LETTER):
        return success_text(attempt)
    fields = retried_fields(event.source, attempt)
    if attempt.verdict is Verdict.DEAD_LETTER:
        raise Nack(fields)
    raise Retry(fields["result"], Nack(fields), datetime.fromisoformat(fields["eta"]))


class PushRequest(Request):
    """A push, in the main process of a stock worker."""

    _of_nack: Mapping[str, Any] = {}

    def on_failure(self, exc_info: Any, *args: Any, **kwargs: Any) -> Any:
        error = exc_info.exception
        if isinstance(error, ExceptionWithTraceback):  # it was not pickled
            error = error.exc
        if isinstance(error, Retry):
            error = error.exc
        if isinstance(error, Nack):
            self._of_nack = error.fields
        return super().on_failure(exc_info, *args, **kwargs)

    def send_event(self, type: str, **fields: Any) -> None:
        if "result" in fields:
            fields["result"] = fields["result"].strip("'")  # Celery passes the text's representation
        super().send_event(type, **{**fields, **self._of_nack})


class Arguments:
    """Tells what Flower shows as the arguments of a push. For the main process of a worker, one thread at a time."""

    def __init__(self) -> None:
        #: By subscription: its name and topic, and until when they need not be read again.
        self._names: dict[int, tuple[str, str, float]] = {}

    def text_of(self, task: DeliverTask) -> str:
        name, topic, until = self._names.get(task.subscription_id, (f"(subscription {task.subscription_id})", "", 0.0))
        if until < time.monotonic():
            name, topic = self._read(task.subscription_id, name, topic)
        return arguments_text(name, topic, task.message["messageId"], task.attempt)

    def _read(self, subscription_id: int, name: str, topic: str) -> tuple[str, str]:
        """Read name and topic again. A deleted subscription keeps its last ones."""
        seconds = NAMES_SECONDS
        close_old_connections()
        try:
            if (settings := push_settings_of(subscription_id)) is not None:
                name, topic = settings.name, settings.topic
        except Error as error:
            logger.debug("the name of subscription %d was not read: %s", subscription_id, type(error).__name__)
            seconds = OUTAGE_SECONDS  # the deliveries of an outage must not wait for the database one by one
        if len(self._names) >= MAX_NAMES:
            self._names.clear()
        self._names[subscription_id] = name, topic, time.monotonic() + seconds
        return name, topic
