"""A lane's flow control as Redis holds it, and what code besides rules.lua, which has the law, needs to know of it."""

from __future__ import annotations

import math
from enum import IntEnum
from typing import NamedTuple

#: The push backoff begins above this level. Up to it nothing pauses: the nacks may be due to bad messages, which have
#: their own retry countdown.
FREE_LEVEL = 3.0


class Phase(IntEnum):
    """What the results of a round are for."""

    SLOW_START = 0
    REST = 1
    BASE = 2
    #: Trials; they take turns in this order.
    LARGER = 3
    FEWER_NACKS = 4
    LOWER_LATENCY = 5


class Flow(NamedTuple):
    """The fields that rules.lua describes, as a new lane has them."""

    window: float = 3.0
    ack_ratio: float = 1.0
    latency_ms: float = 0.0
    results_seen: float = 0.0
    nack_share: float = 0.0
    #: As if the lane had seen this many acks, so that its first nack is not a share of 100 %.
    nack_share_seen: float = 20.0
    gap_ms: float = 0.0
    phase: float = Phase.SLOW_START
    round_began_ms: float = 0.0
    round_size: float = 3.0
    round_results: float = 0.0
    round_nacks: float = 0.0
    round_latency_ms: float = 0.0
    round_peak: float = 0.0
    base_size: float = 0.0
    base_results: float = 0.0
    base_nacks: float = 0.0
    base_latency_ms: float = 0.0
    step: float = 0.0
    turn: float = 0.0
    first_nacks: float = 0.0
    retry_nacks: float = 0.5
    poisoned: float = 0.0
    retries_out: float = 0.0
    retry_credit: float = 0.0
    backoff_level: float = 0.0
    backoff_since_ms: float = 0.0
    resume_ms: float = 0.0
    acked_ms: float = 0.0
    bucket_tokens: float = 0.0
    bucket_filled_ms: float = 0.0
    cap: float = 0.0
    rate: float = 0.0
    burst: float = 0.0

    @property
    def tokens(self) -> int:
        """The push window in whole messages, without the subscription's own limit."""
        return math.floor(self.window)

    @property
    def is_backing_off(self) -> bool:
        """Whether messages go one at a time."""
        return self.backoff_level > FREE_LEVEL

    def pause_ms(self, *, now_ms: float) -> float:
        """Return how long the next delivery is held back: the rest of a pause, or the gap between two deliveries."""
        return max(self.resume_ms - now_ms, self.gap_ms, 0.0)
