"""The push window: how many messages of a lane, one (subscription, publish region), may be outstanding.

The rule is Cloud Pub/Sub's ("Delivery rate" on its push page): the window starts at 3 and grows with every ack,
exponentially up to 3,000, then linearly up to 30,000 while more than 99 % of requests are acked and their mean latency
is under a second; when they are not, it falls back to 3,000. Every failure shrinks it. rules.lua has the same
arithmetic, in the same order of operations.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

START = 3.0
SMALLEST = 1.0
#: Up to here each ack adds 1, which doubles the window in a round trip (slow start).
SLOW_START_LIMIT = 3000.0
LARGEST = 30000.0
#: Beyond slow start a windowful of acks adds this much. At 1, as in TCP, 30,000 would be 27,000 round trips away.
LINEAR_STEP = 30.0
#: What it takes to be beyond slow start.
ACK_RATIO_ABOVE = 0.99
LATENCY_BELOW_MS = 1000.0
#: Ack ratio and mean latency are means over all results at first, and then decay with this many results.
MEMORY = 1000.0
#: A window from this size on grows only while at least half of it is used (TCP's congestion window validation, RFC
#: 7661): a trickle of acks proves nothing about thousands of requests at once. Below, any ack counts, as the push page
#: says.
UNPROVEN_LIMIT = 100.0


@dataclass(frozen=True, slots=True)
class Window:
    """One lane's window and what its size depends on. In comments: the fields of rules.lua."""

    size: float = START  # w
    ack_ratio: float = 1.0  # r
    latency_ms: float = 0.0  # l
    #: Results the two means are over, at most MEMORY.
    seen: float = 0.0  # n
    #: Results still to come from the windowful that shrank last; a failure among them shrinks no more.
    guard: float = 0.0  # g


def tokens(window: Window, *, cap: float = 0) -> int:
    """How many messages may be outstanding. `cap` is the subscription's own upper bound; 0 is none."""
    return math.floor(min(window.size, cap) if cap > 0 else window.size)


def is_fast(window: Window) -> bool:
    """Whether the endpoint has earned a window beyond slow start."""
    return window.ack_ratio > ACK_RATIO_ABOVE and window.latency_ms < LATENCY_BELOW_MS


def after_result(window: Window, *, acked: bool, latency_ms: float, outstanding: float) -> Window:
    """The window after one result. `outstanding`: tokens held when messages were last sent off, this one among them."""
    seen = min(window.seen + 1, MEMORY)
    ack_ratio = window.ack_ratio + ((1.0 if acked else 0.0) - window.ack_ratio) / seen
    mean = window.latency_ms + (latency_ms - window.latency_ms) / seen
    size, guard = window.size, max(window.guard - 1, 0.0)
    if acked:
        size = _grown(size, outstanding)
    elif guard == 0:
        # By half the share of failures, as DCTCP does: halved when all fail, but the fraction of a per cent that the
        # push page allows a large window does not halve it in every windowful.
        size = max(size * (0.5 + 0.5 * ack_ratio), SMALLEST)
        guard = outstanding
    if size > SLOW_START_LIMIT and not (ack_ratio > ACK_RATIO_ABOVE and mean < LATENCY_BELOW_MS):
        size = SLOW_START_LIMIT
    return Window(size, ack_ratio, mean, seen, guard)


def restarted(window: Window) -> Window:
    """When a pause begins the window is given up, and slow start begins again: what a timeout is to TCP."""
    return replace(window, size=SMALLEST, guard=0.0)


def _grown(size: float, outstanding: float) -> float:
    if size >= UNPROVEN_LIMIT and 2 * outstanding < size:
        return size
    if size < SLOW_START_LIMIT:
        return min(size + 1, SLOW_START_LIMIT)
    return min(size + LINEAR_STEP / size, LARGEST)
