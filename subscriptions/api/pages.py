"""For people and for whatever watches the service: the first page and the health check."""

from __future__ import annotations

from django.db import Error, connection
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from pushhub.background import threads_silent


@require_safe
def index(request: HttpRequest) -> HttpResponse:
    return render(request, "subscriptions/index.html")


@require_safe
def healthz(request: HttpRequest) -> HttpResponse:
    """200 while requests can be served, which needs the database and this process' threads; 503 otherwise."""
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
    except Error:
        return JsonResponse({"status": "unavailable", "database": "unreachable"}, status=503)
    silent = threads_silent()
    if silent:
        return JsonResponse({"status": "unavailable", "threads": silent}, status=503)
    return JsonResponse({"status": "ok"})
