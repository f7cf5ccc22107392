"""The push window: how many messages of a lane, one (subscription, publish region), may be outstanding.

The bounds are those of docs/spec.md#push-window: the window starts at 3 and grows with every ack,
exponentially up to 3,000, then linearly up to 30,000 while more than 99 % of requests are acked and their mean latency
is under a second; otherwise it falls back to 3,000. Every failure shrinks it.

Between the bounds it looks for the size at which the endpoint works best. It never judges by single failures: it
compares two sizes, a windowful of results at each (a round), and keeps the better one. A larger window is better unless
most of what it adds is nacked or the latency rises with it. Nacks that a smaller window does not reduce have nothing to
do with load: the window stays, and they count for the lane's share of nacks instead (share.py).

After slow start rounds follow in a cycle: a rest of two windowfuls, a base, and a trial. The trials take turns: a
larger window, one that is smaller by the base's nacks, and one that is smaller by a quarter. A trial that succeeds
becomes the base of the next, larger step. rules.lua has the same arithmetic, in the same order of operations.
"""

from __future__ import annotations

import math
from enum import IntEnum
from typing import NamedTuple

from deliveries.rules.share import Share, learned

START = 3.0
SMALLEST = 1.0
#: Up to this size each ack of slow start adds 1, which doubles the window per round trip.
SLOW_START_LIMIT = 3000.0
LARGEST = 30000.0
#: Beyond slow start a larger window is larger by this much. At 1, as in TCP, 30,000 would be 27,000 round trips away.
LINEAR_STEP = 60.0
#: The conditions for a window beyond slow start.
ACK_RATIO_ABOVE = 0.99
LATENCY_BELOW_MS = 1000.0
#: Ack ratio and mean latency are means over all results at first, and later decay over this many, or a windowful.
MEMORY = 1000.0
#: From this size on a window grows only while at least half of it is used (TCP's congestion window validation, RFC
#: 7661): a trickle of acks proves nothing about thousands of concurrent requests. Below it any ack counts
#: (docs/spec.md#push-window).
UNPROVEN_LIMIT = 100.0

#: A round has a windowful of results, but at least this many: with fewer the comparison would be pure chance.
SHORTEST_ROUND = 16.0
#: The length of a rest in rounds. It makes trials rare, because each costs some nacks at an endpoint's limit.
REST_ROUNDS = 2.0
#: A rest ends early when more than an eighth of a windowful is nacked.
REST_NACKS = 0.125
#: The first trial of a larger window adds half its square root, about as much as nacks vary by chance.
FIRST_STEP = 0.5
#: A larger window is given up if more than this share of what it adds is nacked. One that is smaller by the nacks of
#: its base is kept if it saves this share of them. Either difference must also exceed the square root of the expected
#: nacks, because chance alone makes that much: otherwise random nacks would keep a small window small.
TELLING = 0.35
#: A larger window is given up if its latency exceeds that of its base by the first factor; a smaller one is kept if its
#: latency is below the second.
SLOWER, FASTER = 1.3, 0.85
#: The latency must also differ by so many ms: a smaller difference may come from the worker and its machine.
SLOWER_MS, FASTER_MS = 10.0, 3.0
QUARTER = 0.25
#: From this size on a window that is smaller by a quarter can be tried.
QUARTERED_FROM = 4.0
#: The steps of larger windows double. From this size on a step may double the window: then slow start begins again.
SLOW_START_AGAIN = 8.0
#: Slow start ends when this share of a round is nacked, and two at least, beyond the share that load does not explain.
SLOW_START_NACKS = 0.1
#: From this share of nacks on only smaller windows are tried.
OVERLOADED = 0.25


class Phase(IntEnum):
    """The purpose of a round."""

    SLOW_START = 0
    REST = 1
    BASE = 2
    #: Trials; they take turns in this order.
    LARGER = 3
    FEWER_NACKS = 4
    LOWER_LATENCY = 5


class Round(NamedTuple):
    """Results of requests that were sent after the round began."""

    phase: Phase = Phase.SLOW_START
    began_ms: float = 0.0
    #: The window when it began.
    size: float = START
    results: float = 0.0
    nacks: float = 0.0
    #: The sum over its acks.
    latency_ms: float = 0.0
    #: The largest number of tokens held when messages were sent; 0 if not known yet.
    peak: float = 0.0


class Base(NamedTuple):
    """The round that a trial is compared with."""

    size: float = 0.0
    results: float = 0.0
    nacks: float = 0.0
    #: The mean over its acks; 0 if not known.
    latency_ms: float = 0.0


class Window(NamedTuple):
    """The push window of one lane, and what its size depends on."""

    size: float = START
    ack_ratio: float = 1.0
    latency_ms: float = 0.0
    #: Results behind the two means.
    seen: float = 0.0
    round: Round = Round()
    base: Base = Base()
    #: What the last trial of a larger window added.
    step: float = 0.0
    #: The next trial: 0 LARGER, 1 FEWER_NACKS, 2 LOWER_LATENCY.
    turn: float = 0.0
    share: Share = Share()


