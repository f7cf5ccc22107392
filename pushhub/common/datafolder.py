"""The data folder: created for its owner alone, and used by one PushHub at a time. It has the first secret key."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator
from pathlib import Path

from pushhub.common import environment as env
from pushhub.common.stores import created_file, lock_file


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


def load_or_create_secret(path: Path) -> str:
    """Return the secret in the file `path`, which is created, readable by its owner only, if it doesn't exist.

    Raises SettingError if it is empty, as a machine that lost its power may have left it.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    secret = secrets.token_urlsafe(48)
    try:
        with created_file(path) as file:
            file.write(secret.encode())
    except FileExistsError:
        if secret := path.read_text(encoding="utf-8").strip():
            return secret
        raise env.SettingError(
            f"{path} is empty: write the secret key of before into it, or delete it, and a new one is made"
        ) from None
    return secret
