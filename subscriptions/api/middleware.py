"""Notes for the audit log who is at the other end of each request."""

from __future__ import annotations

from collections.abc import Callable

from django.http import HttpRequest, HttpResponse

from subscriptions.api.authentication import session_principal
from subscriptions.audit import Origin, origin

Answerer = Callable[[HttpRequest], HttpResponse]


class AuditOrigin:
    """Views refine it: the API's with the caller and the method."""

    def __init__(self, get_response: Answerer) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        caller = session_principal(request)
        surface = "admin" if request.path.startswith("/admin/") else "rest"
        found = Origin(
            caller=caller.member if caller is not None else "",
            surface=surface,
            address=str(request.META.get("REMOTE_ADDR", "")),
            method=f"{request.method} {request.path}" if surface == "admin" else "",
        )
        with origin(found):
            return self._get_response(request)
