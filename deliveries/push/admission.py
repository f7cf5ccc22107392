"""Admission: bounds the memory that payloads take in this worker.

A message that must wait keeps only its id; its payload is read from the database when its turn comes. A subscription
gets at most as much memory as remains free, so that one with large messages and a hanging endpoint cannot starve
its neighbours. An eighth of the memory is for small messages alone, so that many such subscriptions can't either.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from itertools import islice

from deliveries.push.sending.delivery import PushDelivery

#: Subscriptions with waiting messages that are tried at a time. A push that ends makes room for about one more, so most
#: tries are in vain: with 256 they took the engine most of its time while a thousand endpoints of large messages
#: answered.
MAX_TRIED = 16

#: A message of at most this many bytes is a small one.
SMALL_BYTES = 16 * 1024
#: Larger messages leave this part of the memory to small ones.
RESERVED = 1 / 8
#: Waiting messages are tried when this part of the memory has become free since they were tried last: a thousand
#: subscriptions that wait would make each small message cost as many tries.
TRIED_AFTER = 1 / 1024


class Admission:
    """Counts bytes per subscription. Its methods may be called from any thread."""

    def __init__(self, limit_bytes: int, *, resume: Callable[[list[PushDelivery]], None]) -> None:
        """`resume` is called with deliveries that have waited and may go on."""
        self._limit = limit_bytes
        self._resume = resume
        self._lock = threading.Lock()
        self._total = 0
        #: Bytes that have become free since the waiting deliveries were tried.
        self._freed = 0
        self._held: dict[int, int] = {}
        #: Deliveries and the bytes that each needs; the subscription whose turn it is comes first.
        self._waiting: dict[int, deque[tuple[PushDelivery, int]]] = {}

    @property
    def held_bytes(self) -> int:
        return self._total

    def take(self, deliveries: Iterable[tuple[PushDelivery, int]]) -> list[PushDelivery]:
        """Return the deliveries that may go on; the others wait. Each comes with the bytes that it needs."""
        with self._lock:
            return [delivery for delivery, size in deliveries if self._admit(delivery, size)]

    def grow(self, delivery: PushDelivery, size: int) -> bool:
        """Hold more bytes for a delivery that needs them. Return False if it has to wait, without its payload."""
        if size <= delivery.held_bytes:
            return True
        with self._lock:
            if delivery.held_bytes:
                self._give_back(delivery)
            is_admitted = self._admit(delivery, size)
            resumed = self._next_waiting(delivery.lane.subscription_id)
        if resumed:
            self._resume(resumed)
        return is_admitted

    def release(self, delivery: PushDelivery) -> None:
        """Release the bytes of a delivery that has ended, and resume others."""
        with self._lock:
            if delivery.held_bytes:
                self._give_back(delivery)
            resumed = self._next_waiting(delivery.lane.subscription_id)
        if resumed:
            self._resume(resumed)

    def _admit(self, delivery: PushDelivery, size: int) -> bool:
        """Hold the bytes of a delivery, or let it wait without its payload."""
        subscription_id = delivery.lane.subscription_id
        is_admitted = subscription_id not in self._waiting and self._fits(subscription_id, size)
        if is_admitted:
            self._hold(delivery, size)
        else:
            delivery.drop_payload()
            self._waiting.setdefault(subscription_id, deque()).append((delivery, size))
        return is_admitted

    def _fits(self, subscription_id: int, size: int) -> bool:
        held_bytes = self._held.get(subscription_id, 0)
        limit = self._limit if size <= SMALL_BYTES else self._limit * (1 - RESERVED)
        if not held_bytes:
            # Even a message that is larger than the limit must be pushed, when nothing else is held.
            return not self._total or self._total + size <= limit
        return held_bytes + size <= limit - self._total

    def _hold(self, delivery: PushDelivery, size: int) -> None:
        subscription_id = delivery.lane.subscription_id
        delivery.held_bytes = size
        self._total += size
        self._held[subscription_id] = self._held.get(subscription_id, 0) + size

    def _give_back(self, delivery: PushDelivery) -> None:
        subscription_id = delivery.lane.subscription_id
        self._total -= delivery.held_bytes
        self._held[subscription_id] -= delivery.held_bytes
        self._freed += delivery.held_bytes
        delivery.held_bytes = 0
        if not self._held[subscription_id]:
            del self._held[subscription_id]

    def _next_waiting(self, subscription_id: int) -> list[PushDelivery]:
        """Take the deliveries that fit now out of the queues, one delivery of each subscription at a time.

        They are tried if much has become free, or this subscription, of which a delivery has ended, waits itself.
        """
        is_due = subscription_id in self._waiting or not self._total or self._freed >= self._limit * TRIED_AFTER
        if not self._waiting or not is_due:
            return []
        self._freed = 0
        resumed: list[PushDelivery] = []
        while fitting := self._next_of_each():
            resumed += fitting
        return resumed

    def _next_of_each(self) -> list[PushDelivery]:
        """Take one delivery of each subscription whose turn it is, if it has room; others have theirs then.

        A subscription that holds nothing keeps its turn, and the others wait for theirs until there is room for it.
        """
        fitting = []
        for subscription_id in list(islice(self._waiting, MAX_TRIED)):
            queue = self._waiting[subscription_id]
            while queue and queue[0][0].finished:
                queue.popleft()
            if queue and self._fits(subscription_id, queue[0][1]):
                delivery, size = queue.popleft()
                self._hold(delivery, size)
                fitting.append(delivery)
            elif queue and subscription_id not in self._held:
                break
            del self._waiting[subscription_id]
            if queue:
                self._waiting[subscription_id] = queue
        return fitting
