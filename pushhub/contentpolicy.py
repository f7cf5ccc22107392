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
            is_used = nonce._wrapped is not empty
            response.headers.setdefault("Content-Security-Policy", policy(str(nonce) if is_used else ""))
        return response


def policy(nonce: str = "") -> str:
    """The header's value, which lets inline scripts and styles with this nonce run."""
    inline = f" 'nonce-{nonce}'" if nonce else ""
    return "; ".join(
        f"{name} {sources}{inline if name in ('script-src', 'style-src') else ''}"
        for name, sources in DIRECTIVES.items()
    )
