"""`/token` and `/revoke`: form requests, with errors in the form of RFC 6749, which their clients expect."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import IO, Any
from urllib.parse import parse_qsl

from drf_spectacular.utils import extend_schema
from rest_framework.parsers import BaseParser
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import set_rollback

from pushhub.common.errors import InvalidArgument
from subscriptions.api.base import PublicView
from subscriptions.api.errors import known_error
from subscriptions.api.openapi import OAUTH_OBJECT
from subscriptions.api.parsers import read_body
from subscriptions.identity import access_tokens
from subscriptions.identity.exchange import GrantRefused, grant_token

TAGS = ["tokens"]
MAX_FORM_BYTES = 32 * 1024
MAX_FORM_FIELDS = 20
FORM = {
    "application/x-www-form-urlencoded": {
        "type": "object",
        "properties": {"grant_type": {"type": "string"}, "assertion": {"type": "string"}},
    }
}
REVOCATION = {
    "application/x-www-form-urlencoded": {"type": "object", "properties": {"token": {"type": "string"}}},
}

logger = logging.getLogger(__name__)


class FormParser(BaseParser):
    """Reads a form of a bounded size, whatever the declared content type is."""

    media_type = "*/*"

    def parse(
        self, stream: IO[Any], media_type: str | None = None, parser_context: Mapping[str, Any] | None = None
    ) -> dict[str, str]:
        request = (parser_context or {})["request"]
        text = read_body(stream, request.META, limit=MAX_FORM_BYTES)
        try:
            pairs = parse_qsl(text.decode("ascii"), max_num_fields=MAX_FORM_FIELDS, strict_parsing=bool(text))
        except ValueError:
            raise InvalidArgument("The body must be a form: application/x-www-form-urlencoded.") from None
        form = dict(pairs)
        if len(form) < len(pairs):
            raise InvalidArgument("A parameter occurs more than once.")
        return form


class FormView(PublicView):
    """A view that reads a form. Errors have RFC 6749's form (section 5.2)."""

    parser_classes = [FormParser]

    def get_exception_handler(self) -> Any:
        return exception_handler


class Token(FormView):
    """The JWT bearer grant: an access token or an id token, for an assertion that a service account's key signed."""

    @extend_schema(operation_id="token", tags=TAGS, request=FORM, responses=OAUTH_OBJECT)
    def post(self, request: Request) -> Response:
        return _uncached(grant_token(_form(request)))


class Revoke(FormView):
    """Revokes an access token (RFC 7009). An unknown token is no error."""

    @extend_schema(operation_id="revoke", tags=TAGS, request=REVOCATION, responses=OAUTH_OBJECT)
    def post(self, request: Request) -> Response:
        token = _form(request).get("token") or request.query_params.get("token")
        if not token:
            raise GrantRefused("invalid_request", "Missing required parameter: token")
        access_tokens.revoke_access_token(token=token)
        return _uncached({})


def _form(request: Request) -> dict[str, str]:
    form = request.data
    assert isinstance(form, dict), "FormParser returns a dict"
    return form


def exception_handler(error: Exception, context: dict[str, Any]) -> Response:
    known = known_error(error)
    set_rollback()
    if isinstance(known, GrantRefused):
        logger.info("/token refused: %s, %s", known.error, known.message)
        return _uncached({"error": known.error, "error_description": known.message}, status=400)
    word = "server_error" if known.http_status >= 500 else "invalid_request"
    return _uncached({"error": word, "error_description": known.message}, status=known.http_status)


def _uncached(data: object, *, status: int = 200) -> Response:
    return Response(data, status=status, headers={"Cache-Control": "no-store", "Pragma": "no-cache"})
