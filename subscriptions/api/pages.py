"""The start page, and the health check for monitoring."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from django.conf import settings
from django.contrib.auth.views import redirect_to_login
from django.core.exceptions import SuspiciousFileOperation
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.http.response import HttpResponseBase
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_safe
from django.views.static import serve
from drf_spectacular.views import SpectacularSwaggerSplitView

from pushhub.common.background import threads_stuck
from subscriptions.api.authentication import session_principal

View = Callable[..., HttpResponseBase]


def for_staff(view: View) -> View:
    """Require the console's login for a view, except in development."""

    @wraps(view)
    def guarded(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        if not settings.DEVELOPMENT and session_principal(request) is None:
            return redirect_to_login(request.get_full_path(), reverse("admin:login"))
        return view(request, *args, **kwargs)

    return guarded


@require_safe
def index(request: HttpRequest) -> HttpResponse:
    return render(request, "subscriptions/index.html")


@for_staff
@require_safe
def docs(request: HttpRequest) -> HttpResponseBase:
    """Send the pages of the REST API, or say which extra they belong to if they are not installed."""
    if "drf_spectacular_sidecar" not in settings.INSTALLED_APPS:
        return render(request, "subscriptions/no_docs.html", status=404)
    return SpectacularSwaggerSplitView.as_view(url_name="schema")(request)


@for_staff
@require_safe
def guide(request: HttpRequest, path: str) -> HttpResponseBase:
    """Send a file of the guide, or say how to build it if `make docs` has not."""
    if not (settings.GUIDE / "index.html").exists():
        return render(request, "subscriptions/no_guide.html", status=404)
    name = f"{path}index.html" if path.endswith("/") or not path else path
    try:
        return serve(request, name, str(settings.GUIDE))
    except (SuspiciousFileOperation, OSError):  # a path above the guide, or one that is too long
        raise Http404 from None


@require_safe
def healthz(request: HttpRequest) -> HttpResponse:
    """Answer 200 if this process's background threads work, else 503. The web server itself answers while they do."""
    stuck = threads_stuck()
    if stuck:
        return JsonResponse({"status": "unavailable", "threads": stuck}, status=503)
    return JsonResponse({"status": "ok"})
