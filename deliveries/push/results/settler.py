"""The settler: settles the results that have arrived since its last turn, in the database first, then in Redis."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from operator import attrgetter
from typing import TYPE_CHECKING, TypeVar

import redis
from django.db import close_old_connections, connection

from deliveries.backlog.backlog import Backlog
from deliveries.backlog.late import forget_late
from deliveries.backlog.records import Lane, LaneFlow, Taken, grouped, work_key
from deliveries.push.results.gathering import Gathering
from deliveries.push.results.returning import settlement_of
from deliveries.push.results.storing import store_results
from deliveries.push.sending.delivery import Batch, PushDelivery
from deliveries.rules.outcome import Reason, Verdict
from pushhub.common.background import IDLE_SECONDS, LAST_PAUSE_SECONDS, BackgroundThread
from pushhub.common.jobs import Stopped, repeat_in_outages

if TYPE_CHECKING:
    from deliveries.push.worker import PushWorker

logger = logging.getLogger(__name__)

Result = TypeVar("Result")
#: Called after each turn with its deliveries and the new state of their lanes.
OnSettled = Callable[[Sequence[PushDelivery], Mapping[Lane, LaneFlow]], None]

#: Results per turn: a longer transaction would hold SQLite's write lock too long.
TURN_SIZE = 1000
#: Results for a node of a Cluster that is away wait so long for their next try. Other results don't.
NODE_AWAY_SECONDS = 0.5
#: Lanes per turn that are not prompt. Each takes a script of its own: if a turn had a thousand of them, the prompt
#: lanes would wait for their tokens.
LOW_LANES = 64


class Settler:
    """A thread that ends leases in batches. Results wait in it while the database or Redis is away."""

    def __init__(
        self,
        worker: str,
        *,
        on_settled: OnSettled,
        renew: Callable[[], object] = lambda: None,
        intake: PushWorker | None = None,
    ) -> None:
        """`intake` takes the next messages of ordering keys in. `renew` renews the worker's lease, or finds it lost."""
        self._intake = intake
        self._worker = worker
        self._on_settled = on_settled
        self._renew = renew
        self._results: list[PushDelivery] = []
        #: Results that the current turn has taken and not settled yet.
        self._taken: list[PushDelivery] = []
        #: Results that Redis refused, and when to try them again (time.monotonic).
        self._refused: list[PushDelivery] = []
        self._retry_at = 0.0
        self._gathering = Gathering()
        self._ready = threading.Event()
        #: Set by a result that ends the longer pause of quiet lanes.
        self._urgent = threading.Event()
        #: Set by the last result of all messages that the worker has: no others can gather.
        self._complete = threading.Event()
        self._dice = random.Random()  # noqa: S311 - jitter
        self._thread = BackgroundThread(
            "push-settler", self._turn, on_error=self._take_back, at_end=self._end, oldest_job=self._oldest_seconds
        )
        self._backlog = Backlog()

    def start(self) -> None:
        self._thread.start()

    def finish(self, delivery: PushDelivery) -> None:
        """Queue a result. This is called on the engine's loop, so it does nothing else."""
        waiting = len(self._results)
        self._results.append(delivery)
        if self._is_complete():
            self._complete.set()
        if not self._ready.is_set():
            self._ready.set()
        if not self._urgent.is_set() and not self._gathering.can_wait(
            delivery.lane, is_ack=delivery.verdict is Verdict.ACK, waiting=waiting
        ):
            self._urgent.set()

    def stop(self, timeout: float) -> None:
        """Settle the remaining results, then end the thread."""
        self._thread.stopping.set()
        self._ready.set()
        self._urgent.set()
        self._complete.set()
        self._thread.stop(timeout=timeout)

    def _turn(self) -> None:
        self._ready.wait(IDLE_SECONDS)
        self._ready.clear()
        if self._refused and time.monotonic() >= self._retry_at:
            self._results += self._refused
            self._refused = []
        began = time.monotonic()
        with suppress(Stopped):
            count, is_all = self._settle_some()
            if is_all:
                spent_seconds = time.monotonic() - began
                pause_seconds = self._gathering.pause_seconds(count, spent_seconds=spent_seconds)
                if not self._gathering.has_keys:
                    self._thread.stopping.wait(pause_seconds)
                elif not self._is_complete():
                    # The next message of an ordering key waits for the result of the one before.
                    self._complete.wait(pause_seconds)
                self._urgent.wait(self._gathering.quiet_seconds(count))

    def _is_complete(self) -> bool:
        """Return whether the results of all messages that the worker has are waiting."""
        return self._intake is not None and len(self._results) >= len(self._intake.stages.outstanding)

    def _oldest_seconds(self) -> float:
        firsts = [*self._taken[:1], *self._results[:1], *self._refused[:1]]
        return time.time() - min(delivery.ended for delivery in firsts) if firsts else 0.0

    def _end(self) -> None:
        """Settle the remaining results, with one try."""
        self._results += self._refused
        self._refused = []
        self._take_back()
        try:
            with suppress(Stopped):
                while self._results:
                    self._settle_some()
        finally:
            left = len(self._results) + len(self._taken) + len(self._refused)
            if left:
                # The heartbeat lapses and another worker takes these messages over: duplicates, but no loss.
                logger.warning("stopped with %d unsettled results", left)
            connection.close()

    def _take_back(self) -> None:
        """Return the results of a failed turn, to be settled in the next one."""
        self._results[:0] = self._taken
        self._taken = []
        self._ready.set()

    def _settle_some(self) -> tuple[int, bool]:
        """Settle waiting results, at most a turn. Return their number, and whether these were all that waited."""
        # The engine appends at the end while this method replaces what was there; both operations are atomic.
        self._urgent.clear()
        self._complete.clear()
        waiting = self._results[:]
        self._taken, left = next_turn(waiting)
        self._gathering.begin_turn()
        count = len(self._taken)
        self._results[: len(waiting)] = left
        if self._taken:
            self._settle(self._taken)
        if self._results:
            self._ready.set()
        return count, not left

    def _settle(self, deliveries: Sequence[PushDelivery]) -> None:
        """Settle these deliveries. An outage costs time, never a result; other failures only the lane at fault."""
        lanes = grouped(deliveries, attrgetter("lane"))
        # The tokens of prompt lanes come back first.
        lanes = dict(sorted(lanes.items(), key=lambda item: not item[1][0].is_prompt))
        batches = Counter(delivery.batch for delivery in deliveries if delivery.batch is not None)
        finished = grouped((batch for batch, count in batches.items() if batch.left == count), attrgetter("cell"))
        if not all(batch.lease.is_lost or batch.lease.holds() for batch in batches):
            with suppress(redis.RedisError):  # results reach the database whatever has become of Redis
                self._renew()
        _withdraw_late_nacks(deliveries)
        try:
            self._repeat_in_outages(lambda: store_results(lanes), count=len(deliveries))
        except Stopped:
            raise
        except Exception:
            close_old_connections()
            if len(lanes) > 1:
                return self._settle_apart(lanes)
            logger.exception("%d results cannot be stored; their messages are sent again", len(deliveries))
            _make_nacks(deliveries)
        try:
            flows, taken = self._repeat_in_outages(lambda: self._give_back(lanes, finished), count=len(deliveries))
        except Stopped:
            raise
        except Exception:
            if len(lanes) > 1:
                return self._settle_apart(lanes)
            logger.exception("Redis refused %d results; they will be tried again", len(deliveries))
            return self._put_off(deliveries, seconds=LAST_PAUSE_SECONDS)
        self._gathering.settled(flows)
        if len(flows) < len(lanes):
            # Nodes of a Cluster are away: the results of their cells wait, and those of others go on.
            self._put_off(
                [delivery for delivery in deliveries if delivery.lane not in flows], seconds=NODE_AWAY_SECONDS
            )
            deliveries = [delivery for delivery in deliveries if delivery.lane in flows]
            batches = Counter(delivery.batch for delivery in deliveries if delivery.batch is not None)
        for batch, count in batches.items():
            batch.left -= count
        self._leave_turn(deliveries)
        self._take_in(taken)
        _forget_ended(flows)
        return self._report(deliveries, flows)

    def _give_back(
        self, lanes: Mapping[Lane, Sequence[PushDelivery]], finished: Mapping[int, Sequence[Batch]]
    ) -> tuple[dict[Lane, LaneFlow], list[Taken]]:
        """Settle in Redis. Of lanes in which messages wait for their ordering keys, take in the next ones."""
        counts = Counter[tuple[str, int]]()
        for lane, deliveries in lanes.items():
            if self._gathering.waits_for_keys(lane):
                counts[lane.region, lane.cell] += len(deliveries)
        return self._backlog.settle_and_take(
            {lane: settlement_of(deliveries, self._dice, worker=self._worker) for lane, deliveries in lanes.items()},
            dice=self._dice.random(),
            finished={
                work_key(self._worker, cell=cell): [batch.name for batch in batches]
                for cell, batches in finished.items()
            },
            takes=self._intake.takes(counts) if self._intake is not None and counts else [],
        )

    def _take_in(self, taken: Sequence[Taken]) -> None:
        for batch in taken:
            try:
                assert self._intake is not None
                self._intake.taken(batch)
            except Exception:
                # The batch is put back when its worker ends. The results are settled whatever becomes of it.
                logger.exception("a batch of %d messages could not be taken in", len(batch.messages))

    def _settle_apart(self, lanes: Mapping[Lane, Sequence[PushDelivery]]) -> None:
        logger.exception("%d lanes could not be settled together; settling them one by one", len(lanes))
        for deliveries in lanes.values():
            self._settle(deliveries)

    def _put_off(self, deliveries: Sequence[PushDelivery], *, seconds: float) -> None:
        """Keep results that Redis did not take for a later turn."""
        self._refused += deliveries
        self._retry_at = time.monotonic() + seconds
        self._leave_turn(deliveries)

    def _leave_turn(self, deliveries: Sequence[PushDelivery]) -> None:
        """Remove these deliveries from the current turn, because they are settled or wait for a retry."""
        done = set(deliveries)
        self._taken = [delivery for delivery in self._taken if delivery not in done]

    def _report(self, deliveries: Sequence[PushDelivery], flows: Mapping[Lane, LaneFlow]) -> None:
        try:
            self._on_settled(deliveries, flows)
        except Exception:
            # An error of the listener must not make the deliveries settle again.
            logger.exception("%d settled deliveries could not be reported in full", len(deliveries))

    def _repeat_in_outages(self, call: Callable[[], Result], *, count: int) -> Result:
        """Repeat the call while the database or Redis is away. Raises Stopped if the thread is asked to stop."""
        return repeat_in_outages(call, stopping=self._thread.stopping, what=f"to settle {count} results")


