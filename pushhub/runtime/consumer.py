"""Celery's consumer, for all of PushHub's workers."""

from __future__ import annotations

import time
import warnings
from typing import Any

from celery.exceptions import CPendingDeprecationWarning
from celery.worker import consumer

from pushhub.common.outages import outage_of

#: How long a worker waits before it tries again what an outage has prevented. If Redis can't be reached, it waits while
#: it connects.
PAUSE_SECONDS = 1.0

#: The published types know neither the nested class nor the attributes.
BaseConsumer: Any = consumer.Consumer


class Consumer(BaseConsumer):  # type: ignore[misc]
    """Waits out each outage of Redis.

    Celery's own consumer knows of lost connections only. A Redis that is full or read-only would end the worker.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # At each new connection, Celery warns of a default that PushHub doesn't use.
        warnings.filterwarnings("ignore", category=CPendingDeprecationWarning)

    class Blueprint(BaseConsumer.Blueprint):  # type: ignore[misc]
        def start(self, parent: Any) -> None:
            try:
                super().start(parent)
            except Exception as error:
                if outage_of(error) is None or isinstance(error, parent.connection_errors):
                    raise
                time.sleep(PAUSE_SECONDS)
                # Celery connects again after this kind of error.
                raise OSError("waiting for the end of an outage") from error
