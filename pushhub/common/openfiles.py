"""How many files a process may open. Each connection is one."""

from __future__ import annotations

import resource
from contextlib import suppress

#: The most that macOS takes, which calls its limit infinite.
MACOS_FILES = 10_240


def raise_open_files() -> int:
    """Raise the limit of open files of this process to the hard limit or near it, and return it.

    Shells, containers and systemd set it to 1,024, for programs that use select().
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for most in (hard, max(soft, MACOS_FILES)):
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
            return most
    return soft
