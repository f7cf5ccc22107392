"""PushHub as an emulator: one process without authentication, for development and tests."""

from __future__ import annotations


class StartError(Exception):
    """The emulator can't start. The text is the line that the user sees."""
