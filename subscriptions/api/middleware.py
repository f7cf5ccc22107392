"""Middleware for every request: methods in a header, access tokens in the query, the origin for the audit log, and
compressed responses.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable
from urllib.parse import unquote_plus

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.utils.cache import patch_vary_headers
from django.utils.deprecation import MiddlewareMixin

from subscriptions.api.authentication import session_principal
from subscriptions.audit import Origin, origin
from subscriptions.identity.tenants import admit_tenant

#: The versions of the services whose methods PushHub has.
API = ("/v1/", "/v2/", "/v3/")
#: The methods that a POST request may name in X-HTTP-Method-Override.
OVERRIDING = ("PATCH", "PUT", "DELETE")
#: The query parameters that can carry an access token in Google's APIs.
TOKEN_PARAMETERS = ("access_token", "oauth_token")
#: Compressing shorter responses isn't worth the time.
COMPRESSED_FROM_BYTES = 1024
#: Messages are base64, so a higher level would save little and cost several times as much time.
COMPRESSION_LEVEL = 1
NO_GZIP = re.compile(r"\s*q\s*=\s*0(\.0*)?\s*")


class MethodOverride(MiddlewareMixin):
    """Takes a POST request as the method that its header names.

    Java's own HTTP client, by which Google's libraries send REST, has no PATCH.
    """

    def process_request(self, request: HttpRequest) -> None:
        method = request.headers.get("X-HTTP-Method-Override", "").upper()
        if request.method == "POST" and method in OVERRIDING and request.path.startswith(API):
            request.method = request.META["REQUEST_METHOD"] = method


class QueryCredentials(MiddlewareMixin):
    """Moves an access token from the query to the Authorization header, so that no log of URLs ever shows it.

    An Authorization header of the caller takes precedence.
    """

    def process_request(self, request: HttpRequest) -> None:
        query = request.META.get("QUERY_STRING", "")
        if "token" in query and request.path.startswith(API):
            pairs = [(pair, *pair.partition("=")[::2]) for pair in query.split("&")]
            tokens = [value for _, name, value in pairs if unquote_plus(name) in TOKEN_PARAMETERS]
            if tokens:
                request.META.setdefault("HTTP_AUTHORIZATION", f"Bearer {unquote_plus(tokens[0])}")
            kept = [pair for pair, name, _ in pairs if unquote_plus(name) not in TOKEN_PARAMETERS]
            request.META["QUERY_STRING"] = "&".join(kept)


class CompressedAnswers(MiddlewareMixin):
    """Compresses the API's JSON for clients that accept gzip.

    It leaves out browser sessions and the console's pages: another site's page could request them again and again, and
    learn their content from the lengths of the responses (the BREACH attack).
    """

    def process_response(self, request: HttpRequest, response: HttpResponse) -> HttpResponse:
        if not request.path.startswith(API) or response.streaming or response.has_header("Content-Encoding"):
            return response
        patch_vary_headers(response, ["Accept-Encoding"])
        if (
            len(response.content) >= COMPRESSED_FROM_BYTES
            and settings.SESSION_COOKIE_NAME not in request.COOKIES
            and _takes_gzip(request.headers.get("Accept-Encoding", ""))
        ):
            response.content = gzip.compress(response.content, compresslevel=COMPRESSION_LEVEL, mtime=0)
            response["Content-Encoding"] = "gzip"
            response["Content-Length"] = str(len(response.content))
        return response


def _takes_gzip(accepted: str) -> bool:
    for coding in accepted.lower().split(","):
        name, _, quality = coding.partition(";")
        if name.strip() in ("gzip", "x-gzip"):
            return NO_GZIP.fullmatch(quality) is None
    return False


class AuditOrigin:
    """Records where a request comes from. The API's views add the caller and the method."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        caller = session_principal(request)
        if caller is not None:
            admit_tenant(request, user=caller.member)
        surface = "admin" if request.path.startswith("/admin/") else "rest"
        request_origin = Origin(
            caller=caller.member if caller is not None else "",
            surface=surface,
            address=str(request.META.get("REMOTE_ADDR", "")),
            method=f"{request.method} {request.path}" if surface == "admin" else "",
        )
        with origin(request_origin):
            return self._get_response(request)
