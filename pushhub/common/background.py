"""Background threads. Each survives any exception of its work, and tells when it last gave a sign of life."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from weakref import WeakSet

logger = logging.getLogger(__name__)

#: A body that has nothing to do waits at most this long, so that an idle thread gives signs of life too.
IDLE_SECONDS = 5.0
#: A thread that gave no sign of life for so long stands still. A busy SQLite makes one statement wait for 30 s.
SILENT_SECONDS = 60.0
#: Pauses after a failed round: they double from the first to the last.
FIRST_PAUSE_SECONDS = 0.05
LAST_PAUSE_SECONDS = 5.0


def nothing() -> None:
    """What most threads do after an exception, and at their end."""


class BackgroundThread:
    """Calls `body` again and again until it is asked to stop.

    One call is a round: it returns within `IDLE_SECONDS` where there is nothing to do, and the return is a sign of
    life. A round that takes longer calls `beat` meanwhile. An exception ends the round only: it is logged, `on_error`
    hands back what the round had taken, and the next round begins after a pause. `at_end` is called once, in the
    thread, after the last round. Should the thread end in any other way, the process ends with it, for the supervisor
    to start it again.
    """

    def __init__(
        self,
        name: str,
        body: Callable[[], None],
        *,
        on_error: Callable[[], None] = nothing,
        at_end: Callable[[], None] = nothing,
    ) -> None:
        self.name = name
        #: Set when the thread shall stop; a body that waits should wait for this.
        self.stopping = threading.Event()
        self._body = body
        self._on_error = on_error
        self._at_end = at_end
        self._pause = FIRST_PAUSE_SECONDS
        self._seen = 0.0
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self.beat()
        _started.add(self)
        self._thread.start()

    def stop(self, timeout: float) -> None:
        """Ask the thread to stop, and wait for its end at most `timeout` seconds."""
        self.stopping.set()
        if self._thread.ident is not None:
            self._thread.join(timeout=timeout)

    def beat(self) -> None:
        """Give a sign of life."""
        self._seen = time.monotonic()

    @property
    def silent_seconds(self) -> float:
        """How long ago the last sign of life was."""
        return time.monotonic() - self._seen

    def _run(self) -> None:
        try:
            while not self.stopping.is_set():
                self._round()
            self._guarded(self._at_end)
            _started.discard(self)
        finally:
            if self in _started:
                logger.critical("thread %s ended unasked, and the process ends with it", self.name)
                end_process()

    def _round(self) -> None:
        if self._guarded(self._body):
            self.beat()
            self._pause = FIRST_PAUSE_SECONDS
            return
        self._guarded(self._on_error)
        self.stopping.wait(self._pause)
        self._pause = min(self._pause * 2, LAST_PAUSE_SECONDS)

    def _guarded(self, work: Callable[[], None]) -> bool:
        """Whether the work was done without an exception."""
        try:
            work()
        except Exception:
            logger.exception("an unexpected error in thread %s, which goes on", self.name)
            return False
        return True


def silences() -> dict[str, float]:
    """For each background thread of this process, the seconds since its last sign of life."""
    return {thread.name: thread.silent_seconds for thread in list(_started)}


def threads_silent() -> list[str]:
    """The background threads of this process that stand still."""
    return sorted(name for name, seconds in silences().items() if seconds > SILENT_SECONDS)


def end_process() -> None:
    """End at once: who works on with a part of its threads missing loses more than who starts again."""
    logging.shutdown()
    os._exit(os.EX_SOFTWARE)


_started: WeakSet[BackgroundThread] = WeakSet()
# A fork has the objects of its parent's threads and not the threads.
os.register_at_fork(after_in_child=_started.clear)
