"""The settler: takes whatever has finished since last time and settles it, the database first, then Redis."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TypeVar

from django.db import close_old_connections, connection

from deliveries.activity import note_activity
from deliveries.backlog.backlog import Backlog, Lane, LaneFlow, Settlement
from deliveries.deadletters import Forwarded, dead_letters_forward
from deliveries.push.flight import Batch, Flight
from deliveries.rules.outcome import Reason
from deliveries.rules.retry import countdown_ms
from deliveries.rules.taskmessage import TaskTemplate, escaped, reference
from deliveries.store import statements
from deliveries.store.outages import OUTAGES
from deliveries.store.writelock import write_transaction
from pushhub.common.background import IDLE_SECONDS, BackgroundThread
from pushhub.common.clock import utcnow
from pushhub.common.errors import describe

logger = logging.getLogger(__name__)

Result = TypeVar("Result")
#: What is told of each round: the flights, and how their lanes stand now.
OnSettled = Callable[[Sequence[Flight], Mapping[Lane, LaneFlow]], None]

#: One round settles at most that many results: a longer transaction would hold SQLite's write lock too long.
ROUND_SIZE = 1000
#: The pause after a round of few results is as long as the round took, and that long after one of many.
GATHER_SECONDS = 0.02
MANY = 64
FIRST_PAUSE_SECONDS = 0.05
LAST_PAUSE_SECONDS = 5.0


class _Stopped(Exception):
    """The settler was asked to stop while the database or Redis was away."""


class Settler:
    """A thread that ends leases in batches. Results wait here as long as the database or Redis is away."""

    def __init__(self, worker: str, *, on_settled: OnSettled) -> None:
        self._worker = worker
        self._on_settled = on_settled
        self._results: list[Flight] = []
        #: What the round under way took from the results and has not settled yet.
        self._taken: list[Flight] = []
        #: Results that Redis refused, and when to try them again (time.monotonic).
        self._refused: list[Flight] = []
        self._retry_at = 0.0
        self._ready = threading.Event()
        self._dice = random.Random()  # noqa: S311 - jitter
        self._thread = BackgroundThread("push-settler", self._round, on_error=self._take_back, at_end=self._end)
        self._backlog = Backlog()

    def start(self) -> None:
        self._thread.start()

    def finish(self, flight: Flight) -> None:
        """A result; called from the engine's loop, so it only notes it."""
        self._results.append(flight)
        if not self._ready.is_set():
            self._ready.set()

    def stop(self, timeout: float) -> None:
        """Settle what is there, then end."""
        self._thread.stopping.set()
        self._ready.set()
        self._thread.stop(timeout=timeout)

    def _round(self) -> None:
        self._ready.wait(IDLE_SECONDS)
        self._ready.clear()
        if self._refused and time.monotonic() >= self._retry_at:
            self._results += self._refused
            self._refused = []
        began = time.monotonic()
        with suppress(_Stopped):
            count = self._settle_some()
            if count < ROUND_SIZE:
                # Few results at a time cost a commit each, for which publishers wait: let some gather.
                spent = time.monotonic() - began
                self._thread.stopping.wait(GATHER_SECONDS if count >= MANY else min(spent, GATHER_SECONDS))

    def _end(self) -> None:
        """Settle what is left, trying once."""
        self._results += self._refused
        self._refused = []
        self._take_back()
        try:
            with suppress(_Stopped):
                while self._results:
                    self._settle_some()
        finally:
            left = len(self._results) + len(self._taken) + len(self._refused)
            if left:
                # The heartbeat lapses and another worker takes these messages back: duplicates, no loss.
                logger.warning("stopped with %d results not settled", left)
            connection.close()

    def _take_back(self) -> None:
        """What the round that failed had taken is settled in the next one."""
        self._results[:0] = self._taken
        self._taken = []
        self._ready.set()

    def _settle_some(self) -> int:
        """Settle what waits, as much as a round takes; returns how many."""
        # The engine appends at the end while this takes from the front: both are atomic.
        self._taken = self._results[:ROUND_SIZE]
        count = len(self._taken)
        del self._results[:count]
        if self._taken:
            self._settle(self._taken)
        if self._results:
            self._ready.set()
        return count

    def _settle(self, flights: Sequence[Flight]) -> None:
        """Settle these. An outage costs time, never a result; any other failure concerns the lane at fault only."""
        lanes = _by_lane(flights)
        batches = _count_batches(flights)
        finished = [batch.name for batch, count in batches.items() if batch.left == count]
        try:
            self._persistently(lambda: _write_down(lanes), count=len(flights))
        except _Stopped:
            raise
        except Exception:
            close_old_connections()
            if len(lanes) > 1:
                return self._settle_apart(lanes)
            logger.exception("%d results cannot be written down; their messages are sent again", len(flights))
            _make_nacks(flights)
        try:
            flows = self._persistently(
                lambda: _give_back(self._backlog, lanes, self._dice, finished={self._worker: finished}),
                count=len(flights),
            )
        except _Stopped:
            raise
        except Exception:
            if len(lanes) > 1:
                return self._settle_apart(lanes)
            logger.exception("Redis refused %d results; they are tried again", len(flights))
            self._refused += flights
            self._retry_at = time.monotonic() + LAST_PAUSE_SECONDS
            return self._drop(flights)
        for batch, count in batches.items():
            batch.left -= count
        self._drop(flights)
        return self._tell(flights, flows)

    def _settle_apart(self, lanes: Mapping[Lane, Sequence[Flight]]) -> None:
        logger.exception("%d lanes could not be settled together; now one by one", len(lanes))
        for flights in lanes.values():
            self._settle(flights)

    def _drop(self, flights: Sequence[Flight]) -> None:
        """The round is done with these."""
        done = set(flights)
        self._taken = [flight for flight in self._taken if flight not in done]

    def _tell(self, flights: Sequence[Flight], flows: Mapping[Lane, LaneFlow]) -> None:
        try:
            self._on_settled(flights, flows)
        except Exception:
            # They are settled: whoever is told of it must not make them settle again.
            logger.exception("the end of %d deliveries is not told in full", len(flights))

    def _persistently(self, call: Callable[[], Result], *, count: int) -> Result:
        """Try for as long as the database or Redis is away. Raises _Stopped when stopping ends it early."""
        pause = FIRST_PAUSE_SECONDS
        while True:
            try:
                return call()
            except OUTAGES as error:
                logger.warning("settling %d results again in %.2f s: %s", count, pause, describe(error))
                close_old_connections()
            self._thread.beat()
            if self._thread.stopping.wait(pause):
                raise _Stopped
            pause = min(pause * 2, LAST_PAUSE_SECONDS)


