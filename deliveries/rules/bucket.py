"""The optional rate limit of a subscription: a bucket that gains `rate` tokens per second and holds at most `burst`."""

from __future__ import annotations

import math
from typing import NamedTuple


class Bucket(NamedTuple):
    """A bucket as it was at `filled_ms`; a new bucket is full."""

    tokens: float = 0.0
    filled_ms: float = 0.0


def depth(rate: float, burst: float) -> float:
    """Return how many tokens a bucket holds: the burst, or a second's worth without one; at least 1."""
    return max(burst if burst > 0 else rate, 1.0)


def refilled(bucket: Bucket, *, now_ms: float, rate: float, burst: float) -> Bucket:
    """Return the bucket at this time; a clock that went back refills nothing."""
    gained = max(now_ms - bucket.filled_ms, 0.0) * rate / 1000.0
    return Bucket(min(bucket.tokens + gained, depth(rate, burst)), max(now_ms, bucket.filled_ms))


def whole(bucket: Bucket) -> int:
    """Return how many messages the bucket has tokens for."""
    return math.floor(bucket.tokens)


def spent(bucket: Bucket, count: int) -> Bucket:
    return Bucket(bucket.tokens - count, bucket.filled_ms)


def next_ms(bucket: Bucket, *, rate: float) -> float:
    """Return when the bucket holds a whole token again."""
    return bucket.filled_ms + max(1.0 - bucket.tokens, 0.0) * 1000.0 / rate
