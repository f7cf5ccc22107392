"""The description of this process's database that other processes get."""

from __future__ import annotations

from typing import Any

import dj_database_url
import pytest
from django.db import connection

from deliveries.pipeline.service import Service, database_url


@pytest.mark.parametrize(
    "config",
    [
        {"NAME": "/data/a b%20#?/pushhub.sqlite3"},
        {"NAME": "hub", "USER": "me@x", "PASSWORD": "p:/@#%", "HOST": "db.example.com", "PORT": "5433"},
        {"NAME": "hub", "USER": "me", "PASSWORD": "", "HOST": "/run/pg", "PORT": "", "OPTIONS": {"sslmode": "require"}},
    ],
)
def test_the_url_is_parsed_to_the_same_configuration(config: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    vendor = "postgresql" if "USER" in config else "sqlite"
    monkeypatch.setattr(type(connection._connections["default"]), "vendor", vendor)  # type: ignore[attr-defined]
    monkeypatch.setattr(connection._connections["default"], "settings_dict", config)  # type: ignore[attr-defined]
    parsed = dj_database_url.parse(database_url())
    for name, value in config.items():
        assert parsed.get(name, {}) == (value if name != "PORT" or not value else int(value)), name


@pytest.mark.django_db
def test_the_description_shows_no_secret(settings: Any) -> None:
    shown = repr(Service.here(journal=False))
    assert settings.SECRET_KEY not in shown
    assert "URL" not in shown
