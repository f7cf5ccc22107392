"""`/metrics` for Prometheus and `/readyz` for whatever watches the deployment."""

from __future__ import annotations

import hmac

from django.conf import settings
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.http import require_safe

from deliveries.telemetry.export.exposition import CONTENT_TYPE
from deliveries.telemetry.export.probes import Status
from deliveries.telemetry.export.prometheus import metrics_text
from deliveries.telemetry.export.readiness import CHECKS, overall, probes
from pushhub.common import environment as env
from pushhub.common.replica import read
from subscriptions.api.authentication import session_principal


@require_safe
def metrics(request: HttpRequest) -> HttpResponse:
    """Return the metrics of all processes to callers with the token of PUSHHUB_METRICS_TOKEN, or on loopback."""
    if not settings.METRICS:
        return HttpResponse("PUSHHUB_METRICS is off.\n", status=404, content_type="text/plain")
    if not _may_read_metrics(request):
        response = HttpResponse("Show the token of PUSHHUB_METRICS_TOKEN.\n", status=401, content_type="text/plain")
        response["WWW-Authenticate"] = 'Bearer realm="pushhub metrics"'
        return response
    return HttpResponse(read(metrics_text), content_type=CONTENT_TYPE)


def _may_read_metrics(request: HttpRequest) -> bool:
    caller = session_principal(request)
    if caller is not None and caller.is_superuser:
        return True
    if settings.METRICS_TOKEN:
        expected = f"Bearer {settings.METRICS_TOKEN}".encode()
        return hmac.compare_digest(request.headers.get("Authorization", "").encode(), expected)
    # The gRPC port leads to REST as well, and a proxy brings callers from everywhere.
    hosts = (settings.HTTP_ADDRESS[0], settings.GRPC_ADDRESS[0])
    return all(map(env.is_loopback, hosts)) and not settings.BEHIND_PROXY


@require_safe
def readyz(request: HttpRequest) -> HttpResponse:
    """Return 200 if messages can be accepted and delivered, or 503, within a second. `?exclude=NAME` skips a check."""
    excluded = frozenset(request.GET.getlist("exclude"))
    unknown = sorted(excluded - CHECKS.keys())
    if unknown:
        reason = f"exclude={unknown[0][:40]!r}: there are {', '.join(CHECKS)}"
        return JsonResponse({"status": "invalid", "reason": reason}, status=400)
    components = probes().results(exclude=excluded)
    status = overall(components)
    body = {
        "status": status,
        "components": {
            name: {
                "status": component.status,
                **({"reason": component.reason} if component.reason else {}),
                **({"state": component.state} if component.state else {}),
                **{figure: round(value, 3) for figure, value in component.figures.items()},
            }
            for name, component in components.items()
        },
    }
    return JsonResponse(body, status=503 if status == Status.UNAVAILABLE else 200)
