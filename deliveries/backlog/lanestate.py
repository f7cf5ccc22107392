"""The state of a lane in Redis, with names and types, for all code except the Lua scripts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from deliveries.backlog.codes import STATE_CODES, Mode
from deliveries.rules.flow import Flow


class LaneSummary(NamedTuple):
    """What the audit needs of a lane's state."""

    mode: Mode
    generation: str
    outstanding: int
    spilled: bool
    cursor: int
    ordered: bool
    push_config: int
    #: The subscription's own limits: outstanding messages, messages a second, burst.
    own: tuple[float, float, float]


#: The fields of a state that parse_lane_summary takes, in this order.
SUMMARY_CODES = [
    STATE_CODES[name]
    for name in (
        *("mode", "generation", "outstanding", "spilled", "cursor", "ordered", "push_config"),
        *("cap", "rate", "burst"),
    )
]


def parse_lane_summary(values: Sequence[bytes | None]) -> LaneSummary | None:
    """Return the summary of a lane from these fields; None for a lane that Redis does not know."""
    if values[0] is None:
        return None
    mode, generation, outstanding, spilled, cursor, ordered, push_config, *own = values
    cap, rate, burst = (float(value or 0) for value in own)
    return LaneSummary(
        Mode(int(float(mode or 0))),
        (generation or b"").decode(),
        int(float(outstanding or 0)),
        spilled == b"1",
        int(cursor or 0),
        ordered == b"1",
        int(float(push_config or 0)),
        (cap, rate, burst),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneState:
    """The state of a lane (common.lua says more about its fields)."""

    mode: Mode
    #: Which of the lanes of this name it is; "" in a lane of an older version.
    generation: str
    #: Tokens held.
    outstanding: int
    #: The database has rows from the id `cursor` on that are not in Redis.
    spilled: bool
    cursor: int
    #: In a pull lane, when a puller last asked for messages; 0 if none did.
    pumped_ms: float
    ordered: bool
    #: Messages that wait behind an earlier message of their ordering key.
    parked: int
    #: Ordering keys whose later messages the lane has left to the database.
    left: int
    #: A digest of the subscription's push requests; 0 if it has none, or is not known.
    push_config: int
    flow: Flow

    @property
    def own(self) -> tuple[float, float, float]:
        """The subscription's own limits: outstanding messages, messages a second, burst."""
        return self.flow.cap, self.flow.rate, self.flow.burst

    @property
    def window(self) -> int:
        return self.flow.tokens


def parse_lane_state(fields: Mapping[bytes, bytes]) -> LaneState | None:
    """Return the state that a lane's hash holds; None for a lane that Redis does not know."""
    if STATE_CODES["mode"].encode() not in fields:
        return None

    def number(name: str) -> float:
        value = fields.get(STATE_CODES[name].encode())
        # An older version did not write every field.
        return Flow._field_defaults.get(name, 0.0) if value is None else float(value)

    return LaneState(
        mode=Mode(int(number("mode"))),
        generation=fields.get(STATE_CODES["generation"].encode(), b"").decode(),
        outstanding=int(number("outstanding")),
        spilled=number("spilled") == 1,
        # A double does not hold every id.
        cursor=int(fields.get(STATE_CODES["cursor"].encode(), b"0")),
        pumped_ms=number("pumped_ms"),
        ordered=number("ordered") == 1,
        parked=int(number("parked")),
        left=int(number("left")),
        push_config=int(number("push_config")),
        flow=Flow(*map(number, Flow._fields)),
    )
