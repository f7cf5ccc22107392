"""A lane's flow control as Redis holds it, and what code besides rules.lua, which has the law, needs to know of it."""

from __future__ import annotations

import math
from enum import IntEnum
from typing import Annotated, NamedTuple

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
    """The fields that rules.lua describes, each with its short name in Redis, as a new lane has them."""

    window: Annotated[float, "w"] = 3.0
    ack_ratio: Annotated[float, "r"] = 1.0
    latency_ms: Annotated[float, "l"] = 0.0
    results_seen: Annotated[float, "n"] = 0.0
    nack_share: Annotated[float, "s"] = 0.0
    #: As if the lane had seen this many acks, so that its first nack is not a share of 100 %.
    nack_share_seen: Annotated[float, "sn"] = 20.0
    gap_ms: Annotated[float, "gap"] = 0.0
    phase: Annotated[float, "ph"] = Phase.SLOW_START
    round_began_ms: Annotated[float, "t"] = 0.0
    round_size: Annotated[float, "o"] = 3.0
    round_results: Annotated[float, "c"] = 0.0
    round_nacks: Annotated[float, "f"] = 0.0
    round_latency_ms: Annotated[float, "q"] = 0.0
    round_peak: Annotated[float, "peak"] = 0.0
    base_size: Annotated[float, "bo"] = 0.0
    base_results: Annotated[float, "bc"] = 0.0
    base_nacks: Annotated[float, "bf"] = 0.0
    base_latency_ms: Annotated[float, "bl"] = 0.0
    step: Annotated[float, "step"] = 0.0
    turn: Annotated[float, "turn"] = 0.0
    first_nacks: Annotated[float, "fn"] = 0.0
    retry_nacks: Annotated[float, "rn"] = 0.5
    poisoned: Annotated[float, "poison"] = 0.0
    retries_out: Annotated[float, "rout"] = 0.0
    retry_credit: Annotated[float, "rc"] = 0.0
    backoff_level: Annotated[float, "v"] = 0.0
    backoff_since_ms: Annotated[float, "since"] = 0.0
    resume_ms: Annotated[float, "resume"] = 0.0
    acked_ms: Annotated[float, "acked"] = 0.0
    bucket_tokens: Annotated[float, "b"] = 0.0
    bucket_filled_ms: Annotated[float, "bt"] = 0.0
    cap: Annotated[float, "cap"] = 0.0
    rate: Annotated[float, "rate"] = 0.0
    burst: Annotated[float, "burst"] = 0.0

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
