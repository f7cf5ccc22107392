"""The timer wheel, on a clock that the test moves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from deliveries.client.wheel import NEVER, Wheel

TICK = 0.05


class Timer:
    def __init__(self, due: float, callback: Callable[[], None]) -> None:
        self.due = due
        self.callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class Loop:
    """The part of a loop that the wheel uses; time passes in `run_until`."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.timers: list[Timer] = []
        self.timers_made = 0

    def time(self) -> float:
        return self.now

    def call_later(self, delay: float, callback: Callable[[], None]) -> Timer:
        timer = Timer(self.now + delay, callback)
        self.timers.append(timer)
        self.timers_made += 1
        return timer

    def run_until(self, end: float) -> None:
        while True:
            due = [timer for timer in self.timers if not timer.cancelled and timer.due <= end]
            if not due:
                break
            timer = min(due, key=lambda timer: timer.due)
            self.timers.remove(timer)
            self.now = max(self.now, timer.due)
            timer.callback()
        self.now = end


class Item:
    def __init__(self, wheel: Wheel, due: float) -> None:
        self.tick = NEVER
        self.due = due
        self.wheel = wheel
        self.noticed: list[float] = []

    def on_due(self, now: float) -> None:
        if now < self.due:
            self.wheel.put(self, self.due)
        else:
            self.noticed.append(now)


def loop_and_wheel() -> tuple[Any, Wheel]:
    loop: Any = Loop()
    return loop, Wheel(loop, clock=loop.time, tick_s=TICK)


@given(st.lists(st.floats(0, 30), min_size=1, max_size=50))
def test_every_item_is_called_once_never_early_and_at_most_a_tick_late(delays: list[float]) -> None:
    loop, wheel = loop_and_wheel()
    items = [Item(wheel, loop.now + delay) for delay in delays]
    for item in items:
        wheel.put(item, item.due)
    loop.run_until(loop.now + 40)
    for item in items:
        assert len(item.noticed) == 1
        assert item.due <= item.noticed[0] <= item.due + TICK + 0.002


def test_moving_a_deadline_to_a_later_time_costs_no_timer() -> None:
    loop, wheel = loop_and_wheel()
    item = Item(wheel, loop.now + 1)
    wheel.put(item, item.due)
    for _ in range(1000):
        item.due += 0.01
        wheel.put(item, item.due)
    assert loop.timers_made == 1
    loop.run_until(loop.now + 10.9)
    assert not item.noticed
    loop.run_until(loop.now + 0.2)
    assert len(item.noticed) == 1


def test_a_deadline_that_moves_nearer_is_kept() -> None:
    loop, wheel = loop_and_wheel()
    item = Item(wheel, loop.now + 60)
    wheel.put(item, item.due)
    item.due = loop.now + 1
    wheel.put(item, item.due)
    loop.run_until(loop.now + 1.1)
    assert len(item.noticed) == 1
    loop.run_until(loop.now + 100)
    assert len(item.noticed) == 1


def test_a_dropped_item_is_forgotten() -> None:
    loop, wheel = loop_and_wheel()
    item = Item(wheel, loop.now + 1)
    wheel.put(item, item.due)
    wheel.drop(item)
    wheel.drop(item)
    loop.run_until(loop.now + 2)
    assert not item.noticed
    assert item.tick == NEVER


def test_an_empty_wheel_has_no_timer() -> None:
    loop, wheel = loop_and_wheel()
    item = Item(wheel, loop.now + 1)
    wheel.put(item, item.due)
    loop.run_until(loop.now + 5)
    assert not loop.timers
    wheel.put(item, loop.now + 1)
    wheel.stop()
    loop.run_until(loop.now + 5)
    assert len(item.noticed) == 1


def test_it_runs_on_a_real_loop() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        wheel = Wheel(loop, clock=loop.time, tick_s=0.01)
        item = Item(wheel, loop.time() + 0.02)
        wheel.put(item, item.due)
        while not item.noticed:
            await asyncio.sleep(0.001)
        assert item.noticed[0] >= item.due

    asyncio.run(asyncio.wait_for(scenario(), 20))
