"""The backlog on the process' Redis client."""

from __future__ import annotations

from functools import cache

from django.conf import settings

from deliveries.backlog.backlog import Backlog
from deliveries.backlog.connection import client_of


def default_backlog() -> Backlog:
    return _backlog_of(settings.REDIS_URL, settings.CELLS)


@cache
def _backlog_of(url: str, _cells: int) -> Backlog:
    return Backlog(client_of(url))
