"""Flower, with a guard in front of all its addresses: `python -m pushhub.runtime.monitor --port=5555 ...`.

Flower asks for its login in most of its handlers, but not for /metrics, /healthcheck and static files, and takes any
Host header: a web page whose name is made to point at 127.0.0.1 could use it. Here both are checked before any handler
runs.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import sys
from collections.abc import Iterable
from typing import Any

from celery.bin.celery import main as celery_main
from django.conf import settings
from django.http.request import split_domain_port, validate_host
from flower import command
from flower.app import Flower
from flower.views import BaseHandler
from tornado.httputil import HTTPServerRequest
from tornado.web import RequestHandler

from pushhub.common.throttle import WINDOW_SECONDS, LocalCounters, bucket_of

#: Wrong logins from one address in a window of the throttle. Flower is one process, so it counts by itself.
WRONG_LOGINS = 10
#: The only inline script of Flower's pages, in its two forms (templates/workers.html).
INLINE_SCRIPTS = tuple(f"\nvar autorefresh = {value};\n" for value in (0, 1))


def content_policy() -> str:
    """As that of our own pages, but for what Flower's pages have inline: one script, and styles."""
    digests = (hashlib.sha256(script.encode()).digest() for script in INLINE_SCRIPTS)
    hashes = " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
    return (
        f"default-src 'none'; script-src 'self' {hashes}; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
        "font-src 'self'; connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    )


class Guard:
    """Decides who gets as far as Flower: whoever names a host of ours and, where there is one, knows the login."""

    def __init__(self, *, hosts: Iterable[str], logins: Iterable[str], counters: LocalCounters | None = None) -> None:
        self._hosts = list(hosts)
        self._logins = [f"Basic {base64.b64encode(login.encode()).decode()}" for login in logins]
        self._counters = counters or LocalCounters()

    def refusal(self, *, host: str, authorization: str, address: str) -> int:
        """The HTTP status that refuses a request, or 0."""
        if not validate_host(split_domain_port(host)[0], self._hosts):
            return 400
        if not self._logins:
            return 0
        bucket = bucket_of(f"flower {address}", secret=settings.SECRET_KEY)
        if self._counters.read(bucket) >= WRONG_LOGINS:
            return 429  # also for the right login: an answer would tell which it is
        if any(hmac.compare_digest(login.encode(), authorization.encode()) for login in self._logins):
            return 0
        if authorization:  # a browser asks without one first
            self._counters.add([bucket])
        return 401


class Refusal(RequestHandler):
    """Answers in place of the handler that was asked for."""

    def initialize(self, status: int) -> None:
        self._status = status

    def prepare(self) -> None:
        self.set_status(self._status)
        if self._status == 401:
            self.set_header("WWW-Authenticate", 'Basic realm="flower"')
        if self._status == 429:
            self.set_header("Retry-After", str(WINDOW_SECONDS))
        self.finish(
            {
                400: "The Host header names no host of PUSHHUB_ALLOWED_HOSTS.\n",
                401: "Access denied\n",
                429: "Too many wrong logins.\n",
            }[self._status]
        )

    def check_xsrf_cookie(self) -> None:
        """Nothing is changed."""


class GuardedFlower(Flower):  # type: ignore[misc]
    """Flower, asked through the guard."""

    def __init__(self, options: Any = None, **kwargs: Any) -> None:
        super().__init__(options=options, **kwargs)
        hosts = [*settings.ALLOWED_HOSTS, settings.FLOWER_ADDRESS[0]]
        self.guard = Guard(hosts=hosts, logins=self.options.basic_auth or [])

    def find_handler(self, request: HTTPServerRequest, **kwargs: Any) -> Any:
        status = self.guard.refusal(
            host=request.headers.get("Host", ""),
            authorization=request.headers.get("Authorization", ""),
            address=request.remote_ip or "",
        )
        if status:
            return self.get_handler_delegate(request, Refusal, {"status": status})
        return super().find_handler(request, **kwargs)


def guard_flower() -> None:
    """Let Flower's command start the guarded application, with our policy on its pages."""
    command.Flower = GuardedFlower
    plain = BaseHandler.set_default_headers

    def set_default_headers(handler: BaseHandler) -> None:
        plain(handler)
        handler.set_header("Content-Security-Policy", content_policy())
        handler.set_header("X-Frame-Options", "DENY")
        handler.set_header("Referrer-Policy", "same-origin")

    BaseHandler.set_default_headers = set_default_headers


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "pushhub.settings")
    guard_flower()
    sys.argv[1:1] = ["--app=pushhub", "--quiet", "flower"]
    celery_main()


if __name__ == "__main__":
    main()
