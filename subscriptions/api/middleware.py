"""What happens around every request: credentials out of the query, notes for the audit log, compressed answers."""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable
from urllib.parse import unquote_plus

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.utils.cache import patch_vary_headers

from subscriptions.api.authentication import session_principal
from subscriptions.audit import Origin, origin

Answerer = Callable[[HttpRequest], HttpResponse]

API = "/v1/"
#: The query parameters that Google's APIs take an access token in.
TOKEN_PARAMETERS = ("access_token", "oauth_token")
#: Shorter answers are not worth the time.
COMPRESSED_FROM_BYTES = 1024
#: Messages travel as base64: what more effort would save is little, and costs a multiple of the time.
COMPRESSION_LEVEL = 1
NO_GZIP = re.compile(r"\s*q\s*=\s*0(\.0*)?\s*")


class QueryCredentials:
    """Moves an access token from the query to the Authorization header, so that nothing that writes down addresses
    ever sees it. A header that the caller sent itself counts more."""

    def __init__(self, get_response: Answerer) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        query = request.META.get("QUERY_STRING", "")
        if "token" in query and request.path.startswith(API):
            pairs = [(pair, *pair.partition("=")[::2]) for pair in query.split("&")]
            tokens = [value for _, name, value in pairs if unquote_plus(name) in TOKEN_PARAMETERS]
            if tokens:
                request.META.setdefault("HTTP_AUTHORIZATION", f"Bearer {unquote_plus(tokens[0])}")
            kept = [pair for pair, name, _ in pairs if unquote_plus(name) not in TOKEN_PARAMETERS]
            request.META["QUERY_STRING"] = "&".join(kept)
        return self._get_response(request)


class CompressedAnswers:
    """Compresses the API's JSON for those who take gzip.

    Not for sessions of a browser, nor on the console's pages: a page of another site could have them sent again and
    again and learn from their lengths what they hold (the BREACH attack).
    """

    def __init__(self, get_response: Answerer) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        response = self._get_response(request)
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
