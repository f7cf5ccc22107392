"""What `make up` makes on a first run and keeps: the secret in the data folder, the admin login in the database."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def kept_secret(path: Path) -> str:
    """The secret in `path`, made there (readable by its owner only) when it does not exist yet."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return path.read_text(encoding="utf-8").strip()
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        made = secrets.token_urlsafe(48)
        file.write(made)
    return made


def admin_login_make() -> str:
    """Make the login `admin` and return its password, which is stored as a hash only; "" when there is a superuser."""
    from django.contrib.auth import get_user_model

    users = get_user_model().objects
    if users.filter(is_superuser=True).exists():
        return ""
    password = secrets.token_urlsafe(12)
    users.create_superuser(username="admin", password=password)
    return password
