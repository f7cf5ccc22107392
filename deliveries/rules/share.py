"""The share of nacks that fewer requests at once do not cure, and how far apart it sets a lane's deliveries.

docs/spec.md#push-backoff has two points: with one nack in five, a delivery about every 500 ms, and with only nacks
one every 30 to 60 s. The pause takes care of the second (backoff.py), the gap of the first: it halves with every 1.3
points that the share falls, so that no point costs much more than the next, and is gone at 3 %. rules.lua has the same
arithmetic, in the same order of operations.
"""

from __future__ import annotations

from dataclasses import dataclass

#: The share is a mean over all results at first, and then one that decays with this many results.
MEMORY = 800.0
#: A new lane is taken to have had this many acks, so that its first nack is no share of 100 %.
PRIOR = 20.0
#: A windowful of results moves the share by a part in so many at most: a burst of nacks at an endpoint's limit is over
#: after a few rounds.
ROUND_MEMORY = 64.0
#: Up to here nothing is set apart.
GAP_ABOVE = 0.03
#: The share at which deliveries are `CORNER_GAP_MS` apart. Beyond it the gap grows slowly: the pause takes over.
CORNER = 0.2
CORNER_GAP_MS = 560.0
#: Doublings of the gap for each unit of the share, below the corner and from there up to `LAST`.
STEEP = 77.0
FLAT = 11.0
LAST = 0.45
#: A lane that is set apart sends at most what is due in this time at once, so that its deliveries come evenly.
BURST_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Share:
    """In comments: the fields of rules.lua."""

    nacks: float = 0.0  # s
    #: Results that the share is a mean of, at most MEMORY.
    seen: float = PRIOR  # sn
    #: The time between two deliveries; 0 is none.
    gap_ms: float = 0.0  # gap


def learned(share: Share, *, nacks: float, results: float, window: float) -> Share:
    """The share after a round of `results`, of which so many were nacks, with that much of the window in use."""
    seen = min(share.seen + results, MEMORY)
    memory = seen
    if share.nacks > CORNER:
        # A large share is known well enough from few results, and they come slowly.
        memory = max(memory * (CORNER / share.nacks) * (CORNER / share.nacks), PRIOR)
    memory = max(memory, ROUND_MEMORY * min(results, window), results)
    mean = min(max(share.nacks + (nacks - share.nacks * results) / memory, 0.0), 1.0)
    return Share(mean, seen, gap_ms(mean))


def gap_ms(nacks: float) -> float:
    """How far apart a share of nacks sets deliveries."""
    if nacks <= GAP_ABOVE:
        return 0.0
    doublings = STEEP * (min(nacks, CORNER) - CORNER)
    gap: float = CORNER_GAP_MS * (2.0**doublings - 2.0 ** (STEEP * (GAP_ABOVE - CORNER)))
    if nacks > CORNER:
        gap = gap * 2.0 ** (FLAT * (min(nacks, LAST) - CORNER))
    return gap
