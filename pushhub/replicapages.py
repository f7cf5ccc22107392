"""Lets the console's pages that only show something read from the replica."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.template.response import SimpleTemplateResponse

from pushhub.common.replica import MOST_SECONDS, read, told_seconds

#: Besides all lists, by the name of the URL. Forms are not among them: they would save what they have shown.
PAGES = frozenset(
    f"deliveries_{page}"
    for page in (
        *("overview", "state", "live", "waiting", "charts", "topic", "rejected"),
        *("message_way", "message_change", "deadletters_of", "deadletter_change"),
    )
)
SAFE = frozenset({"GET", "HEAD"})
#: Set by whoever changes something in the console: for as long as a replica that is read may be behind, and a look at
#: it may take, this browser's pages are those of the primary.
COOKIE = "pushhub_changed"
COOKIE_SECONDS = round(MOST_SECONDS) + 5


class ReplicaPages:
    """Middleware. It is the last one, so all that others read is read from the primary."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        response = self._get_response(request)
        if request.method not in SAFE and _is_console(request):
            secure = settings.SESSION_COOKIE_SECURE
            response.set_cookie(
                COOKIE, "1", max_age=COOKIE_SECONDS, path="/admin/", secure=secure, httponly=True, samesite="Lax"
            )
        return response

    def process_view(self, request: HttpRequest, view: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Return the page, or None for a page that Django shall get from the view."""
        if request.method not in SAFE or COOKIE in request.COOKIES or not _is_console(request):
            return None
        match = request.resolver_match
        name = str(match.url_name) if match is not None else ""
        if name not in PAGES and name != "index" and not name.endswith("_changelist"):
            return None

        def page() -> Any:
            request.replica_seconds = told_seconds()  # type: ignore[attr-defined]
            response = view(request, *args, **kwargs)
            if isinstance(response, SimpleTemplateResponse):
                response.render()  # templates read too
            return response

        return read(page)


def _is_console(request: HttpRequest) -> bool:
    return request.resolver_match is not None and request.resolver_match.namespace == "admin"
