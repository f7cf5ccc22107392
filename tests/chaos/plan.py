"""Which faults a storm does, and when: it follows from the seed alone, so that a storm can be repeated."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from tests.chaos import faults, operations
from tests.chaos.kinds import KINDS, Kind

#: These register their faults.
FAULTS = (faults, operations)

#: Seconds between the beginnings of two faults, unless a soak has fewer.
SLOT_SECONDS = 7.0
#: How many slots come between two that have no fault.
CALM_EVERY = 6
#: The share of slots with two faults at once.
DOUBLE = 0.25
#: Before the first fault.
WARM_UP_SECONDS = 5.0


@dataclass(frozen=True)
class Event:
    """A fault of the plan: `at` and `seconds` count from the beginning of the storm."""

    at: float
    kind: Kind
    target: str
    seconds: float

    def __str__(self) -> str:
        return f"{self.at:7.1f} s  {self.kind.name} {self.target} for {self.seconds:.1f} s"


def kinds_for(
    database: str, *, has_small_disk: bool, without: Collection[str] = (), only: Collection[str] = ()
) -> list[Kind]:
    """Return the kinds of faults that a storm on this database may do."""
    for name in (*without, *only):
        assert name in KINDS, f"no fault is called {name}: there are {', '.join(KINDS)}"
    return [
        kind
        for kind in KINDS.values()
        if database in kind.databases
        and (has_small_disk or not kind.needs_small_disk)
        and kind.name not in without
        and (not only or kind.name in only)
    ]


def plan(
    seed: int, *, seconds: float, kinds: Sequence[Kind], database: str, every: float = SLOT_SECONDS
) -> list[Event]:
    """Return the faults of a storm in order. Every pair of a kind and a target comes once before any comes twice."""
    dice = random.Random(f"plan {seed}")
    deck = _deck(dice, kinds, database)
    events: list[Event] = []
    slot = 0
    at = WARM_UP_SECONDS
    while at + every <= seconds:
        slot += 1
        if slot % CALM_EVERY:
            for kind, target in _hand(dice, deck):
                begins = at + dice.uniform(0, 2)
                lasts = min(dice.uniform(*kind.seconds), max(seconds - begins, kind.seconds[0]))
                events.append(Event(begins, kind, target, lasts))
        at += every
    return sorted(events, key=lambda event: event.at)


def _deck(dice: random.Random, kinds: Sequence[Kind], database: str) -> Iterator[tuple[Kind, str]]:
    """Yield kinds in turn, so that kinds with many targets are no more frequent, and each kind's targets in turn."""
    targets: dict[str, list[str]] = {}
    while kinds:
        for kind in dice.sample(list(kinds), len(kinds)):
            left = targets.get(kind.name)
            if not left:
                there = [target for target in kind.targets if target != "postgresql" or database == "postgresql"]
                left = targets[kind.name] = dice.sample(there, len(there))
            yield kind, left.pop()


def _hand(dice: random.Random, deck: Iterator[tuple[Kind, str]]) -> list[tuple[Kind, str]]:
    """Take one fault or two that hit different things."""
    first = next(deck, None)
    if first is None:
        return []
    second = next(deck, None) if dice.random() < DOUBLE else None
    if second is None or "all" in (first[1], second[1]) or first[1] == second[1]:
        return [first]
    return [first, second]
