"""From the URL of a database to Django's settings of it. It knows neither Django's settings nor the environment."""

from __future__ import annotations

from typing import Any

import dj_database_url

from pushhub.common.errors import InvalidArgument


def database_config(url: str, *, password: str = "", synchronous: str = "FULL") -> dict[str, Any]:
    """Return the settings; `synchronous` is SQLite's. Raises InvalidArgument for a URL that names no database."""
    try:
        config: dict[str, Any] = dict(dj_database_url.parse(url, conn_max_age=600))
    except ValueError:
        raise InvalidArgument("give postgres://user:password@host:5432/name or sqlite:////path") from None
    config["PASSWORD"] = config.get("PASSWORD") or password
    if config["ENGINE"] == "django.db.backends.sqlite3":
        config["OPTIONS"] = {
            "init_command": f"PRAGMA journal_mode=WAL; PRAGMA synchronous={synchronous}; PRAGMA cache_size=-65536;",
            # A write transaction waits for the write lock at its beginning and can't fail half-way.
            "transaction_mode": "IMMEDIATE",
            "timeout": 30,
        }
    else:
        config["CONN_HEALTH_CHECKS"] = True
    return config
