"""Adds the push worker to Celery's workers, by Celery's bootsteps."""

from __future__ import annotations

import logging
from typing import Any

from celery import bootsteps
from celery.worker.consumer.connection import Connection as ConnectionStep

from deliveries.push import inspection
from deliveries.push.waker import WakerStep
from deliveries.push.worker import PushWorker
from pushhub.common.openfiles import raise_open_files

logger = logging.getLogger(__name__)


class PushWorkerStep(bootsteps.StartStopStep):
    """Starts the push worker before Celery's consumer and drains it after that has stopped."""

    requires = ("celery.worker.components:Pool",)

    def __init__(self, worker: Any, **kwargs: Any) -> None:
        self.enabled = any(queue.startswith("deliveries.") for queue in worker.app.amqp.queues.consume_from)
        worker.push_worker = None
        super().__init__(worker, **kwargs)

    def include_if(self, worker: Any) -> bool:
        return self.enabled and bool(worker.app.connection_for_read().transport_cls == "pushhub")

    def create(self, worker: Any) -> None:
        logger.info(
            "a push worker: one event loop for all pushes; with -b redis://... it would be a stock Celery worker"
        )
        raise_open_files()
        worker.push_worker = PushWorker(worker.app, worker.hostname, revoked=worker.state.revoked)

    def start(self, worker: Any) -> None:
        worker.push_worker.start()

    def stop(self, worker: Any) -> None:
        worker.push_worker.drain()

    def info(self, worker: Any) -> dict[str, Any]:  # type: ignore[override]  # the published type is wrong
        """Return what `inspect stats` shows of the push worker."""
        return {
            "push": {
                "worker": worker.push_worker.name,
                "outstanding": len(worker.push_worker.stages.outstanding),
                "held_bytes": worker.push_worker.stages.admission.held_bytes,
            }
        }


class FetchStep(bootsteps.StartStopStep):
    """Sets the fetcher of each new connection of the consumer."""

    requires = (ConnectionStep,)

    def start(self, consumer: Any) -> None:
        push_worker = consumer.controller.push_worker
        if push_worker is not None and push_worker.serves(consumer):
            consumer.connection.transport.fetcher = push_worker


def install(app: Any) -> None:
    """Add the push worker, or the waker of a stock worker, to the workers of a Celery application."""
    app.steps["worker"].update([PushWorkerStep, WakerStep])
    app.steps["consumer"].add(FetchStep)
    inspection.install()
