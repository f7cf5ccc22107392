"""`/token` and `/revoke`: form requests, with errors in the form of RFC 6749, which their clients expect."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import IO, Any
from urllib.parse import parse_qsl

from rest_framework.parsers import BaseParser
from rest_framework.response import Response
from rest_framework.views import set_rollback

from pushhub.common.errors import InvalidArgument
from subscriptions.api.base import PublicView
from subscriptions.api.errors import known_error
from subscriptions.api.identity.oauth2 import TAG, uncached
from subscriptions.api.openapi import OAUTH_OBJECT
from subscriptions.api.parsers import read_body
from subscriptions.api.routes import serve
from subscriptions.identity import access_tokens
from subscriptions.identity.exchange import GrantRefused, grant_token

MAX_FORM_BYTES = 32 * 1024
MAX_FORM_FIELDS = 20
FORM = {
    "application/x-www-form-urlencoded": {
        "type": "object",
        "properties": {"grant_type": {"type": "string"}, "assertion": {"type": "string"}},
    }
}
REVOCATION = {"application/x-www-form-urlencoded": {"type": "object", "properties": {"token": {"type": "string"}}}}

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


@serve("POST", "token", "", operation_id="token", tag=TAG, takes=FORM, gives=OAUTH_OBJECT, base=FormView)
def exchange_assertion(body: dict[str, str]) -> Response:
    """Return an access token or an id token for an assertion that a service account's key signed (RFC 7523)."""
    return uncached(grant_token(body))


@serve("POST", "revoke", "", operation_id="revoke", tag=TAG, takes=REVOCATION, gives=OAUTH_OBJECT, base=FormView)
def revoke_token(body: dict[str, str], query: Mapping[str, str]) -> Response:
    """Revoke an access token (RFC 7009). An unknown token is no error."""
    token = body.get("token") or query.get("token")
    if not token:
        raise GrantRefused("invalid_request", "Missing required parameter: token")
    access_tokens.revoke_access_token(token=token)
    return uncached({})


def exception_handler(error: Exception, context: dict[str, Any]) -> Response:
    known = known_error(error)
    set_rollback()
    if isinstance(known, GrantRefused):
        logger.info("/token refused: %s, %s", known.error, known.message)
        return uncached({"error": known.error, "error_description": known.message}, status=400)
    word = "server_error" if known.http_status >= 500 else "invalid_request"
    return uncached({"error": word, "error_description": known.message}, status=known.http_status)