def next_turn(waiting: Sequence[PushDelivery]) -> tuple[list[PushDelivery], list[PushDelivery]]:
    """Return the results of the next turn, and those that are left for later ones."""
    turn: list[PushDelivery] = []
    left: list[PushDelivery] = []
    low_lanes: set[Lane] = set()
    for delivery in waiting:
        has_place = delivery.is_prompt or delivery.lane in low_lanes or len(low_lanes) < LOW_LANES
        if not has_place or len(turn) == TURN_SIZE:
            left.append(delivery)
            continue
        turn.append(delivery)
        if not delivery.is_prompt:
            low_lanes.add(delivery.lane)
    return turn, left


def settle_now(deliveries: Sequence[PushDelivery], *, record: str = "") -> dict[Lane, LaneFlow]:
    """Settle once, in the caller's thread. Raises the errors of the database and of Redis."""
    lanes = grouped(deliveries, attrgetter("lane"))
    store_results(lanes)
    dice = random.Random()  # noqa: S311 - jitter
    settlements = {lane: settlement_of(deliveries, dice, record=record) for lane, deliveries in lanes.items()}
    flows = Backlog().settle(settlements, dice=dice.random(), finished={})
    _forget_ended(flows)
    return flows


def _forget_ended(flows: Mapping[Lane, LaneFlow]) -> None:
    """Forget what has ended and waits in lanes that were made anew. After a failure, it is sent again."""
    try:
        for lane, flow in flows.items():
            if flow.late is not None:
                forget_late(lane, flow.late)
    except Exception:
        logger.exception("messages that have ended wait in a lane that was made anew, and may be sent again")


def _make_nacks(deliveries: Sequence[PushDelivery]) -> None:
    """Turn these results into nacks, so that the messages are sent again: the database still owes them."""
    for delivery in deliveries:
        if delivery.verdict not in (Verdict.RELEASE, Verdict.DEAD_LETTER):
            delivery.verdict = Verdict.NACK
            delivery.reason = Reason.INTERNAL


def _withdraw_late_nacks(deliveries: Sequence[PushDelivery]) -> None:
    """Turn nacks of ordered messages that another worker has taken over into releases, which Redis ignores.

    The worker was frozen, so the time was probably up without the endpoint's fault. An ack is true all the same.
    """
    for delivery in deliveries:
        if delivery.verdict is Verdict.NACK and delivery.is_lost:
            push = delivery.plan.settings if delivery.plan else None
            if push is None or push.ordered:
                delivery.verdict = Verdict.RELEASE
