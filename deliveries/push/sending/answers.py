"""How much a process keeps of endpoints' failing answers, if their subscriptions ask for it."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache

KEEP_ANSWERS = "x-pushhub-keep-answers"
PERIOD_SECONDS = 60.0
#: Characters in each minute: of all subscriptions, and of one, so that none takes it all.
ALL = 1_000_000
ONE = 100_000
#: What the journal has instead of a further one.
NOT_KEPT = "(not kept: too many answers of this minute were)"


class KeptAnswers:
    """Counts what is kept in the present minute. Only one thread may use it."""

    def __init__(self, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._began = monotonic()
        self._kept: dict[int, int] = {}
        self._all = 0

    def keep(self, subscription_id: int, answer: str) -> str:
        """Return the answer if it may be kept, else NOT_KEPT."""
        now = self._monotonic()
        if now - self._began >= PERIOD_SECONDS:
            self._began, self._all = now, 0
            self._kept.clear()
        kept = self._kept.get(subscription_id, 0)
        if self._all + len(answer) > ALL or kept + len(answer) > ONE:
            return NOT_KEPT
        self._all += len(answer)
        self._kept[subscription_id] = kept + len(answer)
        return answer


@cache
def kept_answers() -> KeptAnswers:
    """Return the counts of this process."""
    return KeptAnswers()
