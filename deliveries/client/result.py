"""The result of a push request."""

from __future__ import annotations

from typing import NamedTuple


class PushResult(NamedTuple):
    """The status of a complete response, or the reason why there is none.

    `reason` is "" for a complete response. Otherwise it is a `deliveries.rules.outcome.Reason`, and `status` is 0. A
    response whose body does not match its head is incomplete, whatever its status.
    """

    status: int
    reason: str
    latency_ms: float
    #: The Retry-After of a 429 or 503; 0 without one.
    retry_after_s: float = 0.0
    #: The first bytes of an answer that is no ack, as people read them (answer.py), if they were to be kept.
    answer: str = ""
