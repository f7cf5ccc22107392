"""The alarm that wakes a sleeping worker, on the test's own clock."""

from __future__ import annotations

import heapq
import socket
import time
from collections.abc import Callable
from itertools import count

import pytest
from kombu.asynchronous import Hub

from deliveries.push.alarm import Alarm
from tests.ports import wait_for


class Timer:
    """The timer that `call_later` returns."""

    is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class Clock:
    """A clock that the test moves, and its scheduled calls."""

    def __init__(self) -> None:
        self.now = 100.0
        self._order = count()
        self._timers: list[tuple[float, int, Callable[..., object], Timer]] = []

    def call_later(self, delay: float, callback: Callable[..., object]) -> Timer:
        timer = Timer()
        heapq.heappush(self._timers, (self.now + delay, next(self._order), callback, timer))
        return timer

    def lose_timers(self) -> None:
        self._timers.clear()

    def advance(self, seconds: float) -> None:
        end = self.now + seconds
        while self._timers and self._timers[0][0] <= end:
            self.now, _, callback, timer = heapq.heappop(self._timers)
            if not timer.is_cancelled:
                callback()
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


def test_an_alarm_rings_once_when_it_is_due(alarm: Alarm, clock: Clock, rung: list[float]) -> None:
    alarm.set(0.5)
    clock.advance(0.4)
    assert rung == []
    clock.advance(10)
    assert rung == [100.5]


def test_an_alarm_rings_at_the_earliest_of_its_times_only(alarm: Alarm, clock: Clock, rung: list[float]) -> None:
    for seconds in (0.5, 0.2, 0.3):
        alarm.set(seconds)
    clock.advance(10)
    assert rung == [100.2]


def test_an_alarm_can_be_set_again_after_it_rang(alarm: Alarm, clock: Clock, rung: list[float]) -> None:
    alarm.set(0.5)
    alarm.set(0.2)
    clock.advance(0.25)
    alarm.set(0.5)
    clock.advance(10)
    assert rung == [100.2, 100.75]


def test_a_cancelled_alarm_is_silent_and_can_be_set_again(alarm: Alarm, clock: Clock, rung: list[float]) -> None:
    alarm.set(0.5)
    alarm.cancel()
    clock.advance(10)
    assert rung == []
    alarm.set(0.5)
    clock.advance(10)
    assert rung == [110.5]


def test_of_80_alarms_in_kombus_hub_one_is_left_and_none_makes_the_hub_oversleep() -> None:
    """The hub fires ten timers per round, even superseded ones, and then sleeps for a second."""
    hub = Hub()
    reading, writing = socket.socketpair()
    slept: list[float] = []
    rung: list[int] = []

    def ring() -> None:
        rung.append(len(slept))
        if len(rung) == 1:
            alarm.set(0.2)

    alarm = Alarm(clock=time.monotonic, call_later=hub.call_later, ring=ring)
    try:
        hub.add_reader(reading, lambda: None)
        poll = hub.poller.poll

        def watched(timeout: float) -> object:
            slept.append(timeout)
            return poll(timeout)

        hub.poller.poll = watched
        # Given an alarm that was set 80 times, each time to an earlier moment
        for number in range(80):
            alarm.set(0.18 - number * 0.00002)
        assert [timer.entry.canceled for timer in hub.timer._queue].count(False) == 1
        # When it rings, and rings again after all the superseded times
        wait_for(lambda: hub.run_once() or len(rung) == 2, what="the second ring")
        # Then until then the hub never meant to sleep past the next ring
        assert max(slept[: rung[1]]) <= 0.2
    finally:
        hub.close()
        reading.close()
        writing.close()


def test_an_alarm_without_delay_rings_after_a_millisecond(alarm: Alarm, clock: Clock, rung: list[float]) -> None:
    alarm.set(0)
    assert rung == []
    clock.advance(1)
    assert rung == [100.001]


def test_a_lost_timer_does_not_suppress_the_next_ring(alarm: Alarm, clock: Clock, rung: list[float]) -> None:
    alarm.set(0.5)
    clock.lose_timers()
    clock.advance(1)
    alarm.set(0.5)
    clock.advance(10)
    assert rung == [101.5]
