"""A pool of threads that tenants share, so that the work of one tenant doesn't keep that of others waiting.

A tenant is whatever the caller of the pool says: a project, a user, a client's address.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, wait
from dataclasses import dataclass, field
from typing import Any, Generic, Self, TypeVar

from pushhub.common.errors import ResourceExhausted

T = TypeVar("T")

#: With more tenants than this, a pool forgets how much time those without work have used.
MAX_TENANTS = 1_000
#: The usual number of calls that may wait aside: for functions, for messages to pull, for an endpoint.
MOST_ASIDE = 32
NO_LIMIT = float("inf")
#: What takes no longer is waited for in the thread: to call the work again would cost as much.
MOMENT_SECONDS = 0.02


class Again(BaseException):
    """What work raises that isn't finished: it is called again, at a turn of its tenant once `after` has ended."""

    def __init__(self, after: Future[Any] | None = None) -> None:
        self.after = after


@dataclass(slots=True, eq=False)
class _Work(Generic[T]):
    pool: TenantPool
    tenant: _Tenant
    call: Callable[[], T]
    submitted: float
    future: Future[T] = field(default_factory=Future)
    has_begun: bool = False
    #: What it asked for first (`result_of`), and whether it has the result.
    awaited: Future[Any] | None = None
    has_result: bool = False
    turn_began: float = 0.0
    is_aside: bool = False


@dataclass(slots=True, eq=False)
class _Tenant:
    name: str
    #: The time that its work has taken in threads, in seconds, as if it had been here from the start.
    used: float
    waiting: deque[_Work[Any]] = field(default_factory=deque)
    running: int = 0
    aside: int = 0


