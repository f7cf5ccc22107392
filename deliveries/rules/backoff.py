"""The push backoff: how long a whole lane pauses after nacks (Cloud Pub/Sub push page, "Push backoff").

Only a nack starts a pause. It lasts 100 ms to 60 s and doubles with a level that each nack raises by one, each ack
lowers by a little, and a run of acks sets to zero. While the level is above `FREE_LEVEL` the lane is in backoff and
sends one message at a time.

A result counts only if its request began after the last pause: what was sent before tells of the time before. So the
thousands of nacks in flight when an endpoint dies count as one, and a blip of a second costs pauses of about a second.

The constants were found with `python -m bench.simulate --table`, so that the push page's two examples come out: five
messages and one nack a second make a delivery every 500 ms, nothing but nacks one every 30 to 60 s. rules.lua has the
same arithmetic, in the same order of operations.
"""

from __future__ import annotations

from dataclasses import dataclass

SHORTEST_MS = 100.0
LONGEST_MS = 60_000.0
#: Up to this level nacks are taken for bad messages, which their own retry countdown looks after, and nothing pauses.
FREE_LEVEL = 3.0
#: The level of the longest pause: at least FREE_LEVEL + log2(LONGEST_MS / SHORTEST_MS).
TOP_LEVEL = 12.25
#: An ack takes this much of the level's cube away: a whole step near the top, next to nothing near the bottom. With a
#: fixed share of the level instead, nacks that come at random drive the level up and down so far that pauses of 2 s on
#: average are now 100 ms and now 60 s.
DECAY = 0.0006
#: So many acks in a row, and the endpoint is healed.
HEALED_RUN = 12.0


@dataclass(frozen=True, slots=True)
class Backoff:
    """How a lane stands with its endpoint. In comments: the fields of rules.lua."""

    level: float = 0.0  # v
    #: Acks in a row, at most HEALED_RUN.
    run: float = 0.0  # k
    #: Nothing is sent before this time (ms).
    resume_ms: float = 0.0  # resume


def is_backing_off(backoff: Backoff) -> bool:
    """Whether messages go one at a time."""
    return backoff.level > FREE_LEVEL


def is_paused(backoff: Backoff, *, now_ms: float) -> bool:
    return now_ms < backoff.resume_ms


def after_result(backoff: Backoff, *, acked: bool, latency_ms: float, now_ms: float, dice: float) -> Backoff:
    """The push backoff after one result that came at `now_ms`, `latency_ms` after its request began; dice in [0, 1)."""
    if now_ms - latency_ms < backoff.resume_ms:
        return backoff
    if acked:
        run = min(backoff.run + 1.0, HEALED_RUN)
        level = 0.0 if run == HEALED_RUN else backoff.level - DECAY * backoff.level * backoff.level * backoff.level
        return Backoff(level, run, backoff.resume_ms)
    level = min(backoff.level + 1.0, TOP_LEVEL)
    if level <= FREE_LEVEL:
        return Backoff(level, 0.0, backoff.resume_ms)
    return Backoff(level, 0.0, now_ms + pause_ms(level, dice=dice))


def pause_ms(level: float, *, dice: float) -> float:
    """The pause that a nack starts at this level: half to all of 100 ms * 2^(level - FREE_LEVEL), within the bounds."""
    doubled: float = 2.0 ** (level - FREE_LEVEL)
    longest = min(SHORTEST_MS * doubled, LONGEST_MS)
    return max(longest * (0.5 + 0.5 * dice), SHORTEST_MS)
