"""The backlogs on the process' Redis clients."""

from __future__ import annotations

from functools import cache

from django.conf import settings

from deliveries.backlog.backlog import Backlog
from deliveries.backlog.connection import impatient_client_of
from deliveries.backlog.scripts import Clients
from pushhub.common.redisclient import shared_url


def default_backlog() -> Backlog:
    return _backlog_of(settings.REDIS_URL, shared_url(), settings.CELLS)


def impatient_backlog(*, asker: str = "page") -> Backlog:
    """Return the backlog for whoever only looks: it gives up soon where Redis does not answer."""
    return _impatient_backlog_of(settings.REDIS_URL, shared_url(), settings.CELLS, asker)


@cache
def _backlog_of(_url: str, _broker_url: str, _cells: int) -> Backlog:
    return Backlog()


@cache
def _impatient_backlog_of(url: str, broker_url: str, _cells: int, asker: str) -> Backlog:
    return Backlog(clients=Clients(*(impatient_client_of(each, asker) for each in (url, broker_url))))
