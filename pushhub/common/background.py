"""Background threads. Each survives any exception of its work and reports when it was last alive."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from weakref import WeakSet

logger = logging.getLogger(__name__)

#: The longest wait of a body that has nothing to do, so that an idle thread reports as well.
IDLE_SECONDS = 5.0
#: A thread that hasn't reported for this long has stopped working. So has one with a job that has waited this long.
#: A busy SQLite delays one statement for up to 30 s.
STUCK_SECONDS = 60.0
#: How long whoever stops a thread waits for what it has begun.
STOP_SECONDS = 5.0
#: Pauses after a failed turn, or before a job is tried again. They double from the first to the last.
FIRST_PAUSE_SECONDS = 0.05
LAST_PAUSE_SECONDS = 5.0


class BackgroundThread:
    """Calls `body` again and again until it is asked to stop.

    Each call is a turn. It returns within `IDLE_SECONDS` if there is nothing to do, and the thread counts as alive
    when it returns. A turn that takes longer calls `beat` meanwhile. An exception ends only its turn: it is logged,
    `on_error` hands back what the turn had taken, and the next turn starts after a pause. `at_end` is called once, in
    the thread, after the last turn. If the thread ends in any other way, the process ends too, and the supervisor
    starts it again. `oldest_job` returns the age in seconds of the oldest job that the thread has to do, or 0: a thread
    may be busy, and yet get nowhere.
    """

    def __init__(
        self,
        name: str,
        body: Callable[[], None],
        *,
        on_error: Callable[[], None] = lambda: None,
        at_end: Callable[[], None] = lambda: None,
        oldest_job: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self.name = name
        self.oldest_job_seconds = oldest_job
        #: Set when the thread should stop. A body that waits should wait for this event.
        self.stopping = threading.Event()
        self._body = body
        self._on_error = on_error
        self._at_end = at_end
        self._pause = FIRST_PAUSE_SECONDS
        self._last_beat = 0.0
        self._starting = threading.Lock()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self.beat()
        _started.add(self)
        self._thread.start()

    def start_once(self) -> None:
        """Start the thread, unless it was started or stopped before. Any thread may call this."""
        if self._thread.ident is not None:
            return
        with self._starting:
            if self._thread.ident is None and not self.stopping.is_set():
                self.start()

    def stop(self, timeout: float = STOP_SECONDS) -> None:
        """Ask the thread to stop, and wait at most `timeout` seconds for its end."""
        self.stopping.set()
        if self._thread.ident is not None:
            self._thread.join(timeout=timeout)

    def beat(self) -> None:
        """Report that the thread is alive."""
        self._last_beat = time.monotonic()

    @property
    def stuck_seconds(self) -> float:
        """The seconds since the last report, or the age of the oldest job if that is more.

        While a thread of the process waits for the database or Redis, jobs wait for these and not for the thread.
        """
        silent_seconds = time.monotonic() - self._last_beat
        return silent_seconds if _waiting_out else max(silent_seconds, self.oldest_job_seconds())

    def _run(self) -> None:
        try:
            while not self.stopping.is_set():
                self._turn()
            self._guarded(self._at_end)
            _started.discard(self)
        finally:
            if self in _started:
                logger.critical("thread %s ended unasked, and the process ends with it", self.name)
                end_process()

    def _turn(self) -> None:
        if self._guarded(self._body):
            self.beat()
            self._pause = FIRST_PAUSE_SECONDS
            return
        self._guarded(self._on_error)
        self.stopping.wait(self._pause)
        self._pause = min(self._pause * 2, LAST_PAUSE_SECONDS)

    def _guarded(self, work: Callable[[], None]) -> bool:
        """Do the work and return whether it ended without an exception."""
        try:
            work()
        except Exception:
            logger.exception("an unexpected error in thread %s, which goes on", self.name)
            return False
        return True


def stuck_seconds() -> dict[str, float]:
    """Return, for each background thread of this process, the seconds since its last report or of its oldest job."""
    return {thread.name: thread.stuck_seconds for thread in list(_started)}


def threads_stuck() -> list[str]:
    """Return the background threads of this process that have stopped working, or whose jobs wait too long."""
    return sorted(name for name, seconds in stuck_seconds().items() if seconds > STUCK_SECONDS)


def oldest_job_seconds() -> float:
    """Return the age of the oldest job that a background thread of this process has to do; 0 if there is none."""
    return max((thread.oldest_job_seconds() for thread in list(_started)), default=0.0)


def note_outage() -> None:
    """Report that the calling thread waits for the database or Redis, and is alive."""
    caller = threading.get_ident()
    _waiting_out.add(caller)
    for thread in list(_started):
        if thread._thread.ident == caller:
            thread.beat()


def end_outage() -> None:
    """Report that the calling thread no longer waits for the database or Redis."""
    _waiting_out.discard(threading.get_ident())


def end_process() -> None:
    """End the process at once. To go on without one of its threads would lose more than a restart."""
    logging.shutdown()
    os._exit(os.EX_SOFTWARE)


_started: WeakSet[BackgroundThread] = WeakSet()
#: The threads that wait for the database or Redis.
_waiting_out: set[int] = set()
# A forked process has the objects of its parent's threads, but not the threads.
os.register_at_fork(after_in_child=_started.clear)
os.register_at_fork(after_in_child=_waiting_out.clear)
