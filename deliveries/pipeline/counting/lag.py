"""How far the rollup is behind, for those who look from outside: a small file that it renews every few seconds."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from deliveries.journal.files import runner_lives

STATE = "rollup.json"
#: An older file is that of a rollup that does not run, or whose thread does not.
FRESH_SECONDS = 30.0
#: Segments that wait while none is counted for so long mean that the rollup stands still.
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
        """Remove what the rollup before wrote."""
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
    """How long segments have been waiting without any being counted; 0 when none waits, None when nobody says."""
    try:
        state = json.loads((folder / STATE).read_text())
    except (OSError, ValueError):
        return None
    if now - state["at"] > FRESH_SECONDS:
        return None
    return max(now - state["since"], 0.0) if state["since"] is not None else 0.0


def keeps_up(folder: Path, *, clock: Callable[[], float] = time.time) -> bool:
    """Whether a rollup runs on the folder and counts what comes."""
    lag = lag_seconds(folder, now=clock())
    return lag is not None and lag <= LAG_SECONDS and runner_lives(folder)
