"""When a lane may send: push window, push backoff and rate limit together, as rules.lua applies them."""

from __future__ import annotations

from typing import NamedTuple

from deliveries.rules import backoff, bucket, window
from deliveries.rules.share import BURST_SECONDS

#: The first attempts of a message say something about its endpoint; later failures say something about the message.
TELLING_ATTEMPTS = 2


class Flow(NamedTuple):
    """The flow control of one lane."""

    window: window.Window = window.Window()
    backoff: backoff.Backoff = backoff.Backoff()
    bucket: bucket.Bucket = bucket.Bucket()
    #: The subscription's own limits; 0 is none.
    cap: float = 0.0
    rate: float = 0.0
    burst: float = 0.0


def result(flow: Flow, *, acked: bool, latency_ms: float, now_ms: float, dice: float, repeated: bool = False) -> Flow:
    """Return the flow after one result. A result that starts a pause also restarts the window.

    `repeated`: the message has failed twice already, so that this result says little about the endpoint.
    """
    changed = window.with_means(flow.window, acked=acked, latency_ms=latency_ms)
    slowed = backoff.after_result(
        flow.backoff, acked=acked, latency_ms=latency_ms, now_ms=now_ms, dice=dice, repeated=repeated
    )
    # A nack that counts moves `since_ms`. Above the free level it starts a pause, which may end when the last one does.
    if slowed.since_ms > flow.backoff.since_ms and backoff.is_backing_off(slowed):
        if not backoff.is_backing_off(flow.backoff):
            changed = window.with_round_learned(changed)
        changed = window.restarted(changed, at_ms=slowed.resume_ms)
    elif not repeated:
        changed = window.after_result(changed, acked=acked, latency_ms=latency_ms, now_ms=now_ms)
    return Flow(changed, slowed, flow.bucket, flow.cap, flow.rate, flow.burst)


def restarted(flow: Flow, *, now_ms: float) -> Flow:
    """Return the flow of a lane whose past results say nothing about its next requests; only its limits stay.

    Results of requests that began before `now_ms` no longer count.
    """
    fresh = window.Window(round=window.Round(began_ms=now_ms))
    return Flow(fresh, backoff.Backoff(since_ms=now_ms), flow.bucket, flow.cap, flow.rate, flow.burst)


def is_repeated(attempt: int) -> bool:
    """Return whether this attempt says little about the endpoint, because the message has failed often enough.

    The first attempt is 1.
    """
    return attempt > TELLING_ATTEMPTS


def tokens(flow: Flow) -> int:
    """Return how many messages may be outstanding: the window, or one in backoff."""
    return 1 if backoff.is_backing_off(flow.backoff) else window.tokens(flow.window, cap=flow.cap)


def free(flow: Flow, *, outstanding: int, now_ms: float) -> int:
    """Return how many messages may be sent now, besides the outstanding ones."""
    if backoff.is_paused(flow.backoff, now_ms=now_ms):
        return 0
    room = max(tokens(flow) - outstanding, 0)
    rate, burst = _limit(flow)
    if rate > 0:
        room = min(room, bucket.whole(bucket.refilled(flow.bucket, now_ms=now_ms, rate=rate, burst=burst)))
    return room


def sent(flow: Flow, *, count: int, outstanding: int, now_ms: float) -> Flow:
    """Return the flow after `count` messages were sent; `outstanding` includes them."""
    rate, burst = _limit(flow)
    left = flow.bucket
    if rate > 0:
        left = bucket.spent(bucket.refilled(left, now_ms=now_ms, rate=rate, burst=burst), count)
    used = window.sent(flow.window, outstanding=float(outstanding))
    return Flow(used, flow.backoff, left, flow.cap, flow.rate, flow.burst)


def bucket_wait_ms(flow: Flow, *, now_ms: float) -> float | None:
    """Return when the rate limit allows the next message, or None if it allows it now."""
    rate, burst = _limit(flow)
    if rate <= 0:
        return None
    filled = bucket.refilled(flow.bucket, now_ms=now_ms, rate=rate, burst=burst)
    return None if filled.tokens >= 1 else bucket.next_ms(filled, rate=rate)


def pause_ms(flow: Flow, *, now_ms: float) -> float:
    """Return how long the push backoff holds the next delivery back: the rest of a pause, or the gap between two."""
    return max(flow.backoff.resume_ms - now_ms, flow.window.share.gap_ms, 0.0)


def _limit(flow: Flow) -> tuple[float, float]:
    """Return the rate and the burst: the subscription's own limit, or the one that its nacks impose, if lower."""
    gap_ms = flow.window.share.gap_ms
    if gap_ms <= 0:
        return flow.rate, flow.burst
    rate = 1000.0 / gap_ms
    if flow.rate > 0:
        rate = min(rate, flow.rate)
        return rate, min(rate * BURST_SECONDS, flow.burst if flow.burst > 0 else flow.rate)
    return rate, rate * BURST_SECONDS
