"""A timer wheel: the deadlines of tens of thousands of connections share one timer."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from typing import Protocol

#: The `tick` of an item that is not on the wheel: later than any other.
NEVER = 1 << 62


class Timed(Protocol):
    """An item with deadlines. `tick` belongs to the wheel and starts as `NEVER`."""

    tick: int

    def on_due(self, now: float) -> None: ...


class Wheel:
    """Keeps items in buckets of one tick, and calls each item at most one tick late, never early.

    Each item is on the wheel once, at its earliest deadline. Moving a deadline to a later time costs nothing: when the
    item is called, it checks its deadline and puts itself on the wheel again. So a busy connection touches the wheel
    once every few seconds and not once per request.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, *, clock: Callable[[], float], tick_s: float) -> None:
        self._loop = loop
        self._clock = clock
        self._per_second = 1 / tick_s
        self._buckets: dict[int, set[Timed]] = {}
        self._heap: list[int] = []
        self._timer: asyncio.TimerHandle | None = None
        self._timer_tick = NEVER

    def put(self, item: Timed, due: float) -> None:
        """Call the item's `on_due` once `due` has passed."""
        tick = int(due * self._per_second) + 1
        if tick >= item.tick:
            return
        if item.tick != NEVER:
            self.drop(item)
        item.tick = tick
        bucket = self._buckets.get(tick)
        if bucket is None:
            bucket = self._buckets[tick] = set()
            heapq.heappush(self._heap, tick)
            if tick < self._timer_tick:
                self._arm(tick)
        bucket.add(item)

    def drop(self, item: Timed) -> None:
        bucket = self._buckets.get(item.tick)
        if bucket is not None:
            bucket.discard(item)
        item.tick = NEVER

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        self._timer_tick = NEVER
        self._buckets.clear()
        self._heap.clear()

    def _arm(self, tick: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_tick = tick
        self._timer = self._loop.call_later(max(tick / self._per_second - self._clock(), 0.001), self._turn)

    def _turn(self) -> None:
        self._timer = None
        self._timer_tick = NEVER
        now = self._clock()
        reached = int(now * self._per_second)
        while self._heap and self._heap[0] <= reached:
            for item in self._buckets.pop(heapq.heappop(self._heap)):
                item.tick = NEVER
                item.on_due(now)
        if self._heap and self._heap[0] < self._timer_tick:
            self._arm(self._heap[0])