def settle_now(flights: Sequence[Flight]) -> dict[Lane, LaneFlow]:
    """Settle once, in the caller's thread; the errors of the database and of Redis are the caller's."""
    lanes = _by_lane(flights)
    _write(lanes).announce_all()
    return _give_back(Backlog(), lanes, random.Random(), finished={})  # noqa: S311 - jitter


def _give_back(
    backlog: Backlog, lanes: dict[Lane, list[Flight]], dice: random.Random, *, finished: dict[str, list[str]]
) -> dict[Lane, LaneFlow]:
    settlements = {lane: _settlement(flights, dice) for lane, flights in lanes.items()}
    return backlog.settle(settlements, dice=dice.random(), finished=finished)


def _settlement(flights: Sequence[Flight], dice: random.Random) -> Settlement:
    settlement = Settlement()
    for flight in flights:
        settlement.add(
            str(flight.task.message["messageId"]), flight.code, flight.latency_ms, attempt=flight.task.attempt
        )
        if flight.code == "n":
            settlement.returned += [_countdown_ms(flight, dice), next_task(flight, flight.task.attempt + 1)]
        elif flight.code == "r":
            settlement.returned += [0, next_task(flight, flight.task.attempt)]
    return settlement


def _countdown_ms(flight: Flight, dice: random.Random) -> int:
    settings = flight.plan.settings if flight.plan else None
    countdown = countdown_ms(
        flight.task.attempt,
        minimum_ms=settings.minimum_backoff_ms if settings else None,
        maximum_ms=settings.maximum_backoff_ms if settings else None,
        dice=dice.random(),
        at_least_ms=flight.retry_after_s * 1000,
    )
    return round(countdown)


