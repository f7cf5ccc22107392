"""Two regions with a Redis each and one PostgreSQL, which the second region reaches by a proxy."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Self
from urllib.parse import quote

from django.db import connection

from deliveries.pipeline.service import database_url
from tests.proxy import Proxy
from tests.redisserver import RedisServer
from tests.webservers import WebServer
from tests.workers import Worker

NAMES = ("near", "far")
#: PostgreSQL's socket in its folder.
SOCKET = ".s.PGSQL.5432"


class Region:
    """The web server and the push worker of a region."""

    def __init__(self, name: str, redis_url: str, database: str, *, first: str) -> None:
        self.name = name
        self.redis_url = redis_url
        settings = {
            "PUSHHUB_REGION": name,
            "PUSHHUB_REGIONS": ",".join(NAMES),
            "PUSHHUB_REGION_REDIS": "on",
            "PUSHHUB_DATABASE_URL": database,
        }
        self.web = WebServer(redis_url, first=first, PUSHHUB_WEB_WORKERS="1", **settings)
        self.push = Worker(redis_url, name=f"push-{name}", region=name, first=first, **settings)


class Regions:
    """Both regions. `network` is what lies between the far one and the database."""

    def __init__(self, *, first: str = "", delay_seconds: float = 0.0) -> None:
        self._first = first
        self._delay_seconds = delay_seconds

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            folder = Path(stack.enter_context(TemporaryDirectory(prefix="pushhub-regions-")))
            host = str(connection.settings_dict["HOST"])
            self.network = stack.enter_context(Proxy(folder / SOCKET, str(Path(host) / SOCKET)))
            self.network.delay_seconds = self._delay_seconds
            proxied = database_url().replace(quote(host, safe=""), quote(str(folder), safe=""))
            regions = []
            for name, database in zip(NAMES, (database_url(), proxied), strict=True):
                (folder / name).mkdir()
                redis = stack.enter_context(RedisServer(folder / name))
                region = Region(name, redis.url, database, first=self._first)
                stack.enter_context(region.web)
                stack.enter_context(region.push)
                regions.append(region)
            self.near, self.far = regions
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)
