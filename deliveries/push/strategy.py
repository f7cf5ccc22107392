"""The deliver task's strategy: a push worker hands messages to its engine; any other Celery worker runs the task."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from celery.worker.strategy import default

from deliveries.push import waker
from deliveries.push.stockevents import Arguments
from deliveries.rules.taskmessage import parse_body


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
