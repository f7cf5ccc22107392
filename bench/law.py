"""The law of flow control in Python: rules.lua itself, run by Lua 5.1 as in Redis."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from lupa.lua51 import LuaRuntime

import deliveries.backlog
from deliveries.backlog.codes import lua_names
from deliveries.rules.flow import Flow

RULES = lua_names() + (Path(deliveries.backlog.__file__).parent / "rules.lua").read_text(encoding="utf-8")

#: Several functions together: to call Lua takes as long as most of them.
TOGETHER = """
local function room(state, outstanding, now_ms)
  state.outstanding = outstanding
  local free = rules_free(state, now_ms)
  return free, rules_retries(state, free)
end

local function come_back(state, acked, latency_ms, now_ms, dice, repeated)
  rules_return(state, repeated)
  local before_ms = state.resume_ms
  rules_result(state, acked, latency_ms, now_ms, dice, repeated)
  return state.resume_ms > before_ms and state.resume_ms or nil
end
"""


@cache
def rule(name: str) -> Any:
    """Return a function or a number of rules.lua, or of TOGETHER."""
    return _lua().execute(f"{RULES}\n{TOGETHER}\nreturn {name}")


@cache
def _lua() -> LuaRuntime:
    return LuaRuntime()


class Law:
    """The flow control of one lane."""

    def __init__(self, flow: Flow | None = None, *, outstanding: int = 0) -> None:
        #: The Lua table that the functions of rules.lua take.
        self.state = _lua().table_from({**(flow or Flow())._asdict(), "outstanding": outstanding})

    @property
    def flow(self) -> Flow:
        return Flow(*(self.state[name] for name in Flow._fields))

    @property
    def tokens(self) -> int:
        """How many messages may be outstanding: the window and the subscription's own limit, or one in backoff."""
        return int(rule("rules_window")(self.state))

    def result(
        self, *, acked: bool, latency_ms: float, now_ms: float, dice: float = 0.5, repeated: bool = False
    ) -> None:
        """Count the result of a request that began `latency_ms` before `now_ms`; `dice` is in [0, 1)."""
        rule("rules_result")(self.state, acked, latency_ms, now_ms, dice, repeated)

    def restart(self, *, now_ms: float) -> None:
        rule("rules_restart")(self.state, now_ms)

    def free(self, *, outstanding: int, now_ms: float) -> int:
        """Return how many messages may be sent now, besides the outstanding ones."""
        self.state["outstanding"] = outstanding
        return int(rule("rules_free")(self.state, now_ms))

    def retries(self, free: int) -> tuple[int, int]:
        """Return how many of the free tokens retries may take, and how many of these before other messages."""
        most, first = rule("rules_retries")(self.state, free)
        return int(most), int(first)

    def room(self, *, outstanding: int, now_ms: float) -> tuple[int, int, int]:
        """Return what `free` and `retries` do."""
        free, most, first = rule("room")(self.state, outstanding, now_ms)
        return int(free), int(most), int(first)

    def spend(self, count: int, *, outstanding: int, now_ms: float, retries: int = 0) -> None:
        """Count messages as sent, of which some are retries; `outstanding` includes them."""
        self.state["outstanding"] = outstanding
        rule("rules_spend")(self.state, now_ms, count, retries)

    def give_back(self, *, repeated: bool) -> None:
        """Count one token that came back; `repeated`: that of a retry."""
        rule("rules_return")(self.state, repeated)

    def come_back(self, *, acked: bool, latency_ms: float, now_ms: float, dice: float, repeated: bool) -> float | None:
        """Count a token that came back with a result, and return the end of the pause that begins, if one does."""
        resume_ms: float | None = rule("come_back")(self.state, acked, latency_ms, now_ms, dice, repeated)
        return resume_ms

    def bucket_wait_ms(self, *, now_ms: float) -> float | None:
        """Return when the rate limit allows the next message, or None if it allows it now."""
        wait_ms: float | None = rule("rules_bucket_wait")(self.state, now_ms)
        return wait_ms

    def pause_ms(self, *, now_ms: float) -> float:
        return float(rule("rules_pause")(self.state, now_ms))