def next_task(flight: Flight, attempt: int) -> str:
    """The Celery message of the next attempt; a payload that came by reference goes on by reference."""
    task = flight.task
    template = TaskTemplate(subscription_id=task.subscription_id, region=task.region, attempt=attempt)
    message = reference(flight.message_id) if flight.by_reference else task.message
    return template.render(str(task.message["messageId"]), escaped(message))


def _by_lane(flights: Sequence[Flight]) -> dict[Lane, list[Flight]]:
    lanes: dict[Lane, list[Flight]] = defaultdict(list)
    for flight in flights:
        lanes[flight.lane].append(flight)
    return lanes


def _write(lanes: dict[Lane, list[Flight]]) -> Forwarded:
    """Acks leave the database, nacks are counted there or become dead letters; in one transaction."""
    now = utcnow()
    forwarded: dict[Lane, Forwarded] = {}
    with write_transaction():
        for lane, flights in lanes.items():
            gone = [flight.message_id for flight in flights if flight.code in "ax"]
            if gone:
                statements.deliveries_delete(subscription_id=lane.subscription_id, region=lane.region, message_ids=gone)
            spent = {flight.message_id: flight.task.attempt for flight in flights if _is_spent(flight)}
            if spent:
                forwarded[lane] = dead_letters_forward(
                    subscription_id=lane.subscription_id, region=lane.region, attempts=spent
                )
            letters = forwarded[lane].message_ids if spent else set()
            nacks = [
                statements.Nack(flight.message_id, flight.task.attempt, flight.result_text)
                for flight in flights
                if flight.code == "n" and flight.message_id not in letters
            ]
            if nacks:
                statements.deliveries_nacked(
                    subscription_id=lane.subscription_id, region=lane.region, nacks=nacks, at=now
                )
    return _marked(lanes, forwarded)


def _write_down(lanes: dict[Lane, list[Flight]]) -> None:
    """Commit the results, then do what follows a commit. Where that fails it is made up for later: dead letters that
    were not offered are found by the audit, and activity is noted with the next ack.
    """
    forwarded = _write(lanes)
    used = {lane.subscription_id for lane in lanes if _has_ack(lanes[lane])}
    following: list[Callable[[], None]] = [*forwarded.announce, partial(note_activity, used)]
    for follow in following:
        try:
            follow()
        except Exception:
            logger.exception("what follows the commit of %d lanes failed", len(lanes))


def _make_nacks(flights: Sequence[Flight]) -> None:
    """Have Redis send these again after their countdown: the database still owes them."""
    for flight in flights:
        if flight.code != "r":
            flight.code = "n"
            flight.reason = Reason.INTERNAL


def _has_ack(flights: Sequence[Flight]) -> bool:
    return any(flight.code == "a" for flight in flights)


def _is_spent(flight: Flight) -> bool:
    """Whether a nack was the last attempt that a dead-letter policy allows."""
    settings = flight.plan.settings if flight.plan else None
    return flight.code == "n" and settings is not None and 0 < settings.max_delivery_attempts <= flight.task.attempt


def _marked(lanes: dict[Lane, list[Flight]], forwarded: dict[Lane, Forwarded]) -> Forwarded:
    """Once that is committed, dead letters are no nacks to be tried again."""
    every = Forwarded()
    for lane, found in forwarded.items():
        every.announce += found.announce
        for flight in lanes[lane]:
            if flight.code == "n" and flight.message_id in found.message_ids:
                flight.code = "d"
    return every


def _count_batches(flights: Sequence[Flight]) -> Counter[Batch]:
    return Counter(flight.batch for flight in flights if flight.batch is not None)
