"""PushHub as an emulator: one process without authentication, for development and tests."""

from __future__ import annotations


class StartError(Exception):
    """Something keeps the emulator from starting. The text is the line that the user sees."""
