"""The push worker, which extends a Celery worker that consumes a `deliveries.*` queue through PushHub's transport.

Celery's own thread fetches. Others work beside it: the engine pushes, the settler settles, the preparer reads from the
database what pushes need, the pager reads backlogs, and the heart beats. Each waits out any outage of Redis or the
database by itself.
"""

from __future__ import annotations

import gc
import itertools
import logging
import os
import secrets
import threading
import time
from collections.abc import Container, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import redis
from celery import bootsteps
from celery.worker.consumer.connection import Connection as ConnectionStep
from django.conf import settings

from deliveries.backlog import reconcile, regions
from deliveries.backlog.backlog import CHANGES_KEPT, Backlog, Health, Lane, LaneFlow, PageRequest, Take, Taken, work_key
from deliveries.backlog.default import default_backlog
from deliveries.backlog.regions import regions_to_adopt
from deliveries.push import inspection
from deliveries.push.admission import Admission
from deliveries.push.batchrequests import BatchRequests
from deliveries.push.memory import return_large_blocks
from deliveries.push.pager import Pager
from deliveries.push.preparer import Preparer
from deliveries.push.rejected import reject
from deliveries.push.results.attempts import attempts_of
from deliveries.push.results.settler import Settler
from deliveries.push.sending.delivery import Batch, PushDelivery
from deliveries.push.sending.engine import Engine
from deliveries.push.sending.workerlease import WorkerLease
from deliveries.push.transformer import Transformer
from deliveries.push.transport import Transport, full_bell
from deliveries.push.waker import WakerStep
from deliveries.rules.outcome import Verdict
from deliveries.rules.payload import wire_size
from deliveries.rules.taskmessage import TASK_NAME, body_of, parse_any, parse_body, parse_own, task_id_of
from deliveries.telemetry.journal.journal import journal
from deliveries.telemetry.sinks.endpointhealth import EndpointLog
from deliveries.telemetry.sinks.flower import Flower
from deliveries.telemetry.sinks.observing import observe
from pushhub.common.background import BackgroundThread, oldest_job_seconds

logger = logging.getLogger(__name__)

#: Messages per fetch: many enough to make its cost small, few enough for workers to share a queue.
FETCH_SIZE = 300
HEARTBEAT_SECONDS = 1.0
#: Copies in memory of a payload that came in the task: in the form that the next attempt needs, and in the push body.
COPIES = 2


class Arrival:
    """A batch that has arrived, and its deliveries with the memory that each needs."""

    def __init__(self, batch: Batch | None) -> None:
        self.batch = batch
        self.deliveries: list[tuple[PushDelivery, int]] = []


