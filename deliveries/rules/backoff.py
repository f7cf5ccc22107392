"""The pause of a whole lane while all results are nacks (docs/spec.md#push-backoff).

A level counts the nacks since the last ack. Above `FREE_LEVEL` the lane is in backoff: it sends one message at a time,
and each nack starts a pause of 100 ms to 60 s that doubles with the level. One ack ends the backoff.

A nack counts only if its request began after the previous nack was known, and an ack only if its request began after
the last pause, because older requests say nothing about the present. So the thousands of requests that are outstanding
when an endpoint dies count as one nack, and an outage of a second costs pauses of about a second. rules.lua has the
same arithmetic, in the same order of operations.
"""

from __future__ import annotations

from typing import NamedTuple

SHORTEST_MS = 100.0
LONGEST_MS = 60_000.0
#: Up to this level nothing pauses: the nacks may be due to bad messages, which have their own retry countdown.
FREE_LEVEL = 3.0
#: The level of the longest pause: at least FREE_LEVEL + log2(LONGEST_MS / SHORTEST_MS).
TOP_LEVEL = 12.25
#: By how much a nack raises the level if its message has failed twice already: it says little about the endpoint.
REPEATED = 0.5


class Backoff(NamedTuple):
    """The push backoff of one lane."""

    level: float = 0.0
    #: Requests that began before this time no longer raise the level (ms).
    since_ms: float = 0.0
    #: Nothing is sent before this time (ms).
    resume_ms: float = 0.0


def is_backing_off(backoff: Backoff) -> bool:
    """Return whether messages go one at a time."""
    return backoff.level > FREE_LEVEL


def is_paused(backoff: Backoff, *, now_ms: float) -> bool:
    return now_ms < backoff.resume_ms


def after_result(
    backoff: Backoff, *, acked: bool, latency_ms: float, now_ms: float, dice: float, repeated: bool = False
) -> Backoff:
    """Return the push backoff after one result, at `now_ms`, of a request that began `latency_ms` before.

    `dice` is in [0, 1). `repeated`: the message has failed twice already.
    """
    began_ms = now_ms - latency_ms
    if acked:
        if began_ms < backoff.resume_ms or backoff.level == 0.0:
            return backoff
        return Backoff(0.0, backoff.since_ms, backoff.resume_ms)
    if began_ms < backoff.since_ms:
        return backoff
    level = min(backoff.level + (REPEATED if repeated else 1.0), TOP_LEVEL)
    if level <= FREE_LEVEL:
        return Backoff(level, now_ms, backoff.resume_ms)
    resume_ms = now_ms + pause_ms(level, dice=dice)
    return Backoff(level, resume_ms, resume_ms)


def pause_ms(level: float, *, dice: float) -> float:
    """Return the pause that a nack starts at this level: 50 to 100 % of 100 ms * 2^(level - FREE_LEVEL), in bounds."""
    doubled: float = 2.0 ** (level - FREE_LEVEL)
    longest = min(SHORTEST_MS * doubled, LONGEST_MS)
    return max(longest * (0.5 + 0.5 * dice), SHORTEST_MS)
