"""What became of one push request."""

from __future__ import annotations

from typing import NamedTuple


class PushResult(NamedTuple):
    """A status of the endpoint's, or a reason why there is none.

    `reason` is "" for a whole answer, whose status then decides; else a word of `deliveries.rules.outcome.Reason`, with
    status 0. An answer whose body did not come as its head promised is no whole answer, whatever its status was.
    """

    status: int
    reason: str
    latency_ms: float
    #: What a 429 or a 503 asks for with Retry-After; 0 where it doesn't.
    retry_after_s: float = 0.0
