"""The settler: settles the results that have arrived since its last turn, in the database first, then in Redis."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from operator import attrgetter
from typing import Protocol, TypeVar

import redis
from django.conf import settings
from django.db import close_old_connections, connection

from deliveries.activity import note_activity
from deliveries.backlog.backlog import Backlog, Lane, LaneFlow, Settlement, Take, Taken, grouped
from deliveries.deadletters.forwarding import Forwarded, forward_dead_letters, is_spent, usable_topic_id
from deliveries.push.results.gathering import Gathering
from deliveries.push.sending.flight import Batch, Flight
from deliveries.rules.outcome import Reason, Verdict
from deliveries.rules.payload import LEAN_BYTES, wire_size
from deliveries.rules.retry import countdown_ms
from deliveries.rules.taskmessage import TaskTemplate, escape_message, reference
from deliveries.store import statements
from deliveries.store.writelock import write_transaction
from pushhub.common.background import IDLE_SECONDS, BackgroundThread
from pushhub.common.clock import utcnow
from pushhub.common.jobs import LAST_PAUSE_SECONDS, Stopped, persistently

logger = logging.getLogger(__name__)

Result = TypeVar("Result")
#: Called after each turn with its flights and the new state of their lanes.
OnSettled = Callable[[Sequence[Flight], Mapping[Lane, LaneFlow]], None]

#: Results per turn: a longer transaction would hold SQLite's write lock too long.
TURN_SIZE = 1000
NO_LONGER_OWED = frozenset({Verdict.ACK, Verdict.DROP})


class Intake(Protocol):
    """What the settler needs of the push worker to take the next messages of ordering keys in."""

    def takes(self, counts: Mapping[str, int]) -> list[Take]:
        """Return what to take of the queues of these regions, if the worker serves them: at most so many messages."""

    def outstanding_count(self) -> int:
        """Return how many messages the worker has whose results were not reported as settled."""

    def taken(self, taken: Taken) -> None:
        """Push the messages of a batch."""


class Settler:
    """A thread that ends leases in batches. Results wait in it while the database or Redis is away."""

    def __init__(
        self,
        worker: str,
        *,
        on_settled: OnSettled,
        renew: Callable[[], object] = lambda: None,
        intake: Intake | None = None,
    ) -> None:
        """`renew` renews the worker's lease, or finds out that it is lost."""
        self._intake = intake
        self._worker = worker
        self._on_settled = on_settled
        self._renew = renew
        self._results: list[Flight] = []
        #: Results that the current turn has taken and not settled yet.
        self._taken: list[Flight] = []
        #: Results that Redis refused, and when to try them again (time.monotonic).
        self._refused: list[Flight] = []
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

    def finish(self, flight: Flight) -> None:
        """Queue a result. This is called on the engine's loop, so it does nothing else."""
        waiting = len(self._results)
        self._results.append(flight)
        if self._is_complete():
            self._complete.set()
        if not self._ready.is_set():
            self._ready.set()
        if not self._urgent.is_set() and not self._gathering.can_wait(
            flight.lane, is_ack=flight.verdict is Verdict.ACK, waiting=waiting
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
            count = self._settle_some()
            if count < TURN_SIZE:
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
        return self._intake is not None and len(self._results) >= self._intake.outstanding_count()

    def _oldest_seconds(self) -> float:
        firsts = [*self._taken[:1], *self._results[:1], *self._refused[:1]]
        return time.time() - min(flight.ended for flight in firsts) if firsts else 0.0

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

    def _settle_some(self) -> int:
        """Settle waiting results, at most a turn, and return their number."""
        # The engine appends at the end while this method takes from the front; both operations are atomic.
        self._urgent.clear()
        self._complete.clear()
        self._taken = self._results[:TURN_SIZE]
        self._gathering.begin_turn()
        count = len(self._taken)
        del self._results[:count]
        if self._taken:
            self._settle(self._taken)
        if self._results:
            self._ready.set()
        return count

    def _settle(self, flights: Sequence[Flight]) -> None:
        """Settle these flights. An outage costs time, never a result; other failures affect only the lane at fault."""
        lanes = grouped(flights, attrgetter("lane"))
        batches = _count_batches(flights)
        finished = [batch.name for batch, count in batches.items() if batch.left == count]
        if not all(batch.lease.is_lost or batch.lease.holds() for batch in batches):
            with suppress(redis.RedisError):  # results reach the database whatever has become of Redis
                self._renew()
        _withdraw_late_nacks(flights)
        try:
            self._persistently(lambda: _store(lanes), count=len(flights))
        except Stopped:
            raise
        except Exception:
            close_old_connections()
            if len(lanes) > 1:
                return self._settle_apart(lanes)
            logger.exception("%d results cannot be stored; their messages are sent again", len(flights))
            _make_nacks(flights)
        try:
            flows, taken = self._persistently(lambda: self._give_back(lanes, finished), count=len(flights))
        except Stopped:
            raise
        except Exception:
            if len(lanes) > 1:
                return self._settle_apart(lanes)
            logger.exception("Redis refused %d results; they will be tried again", len(flights))
            self._refused += flights
            self._retry_at = time.monotonic() + LAST_PAUSE_SECONDS
            return self._leave_turn(flights)
        self._gathering.settled(flows)
        for batch, count in batches.items():
            batch.left -= count
        self._leave_turn(flights)
        self._take_in(taken)
        return self._report(flights, flows)

    def _give_back(
        self, lanes: Mapping[Lane, Sequence[Flight]], finished: Sequence[str]
    ) -> tuple[dict[Lane, LaneFlow], list[Taken]]:
        """Settle in Redis. Of lanes in which messages wait for their ordering keys, take in the next ones."""
        counts = Counter[str]()
        for lane, flights in lanes.items():
            if self._gathering.waits_for_keys(lane):
                counts[lane.region] += len(flights)
        return self._backlog.settle_and_take(
            {lane: _settlement(flights, self._dice, worker=self._worker) for lane, flights in lanes.items()},
            dice=self._dice.random(),
            finished={self._worker: list(finished)},
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

    def _settle_apart(self, lanes: Mapping[Lane, Sequence[Flight]]) -> None:
        logger.exception("%d lanes could not be settled together; settling them one by one", len(lanes))
        for flights in lanes.values():
            self._settle(flights)

    def _leave_turn(self, flights: Sequence[Flight]) -> None:
        """Remove these flights from the current turn, because they are settled or wait for a retry."""
        done = set(flights)
        self._taken = [flight for flight in self._taken if flight not in done]

    def _report(self, flights: Sequence[Flight], flows: Mapping[Lane, LaneFlow]) -> None:
        try:
            self._on_settled(flights, flows)
        except Exception:
            # An error of the listener must not make the flights settle again.
            logger.exception("%d settled deliveries could not be reported in full", len(flights))

    def _persistently(self, call: Callable[[], Result], *, count: int) -> Result:
        """Repeat the call while the database or Redis is away. Raises Stopped if the thread is asked to stop."""
        return persistently(call, stopping=self._thread.stopping, what=f"to settle {count} results")


def settle_now(flights: Sequence[Flight]) -> dict[Lane, LaneFlow]:
    """Settle once, in the caller's thread. Raises the errors of the database and of Redis."""
    lanes = grouped(flights, attrgetter("lane"))
    _write(lanes).announce_all()
    dice = random.Random()  # noqa: S311 - jitter
    settlements = {lane: _settlement(flights, dice, worker="") for lane, flights in lanes.items()}
    return Backlog().settle(settlements, dice=dice.random(), finished={})


def _settlement(flights: Sequence[Flight], dice: random.Random, *, worker: str) -> Settlement:
    settlement = Settlement()
    for flight in flights:
        settlement.add(
            str(flight.task.message["messageId"]),
            flight.verdict,
            flight.latency_ms,
            attempt=flight.task.attempt,
            generation=flight.generation,
            lease=flight.batch.lease.name if flight.batch is not None else "",
            batch=f"{worker}/{flight.batch.name}" if flight.batch is not None else "",
        )
        if flight.verdict is Verdict.NACK:
            flight.retry_in_ms = _countdown_ms(flight, dice)
            settlement.returned += [flight.retry_in_ms, next_task(flight, flight.task.attempt + 1)]
        elif flight.verdict is Verdict.RELEASE:
            settlement.returned += [0, next_task(flight, flight.task.attempt)]
    return settlement


def _countdown_ms(flight: Flight, dice: random.Random) -> int:
    push = flight.plan.settings if flight.plan else None
    countdown = countdown_ms(
        flight.task.attempt,
        minimum_ms=push.minimum_backoff_ms if push else None,
        maximum_ms=push.maximum_backoff_ms if push else None,
        dice=dice.random(),
        at_least_ms=flight.retry_after_s * 1000,
    )
    scaled: float = settings.TIME_SCALE * countdown
    return round(scaled)


def next_task(flight: Flight, attempt: int) -> str:
    """Return the Celery message of the next attempt, with a reference unless the message is small."""
    task = flight.task
    template = TaskTemplate(
        subscription_id=task.subscription_id,
        region=task.region,
        attempt=attempt,
        generation=flight.generation,
        seek=flight.seek,
    )
    is_reference = flight.by_reference or wire_size(task.message) > LEAN_BYTES
    message = reference(flight.message_id) if is_reference else task.message
    return template.render(str(task.message["messageId"]), escape_message(message))


def _write(lanes: dict[Lane, list[Flight]]) -> Forwarded:
    """Delete acked deliveries, and count nacks or forward them as dead letters, in one transaction.

    If a power cut undoes it, the messages are sent again.
    """
    now = utcnow()
    forwarded: list[tuple[list[Flight], Forwarded]] = []
    unowed: list[Flight] = []
    topic_ids = {lane: usable_topic_id(lane.subscription_id) for lane in lanes if any(map(_is_spent, lanes[lane]))}
    with write_transaction(durable=False):
        for lane, flights in lanes.items():
            for seek, sought in grouped(flights, attrgetter("seek")).items():
                topic_id = topic_ids.get(lane)
                if letters := _write_lane(lane, sought, topic_id=topic_id, seek=seek, now=now, unowed=unowed):
                    forwarded.append((sought, letters))
    for flight in unowed:
        flight.verdict = Verdict.DROP
    return _marked(forwarded)


def _write_lane(
    lane: Lane,
    flights: Sequence[Flight],
    *,
    topic_id: int | None,
    seek: int,
    now: datetime,
    unowed: list[Flight],
) -> Forwarded | None:
    """Do as `_write` with attempts of one lane that had the same `seek`. Return what was forwarded.

    Nacks of messages that are no longer owed are added to `unowed`.
    """
    settled_ids = [flight.message_id for flight in flights if flight.verdict in NO_LONGER_OWED]
    if settled_ids:
        statements.delete_deliveries(
            subscription_id=lane.subscription_id, region=lane.region, message_ids=settled_ids, seek=seek
        )
    last_flights = [flight for flight in flights if _is_spent(flight)]
    forwarded = None
    if last_flights:
        forwarded = forward_dead_letters(
            subscription_id=lane.subscription_id,
            region=lane.region,
            attempts={flight.message_id: flight.task.attempt for flight in last_flights},
            topic_id=topic_id,
            seek=seek,
            results={flight.message_id: flight.result_text for flight in last_flights},
        )
    letters = forwarded.message_ids if forwarded else set()
    nacked = [flight for flight in flights if flight.verdict is Verdict.NACK and flight.message_id not in letters]
    if nacked:
        unowed += _note_nacks(lane, nacked, seek=seek, now=now)
    return forwarded


def _note_nacks(lane: Lane, flights: Sequence[Flight], *, seek: int, now: datetime) -> list[Flight]:
    """Count nacks in the database. Return those of messages that are not owed, as an earlier attempt was acked late."""
    nacks = [statements.Nack(flight.message_id, flight.task.attempt, flight.result_text) for flight in flights]
    count = statements.deliveries_nacked(
        subscription_id=lane.subscription_id, region=lane.region, nacks=nacks, at=now, seek=seek
    )
    if count == len(nacks):
        return []
    ids = [flight.message_id for flight in flights]
    owed = statements.still_waiting(subscription_id=lane.subscription_id, region=lane.region, message_ids=ids)
    return [flight for flight in flights if flight.message_id not in owed]


def _store(lanes: dict[Lane, list[Flight]]) -> None:
    """Commit the results, then offer dead letters and note activity.

    A failure after the commit is harmless: the audit finds dead letters that were not offered, and the next ack notes
    the activity.
    """
    forwarded = _write(lanes)
    used = {lane.subscription_id for lane in lanes if _has_ack(lanes[lane])}
    following: list[Callable[[], None]] = [*forwarded.announce, partial(note_activity, used)]
    for follow in following:
        try:
            follow()
        except Exception:
            logger.exception("a step after the commit of %d lanes failed", len(lanes))


def _make_nacks(flights: Sequence[Flight]) -> None:
    """Turn these results into nacks, so that the messages are sent again: the database still owes them."""
    for flight in flights:
        if flight.verdict is not Verdict.RELEASE:
            flight.verdict = Verdict.NACK
            flight.reason = Reason.INTERNAL


def _withdraw_late_nacks(flights: Sequence[Flight]) -> None:
    """Turn nacks of ordered messages that another worker has taken over into releases, which Redis ignores.

    The worker was frozen, so the time was probably up without the endpoint's fault. An ack is true all the same.
    """
    for flight in flights:
        if flight.verdict is Verdict.NACK and flight.is_lost:
            push = flight.plan.settings if flight.plan else None
            if push is None or push.ordered:
                flight.verdict = Verdict.RELEASE


def _has_ack(flights: Sequence[Flight]) -> bool:
    return any(flight.verdict is Verdict.ACK for flight in flights)


def _is_spent(flight: Flight) -> bool:
    """Return whether this nack was the last attempt that a dead-letter policy allows."""
    settings = flight.plan.settings if flight.plan else None
    return flight.verdict is Verdict.NACK and is_spent(settings, attempts=flight.task.attempt)


def _marked(forwarded: Iterable[tuple[Sequence[Flight], Forwarded]]) -> Forwarded:
    """Mark the forwarded flights as dead letters after the commit, and return everything forwarded."""
    total = Forwarded()
    for flights, letters in forwarded:
        total.announce += letters.announce
        for flight in flights:
            if flight.verdict is Verdict.NACK and flight.message_id in letters.message_ids:
                flight.verdict = Verdict.DEAD_LETTER
    return total


def _count_batches(flights: Sequence[Flight]) -> Counter[Batch]:
    return Counter(flight.batch for flight in flights if flight.batch is not None)
