"""All that says when a lane may send: push window, push backoff and rate limit together, as rules.lua applies them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from deliveries.rules import backoff, bucket, window


@dataclass(frozen=True, slots=True)
class Flow:
    """The flow control of one lane. In comments: the fields of rules.lua."""

    window: window.Window = field(default_factory=window.Window)
    backoff: backoff.Backoff = field(default_factory=backoff.Backoff)
    bucket: bucket.Bucket = field(default_factory=bucket.Bucket)
    #: Tokens held when messages were last sent off.
    peak: float = 0.0  # peak
    #: The subscription's own limits; 0 is none.
    cap: float = 0.0  # cap
    rate: float = 0.0  # rate
    burst: float = 0.0  # burst


def result(flow: Flow, *, acked: bool, latency_ms: float, now_ms: float, dice: float) -> Flow:
    """The flow after one result. A result that starts a pause also restarts the window."""
    grown = window.after_result(flow.window, acked=acked, latency_ms=latency_ms, outstanding=flow.peak)
    slowed = backoff.after_result(flow.backoff, acked=acked, latency_ms=latency_ms, now_ms=now_ms, dice=dice)
    if slowed.resume_ms > flow.backoff.resume_ms:
        grown = window.restarted(grown)
    return replace(flow, window=grown, backoff=slowed)


def tokens(flow: Flow) -> int:
    """How many messages may be outstanding: the window, or one in backoff."""
    return 1 if backoff.is_backing_off(flow.backoff) else window.tokens(flow.window, cap=flow.cap)


def free(flow: Flow, *, outstanding: int, now_ms: float) -> int:
    """How many messages may be sent off now, with so many outstanding."""
    if backoff.is_paused(flow.backoff, now_ms=now_ms):
        return 0
    room = max(tokens(flow) - outstanding, 0)
    if flow.rate > 0:
        room = min(room, bucket.whole(_refilled(flow, now_ms)))
    return room


def sent(flow: Flow, *, count: int, outstanding: int, now_ms: float) -> Flow:
    """The flow after `count` messages were sent off; `outstanding` includes them."""
    if flow.rate > 0:
        flow = replace(flow, bucket=bucket.spent(_refilled(flow, now_ms), count))
    return replace(flow, peak=float(outstanding))


def bucket_wait_ms(flow: Flow, *, now_ms: float) -> float | None:
    """When the rate limit lets the next message go; None when it does so now."""
    if flow.rate <= 0:
        return None
    filled = _refilled(flow, now_ms)
    return None if filled.tokens >= 1 else bucket.next_ms(filled, rate=flow.rate)


def _refilled(flow: Flow, now_ms: float) -> bucket.Bucket:
    return bucket.refilled(flow.bucket, now_ms=now_ms, rate=flow.rate, burst=flow.burst)
