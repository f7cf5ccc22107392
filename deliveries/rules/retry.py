"""How long a nacked message waits before its next attempt: its subscription's `retryPolicy`, or the default bounds."""

from __future__ import annotations

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

#: The bounds without a retryPolicy, which are those of Cloud Pub/Sub's push backoff.
MINIMUM_MS = 100
MAXIMUM_MS = 60_000
#: The jitter to either side, as a share of the countdown: messages that were nacked together come back apart.
JITTER = 0.25
#: More doublings would exceed any maximum (100 ms * 2^40 is 3,000 years).
DOUBLINGS = 40

#: The statuses whose Retry-After counts.
RETRY_AFTER_STATUSES = frozenset({429, 503})


def retry_after_seconds(value: str, *, now: datetime) -> float:
    """Return the seconds that a Retry-After header asks for, as a number or an HTTP date; 0 for anything else."""
    if value.isascii() and value.isdigit():
        return float(value[:9])
    try:
        moment = parsedate_to_datetime(value)
    except (ValueError, OverflowError):
        return 0.0
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max((moment - now).total_seconds(), 0.0)


def countdown_ms(
    attempt: int,
    *,
    dice: float,
    minimum_ms: float | None = None,
    maximum_ms: float | None = None,
    at_least_ms: float = 0.0,
) -> float:
    """Return the wait after a failed attempt (the first attempt is 1): minimum * 2^(attempt - 1) with jitter.

    The wait stays within the bounds, including the jitter, for which `dice` is in [0, 1). It has to grow whatever the
    minimum, so the doubling starts from at least `MINIMUM_MS`; only a maximum of 0 means that there is never a wait.
    `at_least_ms` is the wait that the endpoint asked for; it counts up to the maximum, and gets jitter too. Without it,
    rules.lua has the same arithmetic, for leases that lapse.
    """
    maximum = MAXIMUM_MS if maximum_ms is None else maximum_ms
    minimum = min(MINIMUM_MS if minimum_ms is None else minimum_ms, maximum)
    doublings = min(max(attempt - 1, 0), DOUBLINGS)
    middle = min(max(minimum, MINIMUM_MS) * 2.0**doublings, maximum)
    lowest = max(minimum, middle * (1 - JITTER))
    highest = min(maximum, middle * (1 + JITTER))
    asked = min(at_least_ms * (1 + JITTER * dice), maximum)
    return max(lowest + (highest - lowest) * dice, asked)
