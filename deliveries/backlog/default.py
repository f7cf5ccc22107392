"""The backlog on the process' Redis clients."""

from __future__ import annotations

from functools import cache

from django.conf import settings

from deliveries.backlog.backlog import Backlog
from pushhub.common.redisclient import shared_url


def default_backlog() -> Backlog:
    return _backlog_of(settings.REDIS_URL, shared_url(), settings.CELLS)


@cache
def _backlog_of(_url: str, _broker_url: str, _cells: int) -> Backlog:
    return Backlog()
