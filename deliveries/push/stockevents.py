"""The pushes of a stock Celery worker in Flower: Celery sends their events, and here they get a push worker's words."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from billiard.einfo import ExceptionWithTraceback  # type: ignore[attr-defined]
from celery.exceptions import Retry
from celery.worker.request import Request
from django.db import Error, close_old_connections

from deliveries.push.sending.plans import MAX_NAMES
from deliveries.rules.outcome import Nack, Verdict
from deliveries.rules.taskmessage import DeliverTask
from deliveries.telemetry.events import Attempts
from deliveries.telemetry.sinks.flower import arguments_text, retried_fields, success_text
from subscriptions.selectors import push_settings_of

logger = logging.getLogger(__name__)

#: A subscription's topic is read again after this time, and sooner if the database was away.
NAMES_SECONDS = 60.0
OUTAGE_SECONDS = 1.0


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