class TenantPool:
    """Calls what is submitted in threads, which start when they are needed.

    `threads` calls run at a time, `most` of one tenant; the tenant whose calls have taken the least time so far comes
    next. `most_waiting` calls of a tenant may wait, and each for `wait_seconds`. A call that has to wait for something
    steps aside (`step_aside`): its place goes to others, and it still counts as one of its tenant's. At most
    `most_aside` calls are aside. A call that can begin anew keeps no thread meanwhile (`result_of`). `at_end` is called
    in each thread before the thread ends.
    """

    def __init__(
        self,
        name: str,
        threads: int,
        *,
        most: int,
        most_waiting: int,
        wait_seconds: float = NO_LIMIT,
        most_aside: int = 0,
        at_end: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name = name
        self._size = threads
        self._most = most
        self._most_waiting = most_waiting
        self._wait_seconds = wait_seconds
        self._at_end = at_end
        self._clock = clock
        self._changed = threading.Condition()
        self._tenants: dict[str, _Tenant] = {}
        #: Those with calls that wait.
        self._waiting: dict[_Tenant, None] = {}
        #: What the tenant with the last turn had used. A tenant that comes back has used no less.
        self._used = 0.0
        self._places = threads
        self._places_aside = most_aside
        self._threads: set[threading.Thread] = set()
        #: Threads that wait to be called, and those that were called and haven't looked for work yet.
        self._idle = self._coming = 0
        self._is_closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def submit(self, tenant: str, call: Callable[[], T]) -> Future[T]:
        """Return the future of a call. Raises ResourceExhausted if too many calls of the tenant wait already."""
        with self._changed:
            found = self._tenant(tenant)
            if len(found.waiting) >= self._most_waiting:
                raise busy()
            work: _Work[T] = _Work(self, found, call, self._clock())
            found.waiting.append(work)
            self._look_at(found)
        return work.future

    def close(self) -> None:
        """Cancel the calls that wait, and wait for the turns of those that run."""
        with self._changed:
            self._is_closed = True
            waiting = [work for tenant in self._waiting for work in tenant.waiting]
            for tenant in self._waiting:
                tenant.waiting.clear()
            self._waiting.clear()
            threads = set(self._threads)
            self._coming += self._idle
            self._idle = 0
            self._changed.notify_all()
        for work in waiting:
            work.future.cancel()
        for thread in threads:
            thread.join()

    def _tenant(self, name: str) -> _Tenant:
        if len(self._tenants) > MAX_TENANTS:
            self._tenants = {name: it for name, it in self._tenants.items() if it.waiting or it.running}
        tenant = self._tenants.setdefault(name, _Tenant(name, self._used))
        if not tenant.waiting and not tenant.running:
            tenant.used = max(tenant.used, self._used)
        return tenant

    def _look_at(self, tenant: _Tenant) -> None:
        """Have a thread look for work, of which this tenant has some that waits."""
        self._waiting[tenant] = None
        self._call_thread()

    def _call_thread(self) -> None:
        """Have a thread look for work if there is some that may begin."""
        if self._next() is None or self._coming >= self._places:
            return
        self._coming += 1
        if self._idle:
            self._idle -= 1
            self._changed.notify()
        else:
            thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            try:
                thread.start()
            except RuntimeError:  # this machine has no more threads: others take the work, or the next call starts one
                self._coming -= 1
            else:
                self._threads.add(thread)

    def _next(self) -> _Tenant | None:
        """Return the tenant whose turn it is; None if no work may begin."""
        ready = [tenant for tenant in self._waiting if tenant.running < self._most] if self._places else []
        return min(ready, key=lambda tenant: tenant.used, default=None)

    def _run(self) -> None:
        work = self._take(is_called=True)
        while work is not None:
            _current.work = work
            again = self._turn(work)
            _current.work = None
            self._end_turn(work, again)
            work = self._take()
        self._at_end()

    def _take(self, *, is_called: bool = False) -> _Work[Any] | None:
        """Wait for work. Return None if the thread should end, because others wait already or the pool is closed."""
        with self._changed:
            self._coming -= is_called
            while (tenant := self._next()) is None:
                if self._is_closed or self._idle >= self._size:
                    self._threads.discard(threading.current_thread())
                    return None
                self._idle += 1
                self._changed.wait()
                self._coming -= 1
            self._places -= 1
            tenant.running += 1
            self._used = max(self._used, tenant.used)
            work = tenant.waiting.popleft()
            if not tenant.waiting:
                del self._waiting[tenant]
            work.turn_began = self._clock()
            return work

    def _turn(self, work: _Work[Any]) -> Again | None:
        """Call the work. Return None if it is done, and else what it raised."""
        if not work.has_begun:
            if not work.future.set_running_or_notify_cancel():
                return None
            work.has_begun = True
            if self._clock() - work.submitted > self._wait_seconds:
                work.future.set_exception(busy())
                return None
        try:
            work.future.set_result(work.call())
        except Again as again:
            if not self._is_closed:
                return again
            work.future.set_exception(CancelledError())
        except BaseException as error:
            work.future.set_exception(error)
        return None

    def _end_turn(self, work: _Work[Any], again: Again | None) -> None:
        with self._changed:
            tenant = work.tenant
            tenant.running -= 1
            if work.is_aside:
                work.is_aside = False
                tenant.aside -= 1
                self._places_aside += 1
            else:
                self._leave_place(work)
            if again is not None and again.after is None:
                tenant.waiting.appendleft(work)
                self._waiting[tenant] = None
        if again is not None and again.after is not None:
            again.after.add_done_callback(lambda _: self._call_again(work))

    def _call_again(self, work: _Work[Any]) -> None:
        with self._changed:
            if not self._is_closed:
                work.tenant = self._tenant(work.tenant.name)
                work.tenant.waiting.appendleft(work)
                self._look_at(work.tenant)
                return
        work.future.set_exception(CancelledError())

    def _leave_place(self, work: _Work[Any]) -> None:
        work.tenant.used += self._clock() - work.turn_began
        self._places += 1

    def move(self, work: _Work[Any], tenant: str) -> None:
        with self._changed:
            work.tenant.running -= 1
            work.tenant.aside -= work.is_aside
            work.tenant = self._tenant(tenant)
            work.tenant.running += 1
            work.tenant.aside += work.is_aside
            self._call_thread()

    def step_aside(self, work: _Work[Any], spare: int) -> bool:
        with self._changed:
            tenant = work.tenant
            if work.is_aside:
                return True
            # A tenant gets no more of these places than it leaves to others.
            if tenant.aside + spare >= self._most or tenant.aside >= self._places_aside:
                return False
            work.is_aside = True
            tenant.aside += 1
            self._places_aside -= 1
            self._leave_place(work)
            self._call_thread()
            return True


def count_for(tenant: str) -> None:
    """Let the current call, if it is a pool's, be one of this tenant from now on."""
    work = getattr(_current, "work", None)
    if work is not None:
        work.pool.move(work, tenant)


def step_aside(*, spare: int = 0) -> bool:
    """Give the place of the current call to others, because it is about to wait. Return False if it can't.

    It can't if too many are aside, or all that its tenant may have running but `spare`. In a thread that belongs to no
    pool there is no place to give, so the answer is True.
    """
    work = getattr(_current, "work", None)
    return work is None or work.pool.step_aside(work, spare)


def step_aside_or_refuse() -> None:
    """Give the place of the current call to others. Raises ResourceExhausted if it can't."""
    if not step_aside():
        raise busy()


def result_of(begin: Callable[[], Future[T]]) -> T:
    """Return the result of the future that `begin` returns. The current call keeps no thread while that takes long.

    It ends then, and is called again, from its start, when the result is there. So it must not have changed anything
    before it comes here. What it asks for after that, it waits for in its thread.
    """
    work = getattr(_current, "work", None)
    if work is None or work.has_result:
        return begin().result()
    if work.awaited is None:
        work.awaited = begin()
        if not wait([work.awaited], MOMENT_SECONDS).done:
            raise Again(work.awaited)
    work.has_result = True
    awaited: Future[T] = work.awaited
    return awaited.result()


def is_called_again() -> bool:
    """Return whether the result that the current call will ask for first is known already: it was called before."""
    work = getattr(_current, "work", None)
    return work is not None and work.awaited is not None and not work.has_result


def busy() -> ResourceExhausted:
    return ResourceExhausted("Too many requests at once: wait for some to be answered.")


_current = threading.local()
