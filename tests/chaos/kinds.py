"""What a fault is: a context manager that begins, yields what it has hit, and ends.

A fault that finds nothing to hit raises AssertionError, and the run fails.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.chaos.storm import Storm

Act = Callable[["Storm", str], AbstractContextManager[str]]
#: Whatever waits for Redis or the database tries again every 5 s at most; the audit comes every 30 s.
SERVER_SECONDS = 45.0


@dataclass(frozen=True)
class Kind:
    """A kind of fault: what it can hit, how long it lasts, and how long it is felt afterwards."""

    name: str
    act: Act
    targets: tuple[str, ...]
    seconds: tuple[float, float]
    felt_seconds: float
    databases: tuple[str, ...] = ("sqlite", "postgresql")
    needs_small_disk: bool = False


KINDS: dict[str, Kind] = {}


def fault(
    *targets: str,
    seconds: tuple[float, float] = (1.0, 4.0),
    felt: float = SERVER_SECONDS,
    databases: tuple[str, ...] = ("sqlite", "postgresql"),
    needs_small_disk: bool = False,
) -> Callable[[Act], Act]:
    """Register a fault under the name of its function."""

    def register(act: Act) -> Act:
        name = act.__name__.replace("_", "-")
        KINDS[name] = Kind(name, act, targets, seconds, felt, databases, needs_small_disk)
        return act

    return register
