"""Keeps pages of other sites from calling PushHub through a visitor's browser while callers need no credentials.

The browser names the page's site as Origin. A page whose own host name leads to this machine (DNS rebinding) counts as
one of PushHub's, and only the Host header shows that it is not.
"""

from __future__ import annotations

import ipaddress

from django.conf import settings
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.http.request import split_domain_port, validate_host
from django.utils.deprecation import MiddlewareMixin
from rest_framework.permissions import SAFE_METHODS

from pushhub.common.errors import InvalidArgument, PermissionDenied, PushHubError
from subscriptions.api.errors import error_body

UNKNOWN_HOST = "The Host header names an unknown host. PUSHHUB_ALLOWED_HOSTS can list further ones."
OTHER_SITE = "Requests from pages of other sites are refused."
#: Top-level names that nobody can register: RFC 6761 for the first two, ICANN's resolution of 2024 for the third, which
#: containers use for their host.
RESERVED_SUFFIXES = (".localhost", ".test", ".internal")


class OtherSites(MiddlewareMixin):
    """Refuses such requests, and those that name an unknown host, whatever they are for."""

    def process_request(self, request: HttpRequest) -> HttpResponse | None:
        if not settings.ANONYMOUS and _is_for_monitoring(request):
            # Load balancers, kubelets and Prometheus name an address, which Django would refuse.
            request.META["HTTP_HOST"] = "localhost"
        error = _refusal(request)
        return JsonResponse(error_body(error), status=error.http_status) if error is not None else None


def is_known_host(host: str) -> bool:
    """Whether requests may name this host, which may have a port."""
    domain, _ = split_domain_port(host)
    if settings.EMULATOR == "OFF":
        return bool(domain) and validate_host(domain, settings.ALLOWED_HOSTS)
    return bool(domain) and (_is_local(domain) or validate_host(domain, settings.NAMED_HOSTS))


def _is_local(domain: str) -> bool:
    """Whether no page can have this name and lead it here: it has one label, a reserved suffix, or is an address."""
    if "." not in domain or domain.endswith(RESERVED_SUFFIXES):
        return True
    try:
        return bool(ipaddress.ip_address(domain.strip("[]")))
    except ValueError:
        return False


def _is_for_monitoring(request: HttpRequest) -> bool:
    """Whether a page of another site learns nothing by the request."""
    return request.path in ("/healthz", "/readyz") or (request.path == "/metrics" and bool(settings.METRICS_TOKEN))


def _refusal(request: HttpRequest) -> PushHubError | None:
    host = request.META.get("HTTP_HOST") or request.META["SERVER_NAME"]
    if not is_known_host(host):
        return InvalidArgument(UNKNOWN_HOST)
    if not settings.ANONYMOUS:
        return None
    origin = request.headers.get("Origin")
    if origin and origin.partition("://")[2] != host and origin not in settings.CSRF_TRUSTED_ORIGINS:
        return PermissionDenied(OTHER_SITE)
    # A link on another site may lead to PushHub's pages.
    if request.method not in SAFE_METHODS and request.headers.get("Sec-Fetch-Site") in ("cross-site", "same-site"):
        return PermissionDenied(OTHER_SITE)
    return None
