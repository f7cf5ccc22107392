"""The limit of open files: most systems start a process with a low one, and let it raise that."""

from __future__ import annotations

import resource


def raise_open_files() -> int:
    """Raise the limit of open files of this process to the hard limit, and return it."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard
