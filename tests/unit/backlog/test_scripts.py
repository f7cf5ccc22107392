"""Each verb is a script that Lua takes."""

from __future__ import annotations

import pytest
from lupa.lua51 import LuaRuntime

from deliveries.backlog.scripts import VERBS, source


@pytest.mark.parametrize("verb", VERBS)
def test_a_script_compiles(verb: str) -> None:
    """Redis says so only when it is called. Lua allows a function 200 local names and 60 of those around it."""
    LuaRuntime().compile(source(verb))


def test_a_script_defines_what_its_verb_needs_and_nothing_else() -> None:
    assert "local function pump(" in source("settle")
    assert "local function pump(" not in source("take")
    assert "local function take_batch(" in source("take")
    assert "local PREFIX = string.match(KEYS" in source("settle")
