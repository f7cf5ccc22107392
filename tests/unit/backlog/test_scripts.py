"""Each verb is a script that Lua takes."""

from __future__ import annotations

import pytest
from lupa.lua51 import LuaRuntime

from deliveries.backlog.scripts import VERBS, source


@pytest.mark.parametrize("verb", VERBS)
def test_a_script_compiles(verb: str) -> None:
    """Redis says so only when it is called. Lua allows a function 200 local names and 60 of those around it."""
    LuaRuntime().compile(source(verb))
