"""Errors in Google's JSON form: the only place where a canonical code becomes an HTTP response."""

from __future__ import annotations

import logging
import sys
from typing import Any

from django.core.exceptions import PermissionDenied as DjangoPermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.template.loader import render_to_string
from rest_framework import exceptions
from rest_framework.response import Response
from rest_framework.views import set_rollback

from pushhub.common.errors import (
    Internal,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    PushHubError,
    Unauthenticated,
    Unavailable,
)
from pushhub.common.outages import outage_of

BAD_REQUEST = "type.googleapis.com/google.rpc.BadRequest"

logger = logging.getLogger(__name__)


def exception_handler(error: Exception, context: dict[str, Any]) -> Response:
    """Return the response for any exception of a view, even an unexpected one, so that no caller gets HTML."""
    known = known_error(error)
    set_rollback()
    response = Response(error_body(known), status=known.http_status)
    if isinstance(known, Unauthenticated):
        response["WWW-Authenticate"] = 'Bearer realm="pushhub"'
    return response


def server_error(request: HttpRequest) -> HttpResponse:
    """Return the response for an exception outside of the API's views: of the console, or of the middleware.

    Django calls this, and logs the exception unless the status is 503. Browsers get a page.
    """
    error = sys.exc_info()[1]
    is_outage = outage_of(error) is not None
    known = known_error(error) if isinstance(error, Exception) and is_outage else _internal()
    if "text/html" not in request.headers.get("Accept", ""):
        return JsonResponse(error_body(known), status=known.http_status)
    # Without the request, the page needs no query for the user.
    return HttpResponse(render_to_string("500.html", {"is_outage": is_outage}), status=known.http_status)


def error_details(error: PushHubError) -> list[dict[str, Any]]:
    """Return the details of an error in JSON form, with the field that it is about."""
    details = list(error.details)
    if error.field and isinstance(error, InvalidArgument):
        violation = {"field": error.field, "description": error.message}
        details.insert(0, {"@type": BAD_REQUEST, "fieldViolations": [violation]})
    return details


def error_body(error: PushHubError) -> dict[str, Any]:
    body: dict[str, Any] = {"code": error.http_status, "message": error.message, "status": error.code}
    details = error_details(error)
    if details:
        body["details"] = details
    return {"error": body}


def known_error(error: Exception) -> PushHubError:
    """Return the PushHubError for any exception. Those of the framework get Google's texts."""
    if isinstance(error, PushHubError):
        return error
    if isinstance(error, (exceptions.NotAuthenticated, exceptions.AuthenticationFailed)):
        return Unauthenticated(
            "Request is missing required authentication credential. Expected OAuth 2 access token, login cookie or "
            "other valid authentication credential."
        )
    if isinstance(error, (exceptions.PermissionDenied, DjangoPermissionDenied)):
        return PermissionDenied("User not authorized to perform this action.")
    if isinstance(error, (Http404, exceptions.NotFound, exceptions.MethodNotAllowed)):
        return NotFound("Method not found.")
    if isinstance(error, exceptions.APIException) and error.status_code < 500:
        return InvalidArgument(str(error.detail))
    if outage_of(error):
        logger.warning("a request is refused", exc_info=error)
        return Unavailable("The service is currently unavailable.")
    logger.error("unexpected error", exc_info=error)
    return _internal()


def _internal() -> Internal:
    return Internal("Internal error encountered.")
