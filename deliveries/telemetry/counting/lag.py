"""How far the rollup is behind, for other processes: a small file that it renews every few seconds."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from deliveries.telemetry.journal.files import runner_lives

STATE = "rollup.json"
#: An older file means that the rollup, or its thread, does not run.
FRESH_SECONDS = 30.0
#: If segments wait and none is counted for this long, the rollup makes no progress.
LAG_SECONDS = 60.0


class Lag:
    """Keeps the file of one rollup. Times are seconds since 1970."""

    def __init__(self, folder: Path, *, clock: Callable[[], float] = time.time) -> None:
        self._path = folder / STATE
        self._clock = clock
        self._progressed_at = 0.0
        #: Since when the previous rollup made no progress, which may have ended for that reason.
        self._stuck_at = _read(self._path).get("since")
        self._seen: dict[str, float] = {}
        #: Since when segments wait without progress; None when none waits.
        self._since: float | None = None

    def forget(self) -> None:
        """Replace the file of the previous rollup by one that is as good as none."""
        self._store(at=0.0, since=self._stuck_at)

    def progressed(self) -> None:
        """Note that a batch was counted."""
        self._progressed_at, self._stuck_at = self._clock(), None

    def write(self, waiting: Iterable[str]) -> None:
        """Write how many segments wait, and since when they do without progress."""
        now = self._clock()
        self._seen = {name: self._seen.get(name, now) for name in waiting}
        self._since = None
        if self._seen:
            self._since = self._stuck_at or max(min(self._seen.values()), self._progressed_at)
        self._store(at=now, since=self._since)

    def _store(self, *, at: float, since: float | None) -> None:
        hidden = self._path.with_name(f".{STATE}")
        hidden.write_text(json.dumps({"at": at, "waiting": len(self._seen), "since": since}))
        hidden.rename(self._path)

    def seconds(self) -> float:
        """Return how long segments had been waiting without progress at the last `write`."""
        return max(self._clock() - self._since, 0.0) if self._since is not None else 0.0


def lag_seconds(folder: Path, *, now: float) -> float | None:
    """Return for how long segments have waited without any being counted; 0 if none waits, None without a rollup."""
    state = _read(folder / STATE)
    if not state or now - state["at"] > FRESH_SECONDS:
        return None
    return max(now - state["since"], 0.0) if state["since"] is not None else 0.0


def _read(path: Path) -> dict[str, Any]:
    """Return what a rollup wrote; {} without one."""
    try:
        return dict(json.loads(path.read_text()))
    except (OSError, ValueError):
        return {}


def keeps_up(folder: Path, *, clock: Callable[[], float] = time.time) -> bool:
    """Return whether a rollup runs on the folder and makes progress."""
    lag = lag_seconds(folder, now=clock())
    return lag is not None and lag <= LAG_SECONDS and runner_lives(folder)
