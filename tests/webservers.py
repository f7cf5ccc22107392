"""A real web server for tests: `python -m pushhub.runtime.webserver` on the test's own database and Redis."""

from __future__ import annotations

import http.client
from typing import Self

from tests.ownprocess import OwnProcess
from tests.ports import free_port, wait_for


class WebServer(OwnProcess):
    """One web server; `settings` are additional environment variables."""

    def __init__(self, redis_url: str, *, first: str = "", **settings: str) -> None:
        self.address = ("127.0.0.1", free_port())
        self.url = "http://{}:{}".format(*self.address)
        address = {"PUSHHUB_HTTP": "{}:{}".format(*self.address)}
        super().__init__("pushhub.runtime.webserver", redis_url=redis_url, settings=address | settings, first=first)

    def __enter__(self) -> Self:
        wait_for(lambda: self.process.poll() is not None or self._answers(), what="the web server")
        assert self.process.poll() is None, self.log
        return self

    def _answers(self) -> bool:
        connection = http.client.HTTPConnection(*self.address, timeout=30)
        try:
            connection.request("GET", "/healthz")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()
