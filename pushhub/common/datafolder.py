"""The data folder: created for its owner alone, and used by one PushHub at a time."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from pushhub.common import environment as env
from pushhub.common.stores import lock_file


@contextlib.contextmanager
def data_folder_errors(folder: Path) -> Iterator[None]:
    """Turn an OSError about the data folder into a SettingError."""
    try:
        yield
    except OSError as error:
        raise env.SettingError(
            f"cannot use the data folder {folder} (PUSHHUB_DATA, or the emulator's --data-dir): {error.strerror}"
        ) from None


@contextlib.contextmanager
def data_folder(folder: Path, *, is_closed: bool = True) -> Iterator[None]:
    """Create and lock the data folder. Two PushHubs must not share one: each would stop the other's Redis.

    One that exists is closed to others if it has to be; files in it are always.
    """
    with data_folder_errors(folder):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if is_closed:
            folder.chmod(0o700)
        lock = (folder / "lock").open("w")
    with lock:
        with data_folder_errors(folder):
            is_locked = lock_file(lock)
        if not is_locked:
            raise env.SettingError(
                f"the data folder {folder} is in use by another PushHub: stop it, or choose another "
                "(PUSHHUB_DATA, or the emulator's --data-dir)"
            )
        yield