def tokens(window: Window, *, cap: float = 0) -> int:
    """Return how many messages may be outstanding. `cap` is the subscription's own upper bound; 0 is none."""
    return math.floor(min(window.size, cap) if cap > 0 else window.size)


def is_fast(window: Window) -> bool:
    """Return whether the window may grow beyond slow start."""
    return window.ack_ratio > ACK_RATIO_ABOVE and window.latency_ms < LATENCY_BELOW_MS


def sent(window: Window, *, outstanding: float) -> Window:
    """Return the window after messages were sent; `outstanding` includes them."""
    if outstanding <= window.round.peak:
        return window
    return window._replace(round=window.round._replace(peak=outstanding))


def with_means(window: Window, *, acked: bool, latency_ms: float) -> Window:
    """Return the window with one more result in its ack ratio and mean latency."""
    seen = min(window.seen + 1, max(MEMORY, window.size))
    ack_ratio = window.ack_ratio + ((1.0 if acked else 0.0) - window.ack_ratio) / seen
    mean = window.latency_ms + (latency_ms - window.latency_ms) / seen
    return Window(window.size, ack_ratio, mean, seen, window.round, window.base, window.step, window.turn, window.share)


def after_result(window: Window, *, acked: bool, latency_ms: float, now_ms: float) -> Window:
    """Return the window after a result that is already in its means."""
    round_, size = window.round, window.size
    counts = now_ms - latency_ms >= round_.began_ms
    if not acked:
        # A nack keeps its token until the round is over, unless its request began before the round.
        size = max(size - 1, SMALLEST) if counts else size
    elif round_.phase == Phase.SLOW_START and size < SLOW_START_LIMIT and _is_proven(size, round_.peak):
        size = min(size + 1, SLOW_START_LIMIT)
    if counts:
        round_ = Round(
            round_.phase,
            round_.began_ms,
            round_.size,
            round_.results + 1,
            round_.nacks + (0.0 if acked else 1.0),
            round_.latency_ms + (latency_ms if acked else 0.0),
            round_.peak,
        )
    window = Window(
        size,
        window.ack_ratio,
        window.latency_ms,
        window.seen,
        round_,
        window.base,
        window.step,
        window.turn,
        window.share,
    )
    if size > SLOW_START_LIMIT and not is_fast(window):
        return _began(window, Phase.REST, size=SLOW_START_LIMIT, now_ms=now_ms)
    return _after_round(window, now_ms=now_ms) if counts and _is_over(window) else window


def restarted(window: Window, *, at_ms: float) -> Window:
    """Return the window after the beginning of a pause: slow start begins again at the pause's end."""
    return _began(window._replace(base=Base()), Phase.SLOW_START, size=SMALLEST, now_ms=at_ms)


def with_round_learned(window: Window) -> Window:
    """Return the window with the results of its current round in the share of nacks."""
    round_ = window.round
    if not round_.results:
        return window
    used = min(round_.size, round_.peak) if round_.peak > 0 else round_.size
    return window._replace(share=learned(window.share, nacks=round_.nacks, results=round_.results, window=used))


def _is_proven(size: float, peak: float) -> bool:
    return size < UNPROVEN_LIMIT or peak == 0.0 or 2 * peak >= size


def _is_over(window: Window) -> bool:
    round_, base = window.round, window.base
    full = max(min(round_.size, round_.peak) if round_.peak > 0 else round_.size, SHORTEST_ROUND)
    if round_.phase == Phase.REST:
        return round_.results >= REST_ROUNDS * full or round_.nacks >= max(REST_NACKS * full, 2.0)
    if round_.results >= full:
        return True
    if round_.phase != Phase.LARGER or base.results == 0:
        return False
    # A larger window that can only fail has failed.
    expected = base.nacks / base.results * full
    surplus = round_.nacks - max(expected, window.share.nacks * full)
    return surplus >= _telling(round_.size - base.size, expected)


def _telling(nacks: float, expected: float) -> float:
    """Return how large a difference of nacks must be: a share of `nacks`, and more than chance makes of `expected`."""
    return max(TELLING * nacks, math.sqrt(expected))


def _after_round(window: Window, *, now_ms: float) -> Window:
    """Return the window after the end of a round, with the next round begun."""
    round_, base = window.round, window.base
    phase, size, nacks, results = round_.phase, round_.size, round_.nacks, round_.results
    acks = results - nacks
    latency_ms = round_.latency_ms / acks if acks > 0 else 0.0
    if round_.peak > 0 and 2 * round_.peak < window.size:
        return _after_idle_round(window, now_ms=now_ms)
    if phase in (Phase.REST, Phase.BASE, Phase.FEWER_NACKS, Phase.LOWER_LATENCY):
        window = with_round_learned(window)
    if phase == Phase.REST:
        return _began(window, Phase.BASE, size=size, now_ms=now_ms)
    this = Base(size, results, nacks, latency_ms)
    if phase == Phase.BASE:
        return _trial(window._replace(base=this), now_ms=now_ms)
    is_known = latency_ms > 0 and base.latency_ms > 0
    slower = is_known and latency_ms > max(SLOWER * base.latency_ms, base.latency_ms + SLOWER_MS)
    if phase == Phase.SLOW_START:
        return _after_slow_start(window, this, slower=slower, now_ms=now_ms)
    expected = base.nacks / base.results * results if base.results > 0 else nacks
    if phase == Phase.LARGER:
        surplus = nacks - max(expected, window.share.nacks * results)
        if surplus >= _telling(size - base.size, expected) or nacks >= OVERLOADED * results or slower:
            return _began(window, Phase.REST, size=base.size, now_ms=now_ms)
        # The latency goes on being compared with that of the first base.
        this = Base(size, results, nacks, base.latency_ms)
        return _larger(window._replace(base=this), step=2 * window.step, now_ms=now_ms)
    if phase == Phase.FEWER_NACKS:
        kept = base.nacks > 0 and expected - nacks >= _telling(expected, expected)
        again = nacks > 0 and size > SMALLEST
    else:
        kept = is_known and latency_ms < min(FASTER * base.latency_ms, base.latency_ms - FASTER_MS)
        again = size >= QUARTERED_FROM
    if not kept:
        return _began(window, Phase.REST, size=base.size, now_ms=now_ms)
    window = window._replace(base=this)
    return _smaller(window, phase, now_ms=now_ms) if again else _began(window, Phase.REST, size=size, now_ms=now_ms)


def _after_idle_round(window: Window, *, now_ms: float) -> Window:
    """Return the window after a round that used less than half of it, so that its size explains nothing."""
    round_ = window.round
    window = with_round_learned(window)._replace(base=window.base._replace(results=0.0))
    if round_.phase == Phase.SLOW_START:
        return _began(window, Phase.SLOW_START, size=max(window.size, round_.size), now_ms=now_ms)
    size = round_.size if round_.phase in (Phase.REST, Phase.BASE) else window.base.size
    if window.share.gap_ms > 0:
        # A lane with a gap gives up the part of its window that it does not use, so that the size counts again.
        size = min(size, round_.peak + 1)
    return _began(window, Phase.REST, size=size, now_ms=now_ms)


def _after_slow_start(window: Window, this: Base, *, slower: bool, now_ms: float) -> Window:
    expected = window.share.nacks * this.results
    # Twice what chance makes: rounds that fail do not count for the share, which they would make too small.
    failed = this.nacks - expected >= max(SLOW_START_NACKS * this.results, 2.0, 2.0 * math.sqrt(expected))
    if not (failed or slower):
        if window.size >= SLOW_START_LIMIT:
            return _began(window, Phase.REST, size=window.size, now_ms=now_ms)
        return _began(with_round_learned(window)._replace(base=this), Phase.SLOW_START, size=window.size, now_ms=now_ms)
    window = window._replace(turn=2.0 if slower else 1.0)
    return _began(window, Phase.REST, size=min(this.size, window.size), now_ms=now_ms)


def _trial(window: Window, *, now_ms: float) -> Window:
    """Begin the trial whose turn it is."""
    base, turn = window.base, window.turn
    if turn == 2 and base.size < QUARTERED_FROM:
        turn = 0.0
    if base.nacks >= OVERLOADED * base.results:
        turn = 1.0
    window = window._replace(turn=(turn + 1) % 3)
    if turn == 1:
        return _smaller(window, Phase.FEWER_NACKS, now_ms=now_ms)
    if turn == 2:
        return _smaller(window, Phase.LOWER_LATENCY, now_ms=now_ms)
    return _larger(window, step=max(math.floor(FIRST_STEP * math.sqrt(base.size) + 0.5), 1.0), now_ms=now_ms)


def _larger(window: Window, *, step: float, now_ms: float) -> Window:
    size = window.base.size
    if size >= SLOW_START_LIMIT:
        larger = min(size + LINEAR_STEP, LARGEST) if is_fast(window) else SLOW_START_LIMIT
        return _began(window, Phase.LARGER, size=larger, now_ms=now_ms)
    window = window._replace(step=step)
    if step >= size >= SLOW_START_AGAIN:
        return _began(window, Phase.SLOW_START, size=size, now_ms=now_ms)
    return _began(window, Phase.LARGER, size=min(size + step, SLOW_START_LIMIT), now_ms=now_ms)


def _smaller(window: Window, phase: Phase, *, now_ms: float) -> Window:
    base = window.base
    less = base.nacks if phase == Phase.FEWER_NACKS else math.floor(QUARTER * base.size)
    return _began(window, phase, size=max(base.size - less, SMALLEST), now_ms=now_ms)


def _began(window: Window, phase: Phase, *, size: float, now_ms: float) -> Window:
    return window._replace(size=size, round=Round(phase, now_ms, size))
