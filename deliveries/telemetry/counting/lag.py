"""How far the rollup is behind, for other processes: a small file that it renews every few seconds."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from pathlib import Path

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
        self._seen: dict[str, float] = {}
        #: Since when segments wait without progress; None when none waits.
        self._since: float | None = None

    def forget(self) -> None:
        """Remove the file of the previous rollup."""
        self._path.unlink(missing_ok=True)

    def progressed(self) -> None:
        """Note that a batch was counted."""
        self._progressed_at = self._clock()

    def write(self, waiting: Iterable[str]) -> None:
        """Write how many segments wait, and since when they do without progress."""
        now = self._clock()
        self._seen = {name: self._seen.get(name, now) for name in waiting}
        self._since = max(min(self._seen.values()), self._progressed_at) if self._seen else None
        hidden = self._path.with_name(f".{STATE}")
        hidden.write_text(json.dumps({"at": now, "waiting": len(self._seen), "since": self._since}))
        hidden.rename(self._path)

    def seconds(self) -> float:
        """Return how long segments had been waiting without progress at the last `write`."""
        return max(self._clock() - self._since, 0.0) if self._since is not None else 0.0


def lag_seconds(folder: Path, *, now: float) -> float | None:
    """Return for how long segments have waited without any being counted; 0 if none waits, None without a rollup."""
    try:
        state = json.loads((folder / STATE).read_text())
    except (OSError, ValueError):
        return None
    if now - state["at"] > FRESH_SECONDS:
        return None
    return max(now - state["since"], 0.0) if state["since"] is not None else 0.0


def keeps_up(folder: Path, *, clock: Callable[[], float] = time.time) -> bool:
    """Return whether a rollup runs on the folder and makes progress."""
    lag = lag_seconds(folder, now=clock())
    return lag is not None and lag <= LAG_SECONDS and runner_lives(folder)
