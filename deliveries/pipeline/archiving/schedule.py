"""Starts runs of the archive when beat says so. Each has its own process, because it needs Java.

Any maintenance worker may start the next run. One that works on the archive has its lock.
"""

from __future__ import annotations

import atexit
import logging
import subprocess
import sys
from collections.abc import Callable

from django.conf import settings

from deliveries.backlog.connection import redis_client
from deliveries.backlog.records import PREFIX
from deliveries.pipeline import needs
from deliveries.pipeline.archiving.locks import is_archiving
from deliveries.store import messagerows

logger = logging.getLogger(__name__)

#: How often a run also compacts. Each compaction writes the day's small files again.
COMPACT_SECONDS = 3600
#: Exists in Redis for that time after a run that compacts was started.
COMPACTED_KEY = f"{PREFIX}compacted"
#: With this verbosity, a run that had nothing to do prints nothing.
COMMAND = (sys.executable, "-m", "django", "pipeline", "archive", "--verbosity", "0")
STOP_SECONDS = 10.0


class Schedule:
    """Starts and stops the runs of this process."""

    def __init__(
        self,
        *,
        command: tuple[str, ...] = COMMAND,
        missing: Callable[[], str] = needs.missing,
        has_news: Callable[[], bool] = lambda: messagerows.oldest_unarchived() is not None,
        is_busy: Callable[[], bool] = lambda: is_archiving(settings.ARCHIVE),
    ) -> None:
        self._command = command
        self._missing = missing
        self._has_news = has_news
        self._is_busy = is_busy
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> bool:
        """Start a run if there is something to do and the previous run is over; return whether a run was started."""
        if self._process is not None and self._process.poll() is None:
            return False
        is_compacting = not redis_client().exists(COMPACTED_KEY)
        if not (is_compacting or self._has_news()) or self._is_busy():
            return False
        if lacking := self._missing():
            logger.warning("messages wait in the database for the archive, which needs Spark: %s", lacking)
            return False
        if is_compacting:
            redis_client().set(COMPACTED_KEY, 1, ex=COMPACT_SECONDS)
        words = ["--compact"] if is_compacting else []
        self._process = subprocess.Popen([*self._command, *words], stdin=subprocess.DEVNULL)  # noqa: S603
        return True

    def stop(self) -> None:
        """Stop the current run, if there is one. The next run removes what it leaves."""
        if self._process is None or self._process.poll() is not None:
            return
        self._process.terminate()
        try:
            self._process.wait(timeout=STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


schedule = Schedule()
atexit.register(schedule.stop)
