"""The deliver task's strategy: in a push worker a message goes to the engine, elsewhere Celery runs the task."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from celery.worker.strategy import default


def deliver_strategy(task: Any, app: Any, consumer: Any, **kwargs: Any) -> Callable[..., Any]:
    """Called by Celery once a connection; returns what is called for every message of the task."""
    push_worker = getattr(consumer.controller, "push_worker", None)
    handler: Callable[..., Any] = default(task, app, consumer, **kwargs)
    if push_worker is not None and push_worker.serves(consumer):
        # From now on the transport offers it each message of the task before Celery sees it: what Celery does for a
        # message (a message object, two promises, a look-up) costs as much as pushing it.
        push_worker.has_strategy = True
    return handler
