"""Flower behind a guard that checks every request: `python -m pushhub.runtime.monitor --port=5555 ...`.

Flower itself requires its login in most of its handlers, but not for /metrics, /healthcheck and static files. It also
accepts any Host header, so a web page could reach it by a name that resolves to 127.0.0.1. The guard checks both before
any handler runs. A superuser who is signed in to the console needs no other login, because a browser sends the
console's cookie to every port of a host.
"""

from __future__ import annotations

import ast
import base64
import copy
import hashlib
import hmac
import logging
import os
import re
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from html import escape
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import django
from django.conf import settings
from django.contrib.auth import get_user
from django.db import DatabaseError, close_old_connections
from django.http import HttpRequest
from django.http.request import split_domain_port, validate_host
from flower import command, events
from flower.app import Flower
from flower.utils.search import TaskSearchEngine
from flower.utils.tasks import search_tasks
from flower.views import BaseHandler, tasks
from flower.views.error import NotFoundErrorHandler
from tornado.httputil import HTTPServerRequest
from tornado.template import Loader, Template
from tornado.web import RequestHandler

from deliveries.rules.taskmessage import TASK_NAME
from pushhub.common.clock import Clock, time_text, utcnow
from pushhub.common.environment import is_loopback
from pushhub.common.throttle import WINDOW_SECONDS, LocalCounters, bucket_of

logger = logging.getLogger(__name__)

#: Wrong logins from one address in a window of the throttle. Flower is one process, so it counts without Redis.
WRONG_LOGINS = 10
#: How long the check of a console session holds. A logout takes effect that much later.
SESSION_SECONDS = 5.0
#: The only inline script of Flower's pages, in its two forms (templates/workers.html).
INLINE_SCRIPTS = tuple(f"\nvar autorefresh = {value};\n" for value in (0, 1))


