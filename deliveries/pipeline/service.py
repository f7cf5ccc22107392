"""The settings with which Spark's tasks reach the service, whatever host they run on."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlencode


@dataclass(frozen=True, slots=True)
class Service:
    """The environment of a task's process. It has secrets, so only the task carries it."""

    environ: Mapping[str, str] = field(repr=False)

    @classmethod
    def here(cls, *, journal: bool) -> Service:
        """Return the service of this process. Only tasks on this machine can write its journal."""
        from django.conf import settings

        return cls(
            {
                "DJANGO_SETTINGS_MODULE": "pushhub.settings",
                "PUSHHUB_DATA": str(settings.DATA_DIR),
                "PUSHHUB_DATABASE_URL": database_url(),
                "PUSHHUB_REDIS_URL": settings.REDIS_URL,
                "PUSHHUB_BROKER_URL": settings.BROKER_URL,
                "PUSHHUB_CELLS": str(settings.CELLS),
                "PUSHHUB_SECRET_KEY": settings.SECRET_KEY,
                "PUSHHUB_REGION": settings.REGION,
                "PUSHHUB_REGION_REDIS": "on" if settings.REGION_REDIS else "off",
                "PUSHHUB_BACKLOG_LIMIT": str(settings.BACKLOG_LIMIT),
                "PUSHHUB_JOURNAL": str(settings.JOURNAL) if journal and settings.JOURNAL else "off",
                "PUSHHUB_LOG_LEVEL": "WARNING",
            }
        )

    def enter(self) -> None:
        """Set Django up in this process, once."""
        import django
        from django.apps import apps

        if not apps.ready:
            os.environ.update(self.environ)
            django.setup()


def database_url() -> str:
    """Return the URL with which another process reaches the database of this one."""
    from django.db import connection

    config: dict[str, Any] = connection.settings_dict
    if connection.vendor == "sqlite":
        return f"sqlite:///{quote(str(config['NAME']))}"
    quoted = {key: quote(str(config.get(key) or ""), safe="") for key in ("USER", "PASSWORD", "HOST", "PORT", "NAME")}
    secret = f":{quoted['PASSWORD']}" if quoted["PASSWORD"] else ""
    port = f":{quoted['PORT']}" if quoted["PORT"] else ""
    options = {name: value for name, value in config.get("OPTIONS", {}).items() if isinstance(value, str)}
    query = f"?{urlencode(options)}" if options else ""
    return f"postgres://{quoted['USER']}{secret}@{quoted['HOST']}{port}/{quoted['NAME']}{query}"