class PushWorker:
    """There is one per process. Celery's thread calls `fetch_arguments`, `fetched`, `take` and `delivered`."""

    def __init__(self, app: Any, hostname: str, *, revoked: Container[str]) -> None:
        self.name = f"{hostname}:{os.getpid()}:{secrets.token_hex(3)}"
        self._lease_numbers = itertools.count(1)
        self.lease = self._new_lease()
        self.settler = Settler(self.name, on_settled=self._settled, renew=lambda: self._heart.renew(), intake=self)
        self.transformer = Transformer(
            resume=lambda deliveries: self.engine.accept(deliveries), admit=self._admit_transformed
        )
        self.engine = Engine(
            unprepared=lambda deliveries: self.preparer.prepare(deliveries),
            transform=self.transformer.take_on,
            starting=self._starting,
            renew=lambda subscription_ids: self.preparer.renew(subscription_ids),
        )
        self.admission = Admission(
            settings.WORKER_OUTSTANDING_MB * 1_000_000, resume=lambda deliveries: self.preparer.read(deliveries)
        )
        self.preparer = Preparer(self.engine, self.admission)
        self.pager = Pager()
        self.flower = Flower(app, hostname, name_of=self.engine.plans.name_of)
        self.endpoints = EndpointLog()
        self.outstanding: dict[str, PushDelivery] = {}
        #: Regions without a living worker of their own, which this worker has taken over.
        self.adopted: tuple[str, ...] = ()
        #: Regions whose queues the worker consumes, as far as it has requested their messages yet.
        self._own_regions: set[str] = set()
        #: Those whose messages it has requested since the last heartbeat.
        self._requested_regions: set[str] = set()
        self._heart = Heart(self)
        self._requests = BatchRequests()
        #: The regions whose queues Celery consumes.
        self._consumed: tuple[str, ...] = ()
        #: The batch that Celery's thread hands over message by message.
        self._arrival = Arrival(None)
        self._lanes: dict[tuple[int, str], Lane] = {}
        self._epoch = 0
        self._was_full = False
        self._stopping = False
        self._revoked = revoked
        #: Whether Celery has the deliver task's strategy (strategy.py).
        self.has_strategy = False

    def serves(self, consumer: Any) -> bool:
        return isinstance(consumer.connection.transport, Transport)

    def start(self) -> None:
        # Millions of short-lived objects have hardly any cycles: frequent collections would take 5 % of the time.
        gc.freeze()
        gc.set_threshold(50_000, 20, 100)
        return_large_blocks()
        self.flower.start()
        self.settler.start()
        self.preparer.start()
        self.pager.start()
        self.engine.start()
        self._heart.start()  # the first fetch needs the lease

    # Called by the transport (transport.Fetcher).

    def fetch_arguments(self, region: str, *, is_own: bool) -> tuple[str, str, int, int, str]:
        if is_own:
            self._own_regions.add(region)
            self._requested_regions.add(region)
        room = settings.WORKER_OUTSTANDING - len(self.outstanding)
        self._was_full = room <= 0
        batch = self._requests.add(self.lease) if room > 0 else self._requests.unused()
        return work_key(self.name), batch, max(min(room, FETCH_SIZE), 0), settings.BACKLOG_LIMIT, self.lease.name

    def fetched(self, region: str, batch: str, messages: Sequence[bytes], *, epoch: int, pages: list[bytes]) -> None:
        if epoch != self._epoch:
            self._refresh(epoch)
        for request in PageRequest.parse_all(pages):
            self.pager.page(request)
        self._arrival = self._arrived(batch, messages)

    def _arrived(self, batch: str, messages: Sequence[bytes]) -> Arrival:
        lease = self._requests.arrived(batch, lease=self.lease)
        return Arrival(Batch(batch, lease) if messages else None)

    def consume(self, regions: Sequence[str]) -> None:
        self._consumed = tuple(regions)

    def take(self, message: dict[str, Any]) -> bool:
        headers = message["headers"]
        return headers["task"] == TASK_NAME and self.take_delivery(task_id_of(headers), body_of(message))

    def take_delivery(self, task_id: str, body: str | bytes) -> bool:
        if not self.has_strategy:
            return False
        self._take(self._arrival, task_id, body)
        return True

    def _take(self, arrival: Arrival, task_id: str, body: str | bytes) -> None:
        delivery = self._delivery(arrival.batch, task_id, body)
        if delivery is not None and delivery.task_id in self._revoked:
            delivery.settle_as(Verdict.DROP, "revoked")
        elif delivery is not None:
            arrival.deliveries.append((delivery, COPIES * len(body)))

    def hand_back(self, message: dict[str, Any]) -> None:
        delivery = self._delivery(self._arrival.batch, task_id_of(message["headers"]), body_of(message))
        if delivery is not None:
            delivery.settle_as(Verdict.RELEASE)

    def ring(self, region: str) -> None:
        try:
            default_backlog().ring(region)
        except redis.RedisError:
            logger.debug("no ring: Redis is away")

    def _delivery(self, batch: Batch | None, task_id: str, body: str | bytes) -> PushDelivery | None:
        try:
            task = parse_body(body)
            lane = self._lane(task.subscription_id, task.region)
            delivery = PushDelivery(task, task_id, batch=batch, lane=lane, finish=self._finished)
        except (ValueError, TypeError, KeyError) as error:
            reject(repr(body)[:4096], reason=type(error).__name__)
            return None
        if batch is not None:
            batch.left += 1
        self.outstanding[task_id] = delivery
        return delivery

    def delivered(self) -> None:
        self._accept(self._arrival)
        self._arrival.deliveries = []

    def _accept(self, arrival: Arrival) -> None:
        if arrival.deliveries:
            inline = [(delivery, size) for delivery, size in arrival.deliveries if not delivery.by_reference]
            references = [delivery for delivery, _ in arrival.deliveries if delivery.by_reference]
            self.engine.accept([*self.admission.take(inline), *references])
        elif arrival.batch is not None and not arrival.batch.left:
            # No message of the batch could be decoded, so that no settle will remove its record.
            self.preparer.run(partial(default_backlog().finish, self.name, arrival.batch.name))

    def undecodable(self, message: bytes) -> None:
        reject(repr(message)[:4096], reason="not JSON")

    def _lane(self, subscription_id: int, region: str) -> Lane:
        """Return the lane's object, the key of every settle; there is one per lane."""
        lane = self._lanes.get((subscription_id, region))
        if lane is None:
            lane = self._lanes[subscription_id, region] = Lane(int(subscription_id), str(region))
        return lane

    def _refresh(self, epoch: int) -> None:
        """Forget the plans of subscriptions that have changed.

        Forget all plans if Redis was wiped and counts anew, or no longer knows which subscriptions have changed.
        """
        try:
            # More changes may follow before the changes are read, so half of those that are kept count.
            if not epoch - CHANGES_KEPT // 2 <= self._epoch <= epoch:
                self.engine.plans.forget_all()
            else:
                self.engine.plans.forget(default_backlog().changed_since(self._epoch))
            self._epoch = epoch
        except redis.RedisError:
            self.engine.plans.forget_all()

    # Called by the settler (settler.Intake).

    def takes(self, counts: Mapping[str, int]) -> list[Take]:
        if self._stopping:
            return []
        lease = self.lease
        return [
            Take(work_key(self.name), region, self._requests.add(lease), min(count, FETCH_SIZE), lease.name)
            for region, count in counts.items()
            if region in self._consumed or region in self.adopted
        ]

    def outstanding_count(self) -> int:
        return len(self.outstanding)

    def taken(self, taken: Taken) -> None:
        arrival = self._arrived(taken.batch, taken.messages)
        if taken.epoch != self._epoch:
            self._refresh(taken.epoch)
        for message in taken.messages:
            try:
                self._take(arrival, *(parse_own(message) or parse_any(message)))
            except (ValueError, TypeError, KeyError):
                self.undecodable(message)
        self._accept(arrival)

    # Called from the other threads.

    def _new_lease(self) -> WorkerLease:
        return WorkerLease(f"{self.name}/{next(self._lease_numbers)}")

    def lose_lease(self) -> None:
        """Get another lease, as other workers have the ordered messages that were fetched with this one."""
        self.lease.lose()
        self.lease = self._new_lease()

    def regions_served(self) -> set[str]:
        """Return the worker's own regions whose messages it has requested since the last call."""
        regions, self._requested_regions = self._requested_regions, set()
        return regions

    def batches_lost(self) -> list[str]:
        return self._requests.lost()

    def adopt(self, regions: tuple[str, ...]) -> None:
        """Serve these regions, but for the worker's own, instead of those adopted before.

        After a stop of all workers the worker's own regions are silent too, until it has requested their messages.
        """
        if not self._own_regions:
            return
        regions = tuple(region for region in regions if region not in self._own_regions)
        if regions != self.adopted:
            logger.warning("regions of other workers that this worker serves now: %s", ", ".join(regions) or "none")
            self.adopted = regions

    def _admit_transformed(self, delivery: PushDelivery) -> bool:
        """Return whether there is memory for the transformed message of a delivery. Otherwise the delivery waits."""
        return self.admission.grow(delivery, COPIES * wire_size(delivery.transformed or {}))

    def _starting(self, deliveries: Sequence[PushDelivery]) -> None:
        now = time.time()
        for delivery in deliveries:
            delivery.started = now
        weights = self.flower.sample(len(deliveries))
        for delivery, weight in zip(deliveries, weights, strict=False):
            delivery.shown = weight
        self.flower.started(attempts_of(deliveries[: len(weights)], {}, worker=self.name))

    def _finished(self, delivery: PushDelivery) -> None:
        self.settler.finish(delivery)
        self.admission.release(delivery)

    def _settled(self, deliveries: Sequence[PushDelivery], flows: Mapping[Lane, LaneFlow]) -> None:
        for delivery in deliveries:
            # The next attempt may be outstanding already.
            if self.outstanding.get(delivery.task_id) is delivery:
                del self.outstanding[delivery.task_id]
        observe(attempts_of(deliveries, flows, worker=self.name), self.endpoints, self.flower)
        if self._was_full and not self._stopping:
            try:
                default_backlog().client.lpush(full_bell(work_key(self.name)), "1")
            except redis.RedisError:
                logger.debug("no ring: Redis is away")

    def terminate(self, task_ids: Iterable[str]) -> int:
        """Drop these deliveries, and end their pushes if they have begun. Return how many the worker had."""
        deliveries = [delivery for delivery in map(self.outstanding.get, task_ids) if delivery is not None]
        self.engine.cut(deliveries)
        return len(deliveries)

    # Shutdown.

    def drain(self) -> None:
        """Wait for the outstanding pushes, hand back the unfinished ones, settle everything, and stop all threads."""
        self._stopping = True
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
        self.pager.stop()
        self._heart.stop()
        self.flower.stop()
        if (process_journal := journal()) is not None:
            process_journal.close()


