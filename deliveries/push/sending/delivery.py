"""The push worker's record of a message between fetch and settle."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from enum import Enum, auto
from functools import cache
from typing import Any

from deliveries.backlog.records import Lane
from deliveries.backlog.workerverbs import WorkerLease
from deliveries.push.sending.httpclient import PushResult
from deliveries.push.sending.plans import PushPlan
from deliveries.rules.outcome import Verdict, verdict
from deliveries.rules.payload import data_size
from deliveries.rules.taskmessage import DeliverTask, generation_of, reference, seek_of
from deliveries.store.regionholds import holds_now
from pushhub.common.tracing import TraceContext
from subscriptions.transforms.functions import Function

#: Characters of endpoints' failing answers that a process keeps in each period, if subscriptions ask for it: of all of
#: them, and of one, so that none takes it all.
PERIOD_SECONDS, ALL, ONE = 60.0, 1_000_000, 100_000
#: What the journal has instead of a further one.
NOT_KEPT = "(not kept: too many answers of this minute were)"


class KeptAnswers:
    """Counts what is kept in the present minute. Only one thread may use it."""

    def __init__(self, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._began = monotonic()
        self._kept: dict[int, int] = {}
        self._all = 0

    def keep(self, subscription_id: int, answer: str) -> str:
        """Return the answer if it may be kept, else NOT_KEPT."""
        now = self._monotonic()
        if now - self._began >= PERIOD_SECONDS:
            self._began, self._all = now, 0
            self._kept.clear()
        kept = self._kept.get(subscription_id, 0)
        if self._all + len(answer) > ALL or kept + len(answer) > ONE:
            return NOT_KEPT
        self._all += len(answer)
        self._kept[subscription_id] = kept + len(answer)
        return answer


@cache
def kept_answers() -> KeptAnswers:
    return KeptAnswers()


@dataclass(slots=True, eq=False, repr=False)
class Batch:
    """The messages of one fetch. Its record in Redis is removed when the last of them is settled."""

    name: str
    #: The worker's lease when it asked for the batch.
    lease: WorkerLease
    cell: int
    left: int = 0


@dataclass(slots=True, eq=False, repr=False)
class PushDelivery:
    """A delivery in this worker. `done` is the HTTP client's callback and runs on the engine's loop."""

    task: DeliverTask
    task_id: str
    _: KW_ONLY
    batch: Batch | None
    lane: Lane
    finish: Callable[[PushDelivery], None]
    #: Whether the worker serves it before those that are not: its endpoint acks within a second.
    is_prompt: bool = True
    message_id: int = field(init=False)
    #: Whether the payload was read from the database and does not go back to Redis.
    by_reference: bool = field(init=False)
    #: Bytes of the data, once the payload has been dropped.
    data_bytes: int = 0
    #: Bytes that count towards the worker's limit (admission.py).
    held_bytes: int = 0
    plan: PushPlan | None = None
    #: The result of the subscription's message transforms, until it is sent.
    transformed: Mapping[str, Any] | None = None
    #: The functions that gave it.
    transformed_by: Sequence[Function] = ()
    #: What the client returned for the request, while the answer is awaited.
    request: Any = None
    #: Whether somebody has ended the push, which may not have begun yet.
    is_cut: bool = False
    verdict: Verdict = Verdict.RELEASE
    finished: bool = False
    status: int = 0
    reason: str = ""
    latency_ms: float = 0.0
    #: The Retry-After of the response.
    retry_after_s: float = 0.0
    #: The beginning of a failing answer, if the subscription keeps those.
    answer: str = ""
    #: After a nack, the time until the next attempt.
    retry_in_ms: int = 0
    #: When the attempt ended, in seconds since 1970.
    ended: float = 0.0
    #: The publisher's trace, if it is sampled and traces are on.
    trace: TraceContext | None = None
    #: When the push began, in seconds since 1970, and for how many pushes Flower shows it from then on.
    started: float = 0.0
    shown: int = 0

    def __post_init__(self) -> None:
        self.message_id = self.task.message_id
        self.by_reference = self.task.is_reference

    def drop_payload(self) -> None:
        """Keep only the id, as the payload is in the database."""
        self.data_bytes = self.data_bytes or data_size(self.task.message)
        self.task = self.task._replace(message=reference(self.message_id))
        self.transformed = None
        self.by_reference = True

    def done(self, result: PushResult) -> None:
        self.request = None
        self.status = result.status
        self.latency_ms = result.latency_ms
        self.retry_after_s = result.retry_after_s
        if result.answer:
            self.answer = kept_answers().keep(self.lane.subscription_id, result.answer)
        self.settle_as(verdict(result.status, result.reason), result.reason)

    def settle_as(self, verdict: Verdict, reason: str = "") -> None:
        """End the delivery; only the first call counts."""
        if self.finished:
            return
        self.finished = True
        self.ended = time.time()
        self.verdict = verdict
        self.reason = reason
        self.finish(self)

    @property
    def generation(self) -> str:
        """The generation of the lane for which the message is sent."""
        return generation_of(self.task_id)

    def may_begin(self) -> bool:
        """Return whether the worker may begin to push a message.

        It is asked about ordered subscriptions (WorkerLease), and about all where regions are held by turns.
        """
        return holds_now(self.lane.region) and (self.batch is None or self.batch.lease.holds())

    @property
    def is_lost(self) -> bool:
        """Return whether another worker has taken the message over, if its subscription is ordered."""
        return self.batch is not None and self.batch.lease.is_lost

    @property
    def seek(self) -> int:
        """The last seek before the attempt that made the subscription owe the message, or 0."""
        return seek_of(self.task_id)

    @property
    def result_text(self) -> str:
        """The HTTP status or the reason, as text."""
        return self.reason or str(self.status)


class Step(Enum):
    """A step between fetch and settle."""

    #: Make the subscription's plan, and find memory for a large message and read it.
    PLAN = auto()
    #: Apply the subscription's message transforms.
    TRANSFORM = auto()
    PUSH = auto()


def next_step(delivery: PushDelivery, plan: PushPlan | None) -> Step:
    """Return the next step of a delivery that isn't settled; `plan` is its subscription's, if there is a valid one."""
    # Of a subscription without an endpoint, nobody reads the messages.
    if plan is None or (delivery.task.is_reference and plan.endpoint is not None):
        return Step.PLAN
    if plan.functions and (delivery.transformed is None or delivery.transformed_by != plan.functions):
        return Step.TRANSFORM
    return Step.PUSH
