"""A subscription's own limits on its pushes, from its push config's attributes; none is set by default."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

RATE = "x-pushhub-rate"
BURST = "x-pushhub-burst"
MAX_OUTSTANDING = "x-pushhub-max-outstanding"
NAMES = frozenset({RATE, BURST, MAX_OUTSTANDING})


class Limits(NamedTuple):
    """Outstanding messages, messages per second, and messages at once after a rest; 0 is no limit."""

    max_outstanding: float = 0.0
    rate: float = 0.0
    burst: float = 0.0


NO_LIMITS = Limits()


def limits(attributes: Mapping[str, str]) -> Limits:
    """Return the limits that a push config's attributes set. The control plane has already checked them."""
    if attributes.keys().isdisjoint(NAMES):
        return NO_LIMITS
    return Limits(
        rate=float(attributes.get(RATE, 0)),
        burst=float(attributes.get(BURST, 0)),
        max_outstanding=float(attributes.get(MAX_OUTSTANDING, 0)),
    )
