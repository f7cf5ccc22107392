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
import os
import re
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import django
from django.conf import settings
from flower import command, events
from flower.app import Flower
from flower.utils.search import TaskSearchEngine
from flower.utils.tasks import search_tasks
from flower.views import BaseHandler, tasks
from flower.views.error import NotFoundErrorHandler
from tornado.httputil import HTTPServerRequest
from tornado.template import Loader, Template

from deliveries.rules.taskmessage import TASK_NAME
from pushhub.common.clock import Clock, time_text, utcnow
from pushhub.common.environment import is_loopback
from pushhub.contentpolicy import policy
from pushhub.runtime.monitorguard import Guard, Refusal, console_url

#: The only inline script of Flower's pages, in its two forms (templates/workers.html).
INLINE_SCRIPTS = tuple(f"\nvar autorefresh = {value};\n" for value in (0, 1))


def content_policy() -> str:
    """Return the policy of the console's pages, extended by what Flower's pages have inline: one script, and styles."""
    digests = (hashlib.sha256(script.encode()).digest() for script in INLINE_SCRIPTS)
    hashes = " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
    return policy(scripts=hashes, styles="'unsafe-inline'")


class ConsoleTemplates(Loader):
    """Flower's templates with links to the console. The Broker tab can't read PushHub's transport and is replaced."""

    def _create_template(self, name: str) -> Template:
        text = (Path(self.root) / name).read_text(encoding="utf-8")
        if name in REPLACEMENTS:
            pattern, replacement = REPLACEMENTS[name]
            match = re.search(pattern, text, re.DOTALL)
            assert match is not None, f"{name} of Flower has changed: there is no {pattern}"
            text = text[: match.start()] + replacement + text[match.end() :]
        return Template(text, name=name, loader=self)


#: The pattern that is replaced in a template, and what takes its place.
REPLACEMENTS = {
    "tasks.html": (
        r"Task history",
        "Deliveries. Search for a subscription, topic, message id, attempt or outcome; "
        "name:deliveries.tasks finds the housekeeping.",
    ),
    "navbar.html": (
        r"<li class=\"nav-item\">\s*<a class=\"nav-link\{% if active_tab == 'broker'.*?</li>",
        '<li class="nav-item"><a class="nav-link" href="{{ handler.application.console_url("") }}">Console</a></li>',
    ),
    "task.html": (
        r"(?=<div class=\"detail-row detail-row-code task-data-row\">\s*<dt>Arguments)",
        "{% set link = handler.application.message_url(task) %}{% if link %}"
        '<div class="detail-row task-data-row"><dt>Message</dt><dd><a href="{{ link }}">in the console</a></dd>'
        "</div>{% end %}",
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
        task.eta = f"{time_text(due, milliseconds=True)} ({_left(due, clock)})"
    return task


def _left(due: datetime, clock: Clock) -> str:
    seconds = (due - clock()).total_seconds()
    return f"in {seconds:.1f} s" if seconds > 0 else "due"


def format_row(row: tuple[str, Any]) -> tuple[str, Any]:
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
        task.eta = f"{due:%H:%M:%S} UTC ({_left(due, utcnow)})"
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
        if status := self.guard.refusal(request):
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
