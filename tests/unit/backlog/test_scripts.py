"""The verbs are a library of functions that Lua takes."""

from __future__ import annotations

from typing import Any

from lupa.lua51 import LuaRuntime

from deliveries.backlog.scripts import VERBS, library


def test_the_library_compiles() -> None:
    """Redis says so only when it is loaded. Lua allows a function 200 local names and 60 of those around it."""
    _, text = library().text.split("\n", 1)
    LuaRuntime().compile(text)


def test_each_setting_that_is_in_the_text_has_a_library_of_its_own(settings: Any) -> None:
    names = set()
    for name, value in {"REDIS_MB": 7, "CELLS": 64, "TIME_SCALE": 0.5}.items():
        names.add(library().function(VERBS[0]))
        setattr(settings, name, value)
    names.add(library().function(VERBS[0]))
    assert len(names) == 4