def content_policy() -> str:
    """Return the policy of the console's pages, extended by what Flower's pages have inline: one script, and styles."""
    digests = (hashlib.sha256(script.encode()).digest() for script in INLINE_SCRIPTS)
    hashes = " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
    return (
        f"default-src 'none'; script-src 'self' {hashes}; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
        "font-src 'self'; connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    )


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


class ConsoleSessions:
    """Remembers for a few seconds which sessions belong to superusers: a page of Flower makes many requests."""

    def __init__(
        self,
        check: Callable[[str], bool] = is_superuser_session_in_thread,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._check = check
        self._monotonic = monotonic
        #: The time of the last check of each superuser's session.
        self._checked_at: dict[str, float] = {}

    def is_superuser(self, session_key: str) -> bool:
        if not session_key:
            return False
        now = self._monotonic()
        self._checked_at = {key: at for key, at in self._checked_at.items() if now - at < SESSION_SECONDS}
        if session_key not in self._checked_at:
            if not self._check(session_key):
                return False
            self._checked_at[session_key] = now
        return True


@dataclass(frozen=True, slots=True)
class GuardedRequest:
    """What the guard looks at in a request."""

    host: str
    address: str
    authorization: str = ""
    session_key: str = ""
    method: str = "GET"
    #: The headers Origin and Sec-Fetch-Site, which tell the origin of the page that sends the request.
    origin: str = ""
    fetch_site: str = ""

    @property
    def is_cross_origin_change(self) -> bool:
        """Whether a page of another origin, which another port of the same host is too, tries to change something."""
        if self.method in ("GET", "HEAD", "OPTIONS"):
            return False
        if self.fetch_site:
            return self.fetch_site not in ("same-origin", "none")
        return bool(self.origin) and urlsplit(self.origin).netloc != self.host


class Guard:
    """Decides which requests reach Flower: those to an allowed host and, if a login is required, with one."""

    def __init__(
        self,
        *,
        hosts: Iterable[str],
        logins: Iterable[str],
        asks_for_login: bool = True,
        counters: LocalCounters | None = None,
        sessions: ConsoleSessions | None = None,
    ) -> None:
        self._hosts = list(hosts)
        self._logins = [f"Basic {base64.b64encode(login.encode()).decode()}" for login in logins]
        self._asks_for_login = asks_for_login
        self._counters = counters or LocalCounters()
        self._sessions = sessions or ConsoleSessions()

    def refusal(self, request: GuardedRequest) -> int:
        """Return the HTTP status that refuses a request, or 0."""
        if not validate_host(split_domain_port(request.host)[0], self._hosts):
            return 400
        if request.is_cross_origin_change:
            return 403
        if not self._asks_for_login:
            return 0
        if not request.authorization and self._sessions.is_superuser(request.session_key):
            return 0
        return self._login_refusal(request.address, request.authorization)

    def _login_refusal(self, address: str, authorization: str) -> int:
        bucket = bucket_of(f"flower {address}", secret=settings.SECRET_KEY)
        if self._counters.read(bucket) >= WRONG_LOGINS:
            return 429  # even for the right login, which any other status would reveal
        if any(hmac.compare_digest(login.encode(), authorization.encode()) for login in self._logins):
            return 0
        if authorization:  # a browser's first request has no login
            self._counters.add([bucket])
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


class ConsoleTemplates(Loader):
    """Flower's templates with links to the console. The Broker tab can't read PushHub's transport and is replaced."""

    def _create_template(self, name: str) -> Template:
        text = (Path(self.root) / name).read_text(encoding="utf-8")
        for pattern, replacement in REPLACEMENTS.get(name, ()):
            match = re.search(pattern, text, re.DOTALL)
            assert match is not None, f"{name} of Flower has changed: there is no {pattern}"
            text = text[: match.start()] + replacement + text[match.end() :]
        return Template(text, name=name, loader=self)


#: For each template the patterns to replace, and their replacements.
REPLACEMENTS = {
    "tasks.html": (
        (
            r"Task history",
            "Deliveries. Search for a subscription, topic, message id, attempt or outcome; "
            "name:deliveries.tasks finds the housekeeping.",
        ),
    ),
    "navbar.html": (
        (
            r"<li class=\"nav-item\">\s*<a class=\"nav-link\{% if active_tab == 'broker'.*?</li>",
            '<li class="nav-item"><a class="nav-link" href="{{ handler.application.console_url("") }}">Console</a>'
            "</li>",
        ),
    ),
    "task.html": (
        (
            r"(?=<div class=\"detail-row detail-row-code task-data-row\">\s*<dt>Arguments)",
            "{% set link = handler.application.message_url(task) %}{% if link %}"
            '<div class="detail-row task-data-row"><dt>Message</dt><dd><a href="{{ link }}">in the console</a></dd>'
            "</div>{% end %}",
        ),
    ),
}


#: The headings of the list of tasks, by Flower's names for what format_row fills in.
COLUMNS = {
    "args": "Subscription",
    "uuid": "Message",
    "retries": "Attempt",
    "result": "Outcome",
    "eta": "Next attempt",
    "kwargs": "Topic",
}


def console_url(path: str) -> str:
    """Return the address of a page of the console."""
    return f"{settings.PUBLIC_URL.rstrip('/')}/admin/{path}"


def arguments_of(task: Any) -> dict[str, Any]:
    """Return the arguments in the event of a push (deliveries/telemetry/sinks/flower.py), and none for other tasks."""
    try:
        arguments = ast.literal_eval(task.kwargs or "")
    except (ValueError, SyntaxError):
        return {}
    return arguments if isinstance(arguments, dict) and "message_id" in arguments else {}


def format_task(task: Any, *, clock: Clock = utcnow) -> Any:
    """Show the time of the next attempt as the console does, and the seconds until then."""
    if task.eta:
        due = datetime.fromisoformat(task.eta)
        seconds = (due - clock()).total_seconds()
        left = f"in {seconds:.1f} s" if seconds > 0 else "due"
        task.eta = f"{time_text(due, milliseconds=True)} ({left})"
    return task


def format_row(row: tuple[str, Any], *, clock: Clock = utcnow) -> tuple[str, Any]:
    """Fill the columns of a task in the list: what is pushed where, or the name of another task."""
    task_id, task = row[0], copy.copy(row[1])
    arguments = arguments_of(task)
    task.args = _short(arguments.get("subscription", "")) or task.name
    task.kwargs = _short(arguments.get("topic", ""))
    task.retries = arguments.get("attempt", "")
    # The column beside it has the next attempt.
    task.result = str(task.result or "").partition(", next attempt")[0]
    if task.eta:
        due = datetime.fromisoformat(task.eta)
        left = (due - clock()).total_seconds()
        task.eta = f"{due:%H:%M:%S} UTC ({f'in {left:.1f} s' if left > 0 else 'due'})"
    return task_id, task


def _short(name: str) -> str:
    """Return `shop/orders` for `projects/shop/topics/orders`."""
    _, _, project_and_id = name.partition("projects/")
    return re.sub("/(subscriptions|topics)/", "/", project_and_id) or name


def search_deliveries(events: Any, *, search: str = "", **options: Any) -> Any:
    """Search the pushes or, where the search has `name:`, all tasks: the housekeeping would crowd the pushes out."""
    kind = {} if "name:" in search.casefold() else {"type": TASK_NAME}
    return search_tasks(events, search=search, **kind, **options)


class LateIndex(TaskSearchEngine):  # type: ignore[misc]
    """Indexes what has changed when somebody searches: at each of a task's events, that is half of what Flower does."""

    def __init__(self) -> None:
        super().__init__()
        #: Tasks by id, as many as Flower keeps at most.
        self._changed: dict[str, Any] = {}

    def upsert(self, task: Any) -> None:
        self._changed[task.uuid] = task

    def remove(self, task_id: str) -> None:
        self._changed.pop(task_id, None)
        super().remove(task_id)

    def search(self, *args: Any, **options: Any) -> Any:
        changed, self._changed = self._changed, {}
        for task in changed.values():
            super().upsert(task)
        return super().search(*args, **options)


class GuardedFlower(Flower):  # type: ignore[misc]
    """Flower behind the guard."""

    def __init__(self, options: Any = None, **kwargs: Any) -> None:
        kwargs["template_loader"] = ConsoleTemplates(kwargs["template_path"], autoescape="xhtml_escape")
        super().__init__(options=options, **kwargs)
        self.options.format_task = format_task
        address = settings.FLOWER_ADDRESS[0]
        logins = self.options.basic_auth or []
        self.guard = Guard(
            hosts=[*settings.ALLOWED_HOSTS, address],
            logins=logins,
            asks_for_login=bool(logins) or not is_loopback(address),
        )

    def find_handler(self, request: HTTPServerRequest, **kwargs: Any) -> Any:
        session = request.cookies.get(settings.SESSION_COOKIE_NAME)
        guarded = GuardedRequest(
            host=request.headers.get("Host", ""),
            address=request.remote_ip or "",
            authorization=request.headers.get("Authorization", ""),
            session_key=session.value if session is not None else "",
            method=request.method or "",
            origin=request.headers.get("Origin", ""),
            fetch_site=request.headers.get("Sec-Fetch-Site", ""),
        )
        status = self.guard.refusal(guarded)
        if status:
            return self.get_handler_delegate(request, Refusal, {"status": status})
        if request.path == "/broker":
            return self.get_handler_delegate(request, NotFoundErrorHandler)
        return super().find_handler(request, **kwargs)

    def console_url(self, path: str) -> str:
        return console_url(path)

    def message_url(self, task: Any) -> str:
        """Return the address of the console's page of the message that a task pushes, or ""."""
        message_id = str(arguments_of(task).get("message_id", ""))
        return console_url(f"deliveries/message/way/{message_id}/") if message_id.isdecimal() else ""


def guard_flower() -> None:
    """Make Flower's command start the guarded application, whose pages have PushHub's security headers."""
    command.Flower = GuardedFlower
    events.TaskSearchEngine = LateIndex
    set_flower_headers = BaseHandler.set_default_headers

    def set_default_headers(handler: BaseHandler) -> None:
        set_flower_headers(handler)
        handler.set_header("Content-Security-Policy", content_policy())
        handler.set_header("X-Frame-Options", "DENY")
        handler.set_header("Referrer-Policy", "same-origin")

    BaseHandler.set_default_headers = set_default_headers
    tasks.TASK_COLUMNS.update(COLUMNS)
    tasks.search_tasks = search_deliveries
    tasks.TasksDataTable.format_task = lambda handler, row: format_row(row)
    # The guard has checked the login already. Flower's own check would refuse sessions of the console.
    BaseHandler.get_current_user = lambda handler: True


def main() -> None:
    # Only this process needs it, and with all of Celery's commands and their shell it takes long to import.
    from celery.bin.celery import main as celery_main

    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "pushhub.settings")
    django.setup()
    guard_flower()
    sys.argv[1:1] = ["--app=pushhub", "--quiet", "flower"]
    celery_main()


if __name__ == "__main__":
    main()
