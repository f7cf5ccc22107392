"""The short codes that Redis holds, and the names that the code has for them. rules/flow.py has those of rules.lua.

The codes keep Redis small and do not change from one version to the next. `lua_names` gives the Lua scripts the same
names: constants for the places, verdicts and phases, the rules' fields with their first values, tables of the state's
fields and codes, and the numbers that Python needs too.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum, StrEnum
from typing import get_type_hints

from deliveries.rules import retry
from deliveries.rules.flow import FREE_LEVEL, Flow, Phase
from deliveries.rules.outcome import Verdict


class Mode(IntEnum):
    """What becomes of a lane's messages (configure.lua)."""

    IDLE = 0
    PUSH = 1
    PULL = 2


class Place(StrEnum):
    """Where a delivery is, in its lane's hash of deliveries."""

    #: In the backlog.
    WAITING = "b"
    #: On its way to the endpoint; it holds a token.
    OUTSTANDING = "t"
    #: In the retry set.
    RETRYING = "r"
    #: Leased to a puller.
    LEASED = "l"
    #: Behind an earlier message of its ordering key.
    PARKED = "p"
    #: Acknowledged by a puller, and kept while an earlier message of its ordering key is leased.
    ACKNOWLEDGED = "a"


#: settle.lua takes a code for each result.
VERDICT_CODES = {
    Verdict.ACK: "a",
    Verdict.NACK: "n",
    Verdict.RELEASE: "r",
    Verdict.DROP: "x",
    Verdict.DEAD_LETTER: "d",
}

#: The fields of a lane's state that common.lua owns. Redis knows a lane if it has the first of them.
LANE_CODES = {
    "mode": "mode",
    "generation": "gen",
    "outstanding": "out",
    "cursor": "cur",
    "spilled": "spill",
    "spilled_from": "from",
    "read_to": "read",
    "page_number": "seq",
    "paging_until_ms": "paging",
    "credit": "credit",
    "pumped_ms": "pumped",
    "ordered": "ordered",
    "parked": "parked",
    "left": "left",
    "starved_ms": "starved",
    "push_config": "config",
    "held": "held",
    "held_bytes": "bytes",
}
#: The fields of a lane's state that rules.lua owns.
RULE_CODES = {name: hint.__metadata__[0] for name, hint in get_type_hints(Flow, include_extras=True).items()}
STATE_CODES = LANE_CODES | RULE_CODES
#: The fields that are text in Lua: a double does not hold every id.
TEXT_FIELDS = ("generation", "cursor", "spilled_from", "read_to")
#: So long after its last request a puller counts as away. Streams ask every 20 s.
PULLER_AWAY_MS = 60_000


def lua_names(*, time_scale: float = 1.0, budget_bytes: int = 0, cells: int = 1, on_cluster: bool = False) -> str:
    """Return Lua source that defines these names; it stands in front of the library of verbs.

    `time_scale` is what the rules multiply pauses and countdowns by; `budget_bytes` is for the lanes of all cells.
    """
    return "\n".join(
        [
            *(f"local {place.name} = '{place}'" for place in Place),
            *(f"local {verdict.name} = '{code}'" for verdict, code in VERDICT_CODES.items()),
            f"local TIME_SCALE, BUDGET_BYTES, CELLS = {time_scale!r}, {budget_bytes!r}, {cells!r}",
            f"local ON_CLUSTER = {str(on_cluster).lower()}",
            *(f"local {phase.name} = {phase.value}" for phase in Phase),
            f"local FREE_LEVEL, PULLER_AWAY_MS = {FREE_LEVEL!r}, {PULLER_AWAY_MS!r}",
            f"local COUNTDOWN_MS, COUNTDOWN_JITTER = {retry.MINIMUM_MS!r}, {retry.JITTER!r}",
            f"local COUNTDOWN_DOUBLINGS = {retry.DOUBLINGS!r}",
            f"local FIRST_VALUES = {_lua_map({name: float(first) for name, first in Flow._field_defaults.items()})}",
            f"local STATE_CODES = {_lua_map(STATE_CODES)}",
            f"local STATE_NAMES = {_lua_map({code: name for name, code in STATE_CODES.items()})}",
            f"local STATE_COUNT = {len(STATE_CODES)}",
            f"local TEXT_FIELDS = {_lua_map(dict.fromkeys(TEXT_FIELDS, 'text'))}",
            "",
        ]
    )


def _lua_map(entries: Mapping[str, str | float]) -> str:
    return "{" + ", ".join(f"['{key}'] = {value!r}" for key, value in entries.items()) + "}"
