"""What the first `make up` creates: the secret key in the data folder, and the admin login in the database."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from pushhub.common import environment as env


def load_or_create_secret(path: Path) -> str:
    """Return the secret in the file `path`, which is created, readable by its owner only, if it doesn't exist.

    Raises SettingError if it is empty, as a machine that lost its power may have left it.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        if secret := path.read_text(encoding="utf-8").strip():
            return secret
        raise env.SettingError(
            f"{path} is empty: write the secret key of before into it, or delete it, and a new one is made"
        ) from None
    secret = secrets.token_urlsafe(48)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(secret)
            file.flush()
            os.fsync(file.fileno())
    except OSError:  # a disk that is full
        path.unlink()
        raise
    return secret


def create_admin_login() -> str:
    """Create the login `admin` and return its password. Return "" if there is a superuser already."""
    from django.contrib.auth import get_user_model

    users = get_user_model().objects
    if users.filter(is_superuser=True).exists():
        return ""
    password = secrets.token_urlsafe(12)
    users.create_superuser(username="admin", password=password)
    return password
