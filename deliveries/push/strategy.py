"""The deliver task's strategy: in a push worker a message goes to the engine, elsewhere Celery runs the task."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from celery.worker.strategy import default


def deliver_strategy(task: Any, app: Any, consumer: Any, **kwargs: Any) -> Callable[..., Any]:
    """Called by Celery once a connection; returns what is called for every message of the task."""
    push_worker = getattr(consumer.controller, "push_worker", None)
    if push_worker is None or not push_worker.serves(consumer):
        handler: Callable[..., Any] = default(task, app, consumer, **kwargs)
        return handler
    take = push_worker.take
    revoked = consumer.controller.state.revoked

    def deliver_message(message: Any, body: Any, ack: Any, reject: Any, callbacks: Any) -> None:
        take(message, is_revoked=message.headers["id"] in revoked)

    return deliver_message
