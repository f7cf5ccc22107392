"""Bugs to plant into the processes of a storm, which its checker has to find."""

from __future__ import annotations

from collections.abc import Callable

BUGS: dict[str, Callable[[], None]] = {}
