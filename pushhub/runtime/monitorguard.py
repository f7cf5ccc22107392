"""The guard of Flower: which requests reach it, and the answers to those that don't."""

from __future__ import annotations

import base64
import hmac
import logging
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from html import escape
from importlib import import_module

from django.conf import settings
from django.contrib.auth import get_user
from django.db import DatabaseError, close_old_connections
from django.http import HttpRequest
from django.http.request import split_domain_port, validate_host
from tornado.httputil import HTTPServerRequest
from tornado.web import RequestHandler

from pushhub.common.expiring import ExpiringCache
from pushhub.common.throttle import WINDOW_SECONDS, LocalCounters, bucket_of

logger = logging.getLogger(__name__)

#: Wrong logins from one address in a window of the throttle. Flower is one process, so it counts without Redis.
WRONG_LOGINS = 10
#: How long the check of a console session holds. A logout takes effect that much later.
SESSION_SECONDS = 5.0
#: Console sessions that are remembered.
SESSIONS = 1000


def console_url(path: str) -> str:
    return f"{settings.PUBLIC_URL.rstrip('/')}/admin/{path}"


def is_superuser_session_in_thread(session_key: str) -> bool:
    """Return `is_superuser_session` for a caller in the thread of an event loop, where the ORM refuses to work."""
    return _SESSIONS.submit(is_superuser_session, session_key).result()


_SESSIONS = ThreadPoolExecutor(max_workers=1, thread_name_prefix="flower-sessions")


def is_superuser_session(session_key: str) -> bool:
    """Return whether a session of the console belongs to an active superuser."""
    close_old_connections()
    request = HttpRequest()
    request.session = import_module(settings.SESSION_ENGINE).SessionStore(session_key)
    try:
        user = get_user(request)
    except DatabaseError as error:
        logger.warning("sessions of the console cannot be read", exc_info=error)
        return False
    return user.is_active and user.is_staff and getattr(user, "is_superuser", False)


def is_cross_origin_change(request: HTTPServerRequest) -> bool:
    """Whether a page of another origin, which another port of the same host is too, tries to change something."""
    if request.method in ("GET", "HEAD", "OPTIONS"):
        return False
    if site := request.headers.get("Sec-Fetch-Site"):
        return site not in ("same-origin", "none")
    origin = request.headers.get("Origin", "")
    return bool(origin) and origin.partition("://")[2] != request.headers.get("Host")


class Guard:
    """Decides which requests reach Flower: those to an allowed host and, if a login is required, with one."""

    def __init__(
        self,
        *,
        hosts: Iterable[str],
        logins: Iterable[str],
        asks_for_login: bool = True,
        counters: LocalCounters | None = None,
        check_session: Callable[[str], bool] = is_superuser_session_in_thread,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._hosts = list(hosts)
        self._logins = [f"Basic {base64.b64encode(login.encode()).decode()}" for login in logins]
        self._asks_for_login = asks_for_login
        self._counters = counters or LocalCounters()
        self._check_session = check_session
        #: Sessions of superusers: a page of Flower makes many requests.
        self._superusers = ExpiringCache[str, bool](seconds=SESSION_SECONDS, max_entries=SESSIONS, clock=clock)

    def refusal(self, request: HTTPServerRequest) -> int:
        """Return the HTTP status that refuses a request, or 0."""
        if not validate_host(split_domain_port(request.headers.get("Host", ""))[0], self._hosts):
            return 400
        if is_cross_origin_change(request):
            return 403
        if not self._asks_for_login:
            return 0
        authorization = request.headers.get("Authorization", "")
        session = request.cookies.get(settings.SESSION_COOKIE_NAME)
        if not authorization and session is not None and self._is_superuser(session.value):
            return 0
        return self._login_refusal(request.remote_ip or "", authorization)

    def _is_superuser(self, session_key: str) -> bool:
        if not self._superusers.get(session_key):
            if not session_key or not self._check_session(session_key):
                return False
            self._superusers.put(session_key, True)
        return True

    def _login_refusal(self, address: str, authorization: str) -> int:
        bucket = bucket_of(f"flower {address}")
        if self._counters.read(bucket) >= WRONG_LOGINS:
            return 429  # even for the right login, which any other status would reveal
        if any(hmac.compare_digest(login.encode(), authorization.encode()) for login in self._logins):
            return 0
        if authorization:  # a browser's first request has no login
            self._counters.add(bucket)
        return 401


class Refusal(RequestHandler):
    """Answers a request that the guard refuses."""

    def initialize(self, status: int) -> None:
        self._status = status

    def prepare(self) -> None:
        self.set_status(self._status)
        if self._status == 401:
            self._ask_for_login()
            return
        if self._status == 429:
            self.set_header("Retry-After", str(WINDOW_SECONDS))
        self.finish(
            {
                400: "The Host header names no host of PUSHHUB_ALLOWED_HOSTS.\n",
                403: "The request comes from a page of another site.\n",
                429: "Too many wrong logins.\n",
            }[self._status]
        )

    def _ask_for_login(self) -> None:
        """Show a browser the link to the console, which leads back here. Ask other clients for Flower's own login."""
        is_browser = "text/html" in self.request.headers.get("Accept", "")
        if is_browser and not self.request.headers.get("Authorization"):
            self.set_header("Content-Type", "text/html; charset=UTF-8")
            address = escape(console_url("deliveries/delivery/flower/"))
            self.finish(f'<p>Sign in to <a href="{address}">the console</a> as a superuser.</p>\n')
            return
        self.set_header("WWW-Authenticate", 'Basic realm="flower"')
        self.finish("Access denied\n")

    def check_xsrf_cookie(self) -> None:
        """Skip Flower's check: a refusal changes nothing."""
