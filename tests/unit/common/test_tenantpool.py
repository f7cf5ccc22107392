"""Threads that tenants share: whose turn it is, what waits aside, and what is refused."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future
from typing import Any

import pytest

from pushhub.common import tenantpool
from pushhub.common.errors import ResourceExhausted
from pushhub.common.tenantpool import (
    Again,
    TenantPool,
    count_for,
    is_called_again,
    result_of,
    step_aside,
    step_aside_or_refuse,
)
from tests.ports import wait_for

SECONDS = 60


class Stand:
    """A pool whose calls begin in an order that is recorded, and end when the test says so."""

    def __init__(self, threads: int, **options: Any) -> None:
        self.now = 0.0
        self.begun: list[str] = []
        self.aside: list[str] = []
        self.ended: list[threading.Thread] = []
        self._ends: dict[str, threading.Event] = {}
        options = {"most": threads, "most_waiting": 100} | options
        self.pool = TenantPool("test", threads, at_end=self._thread_ends, clock=lambda: self.now, **options)

    def submit(self, name: str, *, aside: bool = False, spare: int = 0) -> Future[str]:
        """Submit a call of the tenant whose name is the first word."""
        end = self._ends[name] = threading.Event()

        def call() -> str:
            self.begun.append(name)
            if aside and not step_aside(spare=spare):
                return f"{name} stays"
            if aside:
                self.aside.append(name)
            assert end.wait(SECONDS)
            return name

        return self.pool.submit(name.split()[0], call)

    def step_aside(self, name: str, *, spare: int = 0) -> Future[str]:
        """Submit a call that steps aside, and wait until it has."""
        future = self.submit(name, aside=True, spare=spare)
        wait_for(lambda: name in self.aside, what=f"{name} aside")
        return future

    def end(self, name: str, *, after: float = 0.0) -> None:
        """Let a call end that has taken so many seconds."""
        self.now += after
        self._ends[name].set()

    def end_all(self) -> None:
        for end in self._ends.values():
            end.set()

    def begins(self, *names: str) -> None:
        wait_for(lambda: self.begun[-len(names) :] == list(names), what=f"{names} after {self.begun}")

    def _thread_ends(self) -> None:
        self.ended.append(threading.current_thread())


@pytest.fixture
def stand() -> Iterator[Callable[..., Stand]]:
    stands: list[Stand] = []

    def make(*arguments: Any, **options: Any) -> Stand:
        stands.append(Stand(*arguments, **options))
        return stands[-1]

    yield make
    for made in stands:
        made.end_all()
        made.pool.close()


def test_a_call_gives_its_result_or_its_error(stand: Callable[..., Stand]) -> None:
    pool = stand(1).pool
    assert pool.submit("a", lambda: 3).result(SECONDS) == 3
    with pytest.raises(ZeroDivisionError):
        pool.submit("a", lambda: 1 // 0).result(SECONDS)
    assert pool.submit("a", lambda: 4).result(SECONDS) == 4


def test_calls_go_on_after_a_shortage_of_threads(stand: Callable[..., Stand], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    pool = stand(2).pool
    with monkeypatch.context() as shortage:
        shortage.setattr(threading.Thread, "start", refuse)
        waiting = [pool.submit("a", lambda number=number: number) for number in range(5)]
    waiting.append(pool.submit("a", lambda: 5))
    assert [future.result(SECONDS) for future in waiting] == list(range(6))


def test_a_tenant_gets_no_more_threads_than_its_share(stand: Callable[..., Stand]) -> None:
    s = stand(3, most=2)
    for number in range(4):
        s.submit(f"a {number}")
    s.submit("b")
    wait_for(lambda: sorted(s.begun) == ["a 0", "a 1", "b"], what="two calls of a and one of b")
    s.end("b")
    s.submit("c")
    s.begins("c")
    s.end("a 0")
    s.begins("a 2")


def test_the_tenant_that_has_taken_the_least_time_comes_next(stand: Callable[..., Stand]) -> None:
    s = stand(1)
    s.submit("slow 0")
    s.begins("slow 0")
    for name in ("slow 1", "slow 2", "quick 0", "quick 1", "quick 2"):
        s.submit(name)
    s.end("slow 0", after=2.5)
    s.begins("quick 0")
    s.end("quick 0", after=1)
    s.begins("quick 1")
    s.end("quick 1", after=1)
    s.begins("quick 2")
    s.end("quick 2", after=1)
    s.begins("slow 1")


def test_a_tenant_that_comes_late_has_no_turns_saved(stand: Callable[..., Stand]) -> None:
    s = stand(1)
    s.submit("early 0")
    s.begins("early 0")
    s.submit("early 1")
    s.end("early 0", after=100)
    s.begins("early 1")
    for name in ("late 0", "late 1", "early 2"):
        s.submit(name)
    s.end("early 1", after=1)
    s.begins("late 0")
    s.end("late 0", after=2)
    s.begins("early 2")


def test_a_tenant_that_comes_again_and_again_is_not_served_first_each_time(stand: Callable[..., Stand]) -> None:
    s = stand(1)
    s.submit("serial 0")
    s.begins("serial 0")
    for number in range(3):
        s.submit(f"queued {number}")
    s.end("serial 0", after=2)
    s.begins("queued 0")
    s.submit("serial 1")
    s.end("queued 0", after=1)
    s.begins("queued 1")


def test_too_many_waiting_calls_of_a_tenant_are_refused_and_those_of_others_are_not(
    stand: Callable[..., Stand],
) -> None:
    s = stand(1, most_waiting=2)
    s.submit("a 0")
    s.begins("a 0")
    s.submit("a 1")
    s.submit("a 2")
    with pytest.raises(ResourceExhausted):
        s.submit("a 3")
    s.submit("b")


def test_a_call_that_has_waited_too_long_is_refused(stand: Callable[..., Stand]) -> None:
    s = stand(1, wait_seconds=5)
    s.submit("a")
    late = s.submit("b")
    s.begins("a")
    s.end("a", after=6)
    with pytest.raises(ResourceExhausted):
        late.result(SECONDS)
    assert s.begun == ["a"]


def test_a_cancelled_call_is_never_made(stand: Callable[..., Stand]) -> None:
    s = stand(1)
    s.submit("a 0")
    s.begins("a 0")
    assert s.submit("a 1").cancel()
    s.submit("a 2")
    s.end("a 0")
    s.begins("a 0", "a 2")


def test_a_call_that_isnt_finished_is_called_again_before_others_of_its_tenant(stand: Callable[..., Stand]) -> None:
    s = stand(1, most=1)
    turns: list[str] = []

    def work(name: str, count: int) -> Callable[[], int]:
        def call() -> int:
            turns.append(name)
            s.now += 1
            if turns.count(name) < count:
                raise Again
            return count

        return call

    s.submit("first")
    s.begins("first")
    long, short = s.pool.submit("a", work("long", 3)), s.pool.submit("a", work("short", 1))
    other = s.pool.submit("b", work("other", 2))
    s.end("first")
    assert [future.result(SECONDS) for future in (long, short, other)] == [3, 1, 2]
    assert turns == ["long", "other", "long", "other", "long", "short"]


def test_a_call_that_can_begin_anew_keeps_neither_thread_nor_place_while_it_waits(stand: Callable[..., Stand]) -> None:
    s = stand(1)
    needed: Future[str] = Future()
    begun: list[bool] = []

    def call() -> list[str]:
        begun.append(is_called_again())
        first = result_of(lambda: needed)
        assert not is_called_again()
        return [first, result_of(lambda: finished)]

    finished: Future[str] = Future()
    finished.set_result("second")
    waiting = [s.pool.submit("a", call) for _ in range(3)]
    wait_for(lambda: begun == [False] * 3 and s.pool._places == 1, what="three calls that wait")
    assert s.pool.submit("a", lambda: "other").result(SECONDS) == "other"

    needed.set_result("first")
    assert [future.result(SECONDS) for future in waiting] == [["first", "second"]] * 3
    assert begun == [False] * 3 + [True] * 3


def test_a_call_whose_future_has_ended_is_not_called_again(stand: Callable[..., Stand]) -> None:
    ended: Future[int] = Future()
    ended.set_exception(ZeroDivisionError())
    calls: list[bool] = []

    def call() -> int:
        calls.append(True)
        return result_of(lambda: ended)

    with pytest.raises(ZeroDivisionError):
        stand(1).pool.submit("a", call).result(SECONDS)
    assert calls == [True]


def test_a_closed_pool_cancels_what_it_would_have_called_again(stand: Callable[..., Stand]) -> None:
    s = stand(1)
    needed: Future[int] = Future()
    waiting = s.pool.submit("a", lambda: result_of(lambda: needed))
    wait_for(lambda: waiting.running() and s.pool._places == 1, what="the call to wait")
    s.pool.close()
    needed.set_result(1)
    with pytest.raises(CancelledError):
        waiting.result(SECONDS)


def test_a_call_that_waits_aside_leaves_its_place_and_still_counts_for_its_tenant(stand: Callable[..., Stand]) -> None:
    s = stand(1, most=2, most_aside=10)
    s.step_aside("a 0")
    s.step_aside("a 1")
    s.submit("a 2")
    b = s.submit("b")
    s.begins("b")
    s.end("b")
    assert b.result(SECONDS) == "b"
    s.end("a 0")
    s.begins("a 2")


def test_nine_tenants_that_wait_leave_the_only_thread_to_the_tenth(stand: Callable[..., Stand]) -> None:
    s = stand(1, most=3, most_aside=27 + 3)
    for tenant in range(9):
        for number in range(5):
            s.submit(f"{tenant} {number}", aside=True)
    wait_for(lambda: len(s.aside) == 27, what="three calls of each")
    tenth = s.submit("tenth")
    s.end("tenth")
    assert tenth.result(SECONDS) == "tenth"
    assert len(s.begun) == 28


def test_no_tenant_gets_more_of_the_places_aside_than_it_leaves_to_others(stand: Callable[..., Stand]) -> None:
    s = stand(4, most_aside=4)
    first = s.step_aside("a 0")
    s.step_aside("a 1")
    assert s.submit("a 2", aside=True).result(SECONDS) == "a 2 stays"
    s.step_aside("b 0")
    assert s.submit("b 1", aside=True).result(SECONDS) == "b 1 stays"
    s.step_aside("c 0")
    assert s.submit("d 0", aside=True).result(SECONDS) == "d 0 stays"
    s.end("a 0")
    first.result(SECONDS)
    wait_for(lambda: s.pool._places_aside == 1, what="a free place")
    s.step_aside("d 1")


def test_a_call_may_leave_some_of_its_tenants_share_to_other_calls(stand: Callable[..., Stand]) -> None:
    s = stand(4, most=2, most_aside=10)
    s.step_aside("a 0", spare=1)
    assert s.submit("a 1", aside=True, spare=1).result(SECONDS) == "a 1 stays"


def test_a_call_that_counts_for_another_tenant_leaves_its_first_one_to_others(stand: Callable[..., Stand]) -> None:
    s = stand(2, most=1, most_aside=4)
    moved, go_on = threading.Event(), threading.Event()

    def call() -> None:
        count_for("b")
        step_aside()
        moved.set()
        assert go_on.wait(SECONDS)

    call_of_a = s.pool.submit("a", call)
    assert moved.wait(SECONDS)
    s.submit("b waits")
    s.submit("a")
    s.begins("a")
    go_on.set()
    call_of_a.result(SECONDS)
    s.begins("a", "b waits")


def test_outside_of_a_pool_nothing_has_to_step_aside() -> None:
    assert step_aside()
    step_aside_or_refuse()
    ended: Future[int] = Future()
    ended.set_result(1)
    assert result_of(lambda: ended) == 1
    assert not is_called_again()
    count_for("a")


def test_a_call_that_cannot_step_aside_is_refused(stand: Callable[..., Stand]) -> None:
    with pytest.raises(ResourceExhausted):
        stand(1, most_aside=0).pool.submit("a", step_aside_or_refuse).result(SECONDS)


def test_threads_that_are_too_many_end_and_tell(stand: Callable[..., Stand]) -> None:
    s = stand(1, most=5, most_aside=10)
    futures = [s.submit(f"a {number}", aside=True) for number in range(4)]
    wait_for(lambda: len(s.begun) == 4, what="four calls")
    s.end_all()
    assert [future.result(SECONDS) for future in futures] == [f"a {number}" for number in range(4)]
    wait_for(lambda: len(s.ended) == 3, what="the end of three threads")
    assert s.pool.submit("a", lambda: "again").result(SECONDS) == "again"


def test_a_closed_pool_ends_what_it_has_begun_and_cancels_the_rest(stand: Callable[..., Stand]) -> None:
    s = stand(1)
    begun, waiting = s.submit("a 0"), s.submit("a 1")
    s.begins("a 0")
    closing = threading.Thread(target=s.pool.close)
    closing.start()
    with pytest.raises(CancelledError):
        waiting.result(SECONDS)
    s.end("a 0")
    closing.join(SECONDS)
    assert begun.result(SECONDS) == "a 0"
    assert len(s.ended) == 1


def test_a_closed_pool_does_not_finish_what_takes_more_turns(stand: Callable[..., Stand]) -> None:
    s = stand(1)
    closing = threading.Thread(target=s.pool.close)

    def call() -> None:
        closing.start()
        wait_for(lambda: s.pool._is_closed, what="the end of the pool")
        raise Again

    with pytest.raises(CancelledError):
        s.pool.submit("a", call).result(SECONDS)
    closing.join(SECONDS)


def test_of_tenants_without_work_only_so_many_are_remembered(
    stand: Callable[..., Stand], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tenantpool, "MAX_TENANTS", 3)
    s = stand(1)
    for number in range(10):
        assert s.pool.submit(str(number), lambda: True).result(SECONDS)
    assert len(s.pool._tenants) <= 4
