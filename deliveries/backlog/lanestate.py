"""The state of a lane in Redis, with names and types, for all code except the Lua scripts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from deliveries.backlog.codes import STATE_CODES, Mode
from deliveries.rules.flow import Flow


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneSummary:
    """What the audit needs of a lane's state (common.lua says more about its fields)."""

    mode: Mode
    #: Which of the lanes of this name it is; "" in a lane of an older version.
    generation: str
    #: Tokens held.
    outstanding: int
    #: The database has rows from the id `cursor` on that are not in Redis.
    spilled: bool
    cursor: int
    ordered: bool
    #: A digest of the subscription's push requests; 0 if it has none, or is not known.
    push_config: int
    #: The subscription's own limits: outstanding messages, messages a second, burst.
    own: tuple[float, float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneState(LaneSummary):
    """The state of a lane."""

    #: In a pull lane, when a puller last asked for messages; 0 if none did.
    pumped_ms: float
    #: Messages that wait behind an earlier message of their ordering key.
    parked: int
    #: Ordering keys whose later messages the lane has left to the database.
    left: int
    flow: Flow

    @property
    def window(self) -> int:
        return self.flow.tokens


#: The fields of a state that a summary is made of, in this order.
SUMMARY_CODES = [
    STATE_CODES[name]
    for name in (
        *("mode", "generation", "outstanding", "spilled", "cursor", "ordered", "push_config"),
        *("cap", "rate", "burst"),
    )
]


def parse_lane_summary(values: Sequence[bytes | None]) -> LaneSummary | None:
    """Return the summary of a lane from these fields; None for a lane that Redis does not know."""
    return None if values[0] is None else LaneSummary(**_summary(values))


def _summary(values: Sequence[bytes | None]) -> dict[str, Any]:
    mode, generation, outstanding, spilled, cursor, ordered, push_config, *own = values
    # An older version did not write every field.
    return {
        "mode": Mode(int(float(mode or 0))),
        "generation": (generation or b"").decode(),
        "outstanding": int(float(outstanding or 0)),
        "spilled": spilled == b"1",
        "cursor": int(cursor or 0),  # a double does not hold every id
        "ordered": ordered == b"1",
        "push_config": int(float(push_config or 0)),
        "own": tuple(float(value or 0) for value in own),
    }


def parse_lane_state(fields: Mapping[bytes, bytes]) -> LaneState | None:
    """Return the state that a lane's hash holds; None for a lane that Redis does not know."""
    values = [fields.get(code.encode()) for code in SUMMARY_CODES]
    if values[0] is None:
        return None

    def number(name: str) -> float:
        value = fields.get(STATE_CODES[name].encode())
        return Flow._field_defaults.get(name, 0.0) if value is None else float(value)

    return LaneState(
        **_summary(values),
        pumped_ms=number("pumped_ms"),
        parked=int(number("parked")),
        left=int(number("left")),
        flow=Flow(*map(number, Flow._fields)),
    )
