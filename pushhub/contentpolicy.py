"""The Content-Security-Policy of every HTML page: what a page may load and run, whatever text gets into it."""

from __future__ import annotations

import secrets
from collections.abc import Callable

from django.http import HttpRequest, HttpResponse
from django.utils.functional import SimpleLazyObject, empty

#: Everything comes from this service. Icons of style sheets are data: URLs.
DIRECTIVES = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self'",
    "img-src": "'self' data:",
    "font-src": "'self'",
    "connect-src": "'self'",
    "form-action": "'self'",
    "frame-ancestors": "'none'",
    "base-uri": "'none'",
}
NONCE_BYTES = 16


class ContentSecurityPolicy:
    """Sends the policy. An inline script or style runs with `nonce="{{ request.csp_nonce }}"` only."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        nonce = SimpleLazyObject(lambda: secrets.token_urlsafe(NONCE_BYTES))
        request.csp_nonce = nonce  # type: ignore[attr-defined]
        response = self._get_response(request)
        if response.get("Content-Type", "").startswith("text/html"):
            inline = f"'nonce-{nonce}'" if nonce._wrapped is not empty else ""
            response.headers.setdefault("Content-Security-Policy", policy(scripts=inline, styles=inline))
        return response


def policy(*, scripts: str = "", styles: str = "") -> str:
    """Return the header's value; the arguments are further sources of scripts and styles."""
    more = {"script-src": scripts, "style-src": styles}
    return "; ".join(f"{name} {sources} {more.get(name, '')}".strip() for name, sources in DIRECTIVES.items())
