"""What the command line shows in place of a traceback."""

from __future__ import annotations


class CliError(Exception):
    """An error in one line. `status` is the canonical code, if the API returned one."""

    def __init__(self, message: str, *, status: str = "") -> None:
        super().__init__(f"{status}: {message}" if status else message)
        self.status = status
