"""A message's way through a push worker, step by step. A stock worker takes the same steps (single.py).

| step | what it does | thread | next |
|---|---|---|---|
| fetch | makes a push delivery of each message of a batch | Celery's; the settler's for ordering keys | admit |
| plan | makes the plans of subscriptions | preparer | push, or admit if the message is a reference |
| admit | waits for memory for the payload, and reads it if it isn't here | preparer | push |
| transform | applies the subscription's functions | the sandboxes' | push |
| push | sends the request, or back to plan and transform if these are missing | engine's loop | settle |
| settle | writes results to the database, then to Redis, and tells of them | settler | |

Each step may settle a delivery instead, and none waits for another.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from django.conf import settings

from deliveries.backlog.default import default_backlog
from deliveries.backlog.records import Lane, LaneFlow
from deliveries.push.admission import Admission
from deliveries.push.preparer import Preparer
from deliveries.push.rejected import reject
from deliveries.push.results.attempts import attempts_of
from deliveries.push.results.settler import Settler
from deliveries.push.sending.delivery import Batch, PushDelivery
from deliveries.push.sending.engine import Engine
from deliveries.push.transformer import Transformer
from deliveries.rules.outcome import Verdict
from deliveries.rules.payload import wire_size
from deliveries.rules.taskmessage import parse_body
from deliveries.telemetry.sinks.endpointhealth import EndpointLog
from deliveries.telemetry.sinks.flower import Flower
from deliveries.telemetry.sinks.observing import observe
from subscriptions.transforms.functions import Function

if TYPE_CHECKING:
    from deliveries.push.worker import PushWorker

logger = logging.getLogger(__name__)

#: Copies in memory of a payload that came in the task: in the form that the next attempt needs, and in the push body.
COPIES = 2


class Arrival:
    """A batch that has arrived, and its deliveries with the memory that each needs."""

    def __init__(self, batch: Batch | None) -> None:
        self.batch = batch
        self.deliveries: list[tuple[PushDelivery, int]] = []


class Stages:
    """The steps of all deliveries that a push worker has. A step is called from the thread of the one before."""

    def __init__(
        self,
        worker: str,
        *,
        app: Any,
        hostname: str,
        revoked: Container[str],
        intake: PushWorker,
        renew: Callable[[], object],
        on_room: Callable[[], None],
    ) -> None:
        """`intake` and `renew` are the settler's. `on_room` is called when deliveries have left the worker."""
        self._worker = worker
        self._revoked = revoked
        self._on_room = on_room
        self._lanes: dict[tuple[int, str], Lane] = {}
        #: The lanes whose endpoints acked within a second when they were settled last.
        self._prompt_lanes: set[Lane] = set()
        self.outstanding: dict[str, PushDelivery] = {}
        # The steps call each other, so those that are made later are looked up when they are called.
        self.engine = Engine(
            unprepared=lambda deliveries: self.preparer.prepare(deliveries),
            transform=lambda deliveries: self.transformer.take_on(deliveries),
            starting=self._note_start,
            renew=lambda subscription_ids: self.preparer.renew(subscription_ids),
        )
        self.admission = Admission(
            settings.WORKER_OUTSTANDING_MB * 1_000_000, resume=lambda deliveries: self.preparer.read(deliveries)
        )
        self.preparer = Preparer(self.engine, self.admission)
        self.transformer = Transformer(
            functions_of=self._functions_of, resume=self.engine.accept, admit=self.admit_transformed
        )
        self.settler = Settler(worker, on_settled=self._end, renew=renew, intake=intake)
        self.flower = Flower(app, hostname, name_of=self.engine.plans.name_of)
        self.endpoints = EndpointLog()

    def start(self) -> None:
        self.flower.start()
        self.settler.start()
        self.preparer.start()
        self.engine.start()

    def fetch(self, arrival: Arrival, task_id: str, body: str | bytes) -> None:
        """Make a push delivery of a message of the batch, or drop it if its task was revoked."""
        delivery = self.read_task(arrival, task_id, body)
        if delivery is not None and delivery.task_id in self._revoked:
            delivery.settle_as(Verdict.DROP, "revoked")
        elif delivery is not None:
            arrival.deliveries.append((delivery, COPIES * len(body)))

    def read_task(self, arrival: Arrival, task_id: str, body: str | bytes) -> PushDelivery | None:
        """Return the push delivery of a message; None for one that can't be read."""
        batch = arrival.batch
        try:
            task = parse_body(body)
            lane = self._lane(task.subscription_id, task.region)
            is_prompt = lane in self._prompt_lanes
            delivery = PushDelivery(task, task_id, batch=batch, lane=lane, finish=self.settle, is_prompt=is_prompt)
        except (ValueError, TypeError, KeyError) as error:
            reject(repr(body)[:4096], reason=type(error).__name__)
            return None
        if batch is not None:
            batch.left += 1
        self.outstanding[task_id] = delivery
        return delivery

    def _lane(self, subscription_id: int, region: str) -> Lane:
        """Return the lane's object, the key of every settle; there is one per lane."""
        lane = self._lanes.get((subscription_id, region))
        if lane is None:
            lane = self._lanes[subscription_id, region] = Lane(int(subscription_id), str(region))
        return lane

    def accept(self, arrival: Arrival) -> None:
        if arrival.deliveries:
            inline = [(delivery, size) for delivery, size in arrival.deliveries if not delivery.by_reference]
            references = [delivery for delivery, _ in arrival.deliveries if delivery.by_reference]
            arrival.deliveries = []
            self.engine.accept([*self.admission.take(inline), *references])
        elif arrival.batch is not None and not arrival.batch.left:
            # No message of the batch could be decoded, so that no settle will remove its record.
            self.preparer.run(
                partial(default_backlog().finish, self._worker, arrival.batch.name, cell=arrival.batch.cell)
            )

    def admit_transformed(self, delivery: PushDelivery) -> bool:
        """Return whether there is memory for the transformed message. Otherwise the delivery waits."""
        return self.admission.grow(delivery, COPIES * wire_size(delivery.transformed or {}))

    def _functions_of(self, delivery: PushDelivery) -> Sequence[Function]:
        plan = self.engine.plans.get(delivery.lane.subscription_id, now=time.monotonic()) or delivery.plan
        return plan.functions if plan is not None else ()

    def _note_start(self, deliveries: Sequence[PushDelivery]) -> None:
        now = time.time()
        for delivery in deliveries:
            delivery.started = now
        weights = self.flower.sample(len(deliveries))
        for delivery, weight in zip(deliveries, weights, strict=False):
            delivery.shown = weight
        self.flower.started(attempts_of(deliveries[: len(weights)], {}, worker=self._worker))

    def settle(self, delivery: PushDelivery) -> None:
        """Settle a delivery that has its result, and give its memory to others."""
        self.settler.finish(delivery)
        self.admission.release(delivery)

    def _end(self, deliveries: Sequence[PushDelivery], flows: Mapping[Lane, LaneFlow]) -> None:
        for delivery in deliveries:
            # The next attempt may be outstanding already.
            if self.outstanding.get(delivery.task_id) is delivery:
                del self.outstanding[delivery.task_id]
        for lane, flow in flows.items():
            if flow.is_prompt:
                self._prompt_lanes.add(lane)
            else:
                self._prompt_lanes.discard(lane)
        observe(attempts_of(deliveries, flows, worker=self._worker), self.endpoints, self.flower)
        self._on_room()

    def terminate(self, task_ids: Iterable[str]) -> int:
        """Drop these deliveries, and end their pushes if they have begun. Return how many the worker had."""
        deliveries = [delivery for delivery in map(self.outstanding.get, task_ids) if delivery is not None]
        self.engine.cut(deliveries)
        return len(deliveries)

    def drain(self) -> None:
        """Wait for the outstanding pushes, hand back the unfinished ones, settle everything, and stop all threads."""
        deadline = time.monotonic() + settings.DRAIN_SECONDS
        while self.outstanding and time.monotonic() < deadline:
            time.sleep(0.05)
        unfinished = len(self.outstanding)
        self.transformer.stop()
        self.engine.stop()
        for delivery in list(self.outstanding.values()):
            delivery.settle_as(Verdict.RELEASE)
        if unfinished:
            logger.warning("%d pushes did not finish in %d s and were handed back", unfinished, settings.DRAIN_SECONDS)
        self.settler.stop(timeout=30)
        self.preparer.stop()
