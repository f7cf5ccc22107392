"""The share of nacks that a smaller window does not reduce, and the gap between deliveries that it causes.

docs/spec.md#push-backoff has two points: with one nack in five a delivery goes out about every 500 ms, and with nothing
but nacks every 30 to 60 s. The pause of backoff.py is for the second point. The gap is for the first: it halves
whenever the share falls by 1.3 percentage points, so that no point costs much more than the next, and it is 0 below 3
%. rules.lua has the same arithmetic, in the same order of operations.
"""

from __future__ import annotations

from typing import NamedTuple

#: The share is a mean over all results at first, and later one that decays over this many results.
MEMORY = 800.0
#: A new lane starts as if it had seen this many acks, so that its first nack is not a share of 100 %.
PRIOR = 20.0
#: A windowful of results moves the share by at most one part in this many, because a burst of nacks at an endpoint's
#: limit is over after a few rounds.
ROUND_MEMORY = 64.0
#: Up to this share there is no gap.
GAP_ABOVE = 0.03
#: The share at which deliveries are `CORNER_GAP_MS` apart. Beyond it the gap grows slowly: the pause takes over.
CORNER = 0.2
CORNER_GAP_MS = 560.0
#: Doublings of the gap per unit of the share, below the corner and from there up to `LAST`.
STEEP = 77.0
FLAT = 11.0
LAST = 0.45
#: A lane with a gap sends at most what is due in this time at once, so that its deliveries come evenly.
BURST_SECONDS = 0.05


class Share(NamedTuple):
    """What a lane knows of its share of nacks."""

    nacks: float = 0.0
    #: Results behind the share, at most MEMORY.
    seen: float = PRIOR
    #: The time between two deliveries; 0 is none.
    gap_ms: float = 0.0


def learned(share: Share, *, nacks: float, results: float, window: float) -> Share:
    """Return the share after a round with these numbers of nacks and results; `window`: how much of it was used."""
    seen = min(share.seen + results, MEMORY)
    memory = seen
    if share.nacks > CORNER:
        # Few results suffice to know a large share, and they come slowly.
        memory = max(memory * (CORNER / share.nacks) * (CORNER / share.nacks), PRIOR)
    memory = max(memory, ROUND_MEMORY * min(results, window), results)
    mean = min(max(share.nacks + (nacks - share.nacks * results) / memory, 0.0), 1.0)
    return Share(mean, seen, gap_ms(mean))


def gap_ms(nacks: float) -> float:
    """Return the gap between two deliveries at this share of nacks."""
    if nacks <= GAP_ABOVE:
        return 0.0
    doublings = STEEP * (min(nacks, CORNER) - CORNER)
    gap: float = CORNER_GAP_MS * (2.0**doublings - 2.0 ** (STEEP * (GAP_ABOVE - CORNER)))
    if nacks > CORNER:
        gap = gap * 2.0 ** (FLAT * (min(nacks, LAST) - CORNER))
    return gap