class Heart:
    """Renews this worker's heartbeat, takes over messages and regions of dead workers, and notices a wiped Redis."""

    def __init__(self, worker: PushWorker) -> None:
        self._worker = worker
        self._backlog = Backlog()
        self._was_away = False
        self._lock = threading.Lock()
        self._thread = BackgroundThread("push-heart", self._beat)

    def start(self) -> None:
        with suppress(redis.RedisError):  # the thread tries again
            self.renew()
        self._thread.start()

    def stop(self) -> None:
        """Stop the heartbeat; after a while the other workers take over what this worker still holds."""
        self._thread.stop(timeout=10)
        try:
            default_backlog().leave(self._worker.name, lease=self._worker.lease.name)
        except redis.RedisError:
            logger.debug("not signed off: Redis is away")

    def renew(self) -> Health:
        """Renew the heartbeat and the worker's lease; if that is lost, get another one. Raises redis.RedisError."""
        with self._lock:
            regions = self._worker.regions_served()
            lease = self._worker.lease
            was_new = lease.is_new
            health = self._renew(regions)
            if not health.holds_lease:
                self._worker.lose_lease()
                health = self._renew(regions)
            if was_new or self._worker.lease is not lease:
                for region in regions:  # the worker got no messages meanwhile
                    self._backlog.ring(region)
            return health

    def _renew(self, regions: set[str]) -> Health:
        lease, asked_at = self._worker.lease, time.monotonic()
        health = self._backlog.beat(
            self._worker.name,
            oldest_job_seconds=oldest_job_seconds(),
            lease=lease.name,
            is_new_lease=lease.is_new,
            regions=regions,
        )
        if health.holds_lease:
            lease.renewed(asked_at)
        return health

    def _beat(self) -> None:
        try:
            health = self.renew()
            self._worker.adopt(regions_to_adopt(health.silent_regions))
            if health.put_back:
                logger.warning("took over %d messages of a worker that died", health.put_back)
            if lost := self._worker.batches_lost():
                count = self._backlog.put_back(self._worker.name, lost)
                if count:
                    logger.warning("put back %d messages of a fetch whose reply was lost", count)
            if health.was_wiped:
                self._worker.pager.run(_rebuild)
            elif self._was_away:
                self._worker.pager.run(_audit)
            self._was_away = False
            self._worker.endpoints.report_recovered()
        except redis.RedisError as error:
            self._was_away = True
            logger.warning("no heartbeat", exc_info=error)
        self._thread.stopping.wait(HEARTBEAT_SECONDS)


def _rebuild() -> None:
    reconcile.rebuild()


def _audit() -> None:
    reconcile.audit()
    regions.audit_regions()


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
                "outstanding": len(worker.push_worker.outstanding),
                "held_bytes": worker.push_worker.admission.held_bytes,
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
