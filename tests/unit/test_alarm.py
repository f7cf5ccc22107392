"""The alarm that wakes a sleeping worker, on a clock of the test's own."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count

import pytest

from deliveries.push.alarm import Alarm


class Clock:
    """Time that moves when told to, and what is to happen in it."""

    def __init__(self) -> None:
        self.now = 100.0
        self._order = count()
        self._timers: list[tuple[float, int, Callable[..., object], tuple[object, ...]]] = []

    def call_later(self, delay: float, callback: Callable[..., object], *args: object) -> None:
        heapq.heappush(self._timers, (self.now + delay, next(self._order), callback, args))

    def lose_timers(self) -> None:
        self._timers.clear()

    def advance(self, seconds: float) -> None:
        end = self.now + seconds
        while self._timers and self._timers[0][0] <= end:
            self.now, _, callback, args = heapq.heappop(self._timers)
            callback(*args)
        self.now = end


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def rung() -> list[float]:
    return []


@pytest.fixture
def alarm(clock: Clock, rung: list[float]) -> Alarm:
    return Alarm(clock=lambda: clock.now, call_later=clock.call_later, ring=lambda: rung.append(round(clock.now, 3)))


def test_it_rings_once_when_it_is_due(alarm: Alarm, clock: Clock, rung: list[float]) -> None:
    alarm.set(0.5)
    clock.advance(0.4)
    assert rung == []
    clock.advance(10)
    assert rung == [100.5]


def test_it_rings_at_the_earliest_of_its_times_and_the_others_are_silent(
    alarm: Alarm, clock: Clock, rung: list[float]
) -> None:
    for seconds in (0.5, 0.2, 0.3):
        alarm.set(seconds)
    clock.advance(10)
    assert rung == [100.2]


def test_it_can_be_set_again_after_it_rang(alarm: Alarm, clock: Clock, rung: list[float]) -> None:
    alarm.set(0.5)
    alarm.set(0.2)
    clock.advance(0.25)
    alarm.set(0.5)
    clock.advance(10)
    assert rung == [100.2, 100.75]


def test_what_is_due_at_once_rings_in_the_next_moment(alarm: Alarm, clock: Clock, rung: list[float]) -> None:
    alarm.set(0)
    assert rung == []
    clock.advance(1)
    assert rung == [100.001]


def test_a_timer_that_was_lost_does_not_keep_the_next_from_ringing(
    alarm: Alarm, clock: Clock, rung: list[float]
) -> None:
    alarm.set(0.5)
    clock.lose_timers()
    clock.advance(1)
    alarm.set(0.5)
    clock.advance(10)
    assert rung == [101.5]
