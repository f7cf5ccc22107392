"""What the push worker knows of a message between fetch and settle."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal

from deliveries.backlog.backlog import Lane
from deliveries.push.httpclient import PushResult
from deliveries.push.plans import PushPlan
from deliveries.rules.outcome import ACK_STATUSES, Reason
from deliveries.rules.payload import data_size
from deliveries.rules.taskmessage import DeliverTask, reference

#: a = ack, n = nack, r = release unsent, x = drop, d = nack that went to the dead-letter topic; those of settle.lua.
Code = Literal["a", "n", "r", "x", "d"]


class Batch:
    """Messages that one fetch took; its record in Redis goes when the last of them is settled."""

    __slots__ = ("left", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.left = 0


class Flight:
    """One delivery in this worker. `done` is the client's callback and runs on the engine's loop."""

    __slots__ = (
        "batch",
        "by_reference",
        "code",
        "data_bytes",
        "ended",
        "finish",
        "finished",
        "held_bytes",
        "lane",
        "latency_ms",
        "message_id",
        "plan",
        "reason",
        "retry_after_s",
        "shown",
        "started",
        "status",
        "task",
        "task_id",
    )

    def __init__(
        self, task: DeliverTask, task_id: str, *, batch: Batch | None, lane: Lane, finish: Callable[[Flight], None]
    ) -> None:
        self.task = task
        self.task_id = task_id
        self.message_id = task.message_id
        #: The payload was read from the database and does not go back to Redis.
        self.by_reference = task.is_reference
        #: Bytes of the data, once the payload has been dropped.
        self.data_bytes = 0
        #: Bytes that count against the worker's limit (admission.py).
        self.held_bytes = 0
        self.batch = batch
        self.lane = lane
        self.finish = finish
        self.plan: PushPlan | None = None
        self.code: Code = "r"
        self.finished = False
        self.status = 0
        self.reason = ""
        self.latency_ms = 0.0
        #: How long the endpoint asked to be left alone.
        self.retry_after_s = 0.0
        #: When the attempt was over, in seconds since 1970.
        self.ended = 0.0
        #: Whether Flower was told of its start, and when that was (seconds since 1970).
        self.shown = False
        self.started = 0.0

    def drop_payload(self) -> None:
        """Keep only the id: the payload is in the database."""
        self.data_bytes = self.data_bytes or data_size(self.task.message)
        self.task = self.task._replace(message=reference(self.message_id))
        self.by_reference = True

    def done(self, result: PushResult) -> None:
        self.status = result.status
        self.latency_ms = result.latency_ms
        self.retry_after_s = result.retry_after_s
        if result.reason == Reason.ABORTED:
            # This worker stops; nobody is to blame, and another one sends it again.
            self.settle_as("r", result.reason)
        else:
            self.settle_as("a" if not result.reason and result.status in ACK_STATUSES else "n", result.reason)

    def settle_as(self, code: Code, reason: str = "") -> None:
        """End it, once: what comes after the first end is ignored."""
        if self.finished:
            return
        self.finished = True
        self.ended = time.time()
        self.code = code
        self.reason = reason
        self.finish(self)

    @property
    def result_text(self) -> str:
        """HTTP status or bounded reason, for people."""
        return self.reason or str(self.status)
