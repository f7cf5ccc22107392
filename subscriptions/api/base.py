"""What the views of both apps have in common."""

from __future__ import annotations

from typing import Any

from rest_framework.request import Request
from rest_framework.views import APIView

from pushhub.errors import InvalidArgument
from subscriptions.api.authentication import CallerAuthentication, IsCaller
from subscriptions.api.errors import exception_handler
from subscriptions.api.parsers import ProtoJSONParser
from subscriptions.api.renderers import OneForm, ProtoJSONRenderer


class ApiView(APIView):
    """A method of the API: JSON in, JSON out, errors in Google's form, a known caller."""

    authentication_classes = [CallerAuthentication]
    permission_classes = [IsCaller]
    parser_classes = [ProtoJSONParser]
    renderer_classes = [ProtoJSONRenderer]
    content_negotiation_class = OneForm

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)
        if "HTTP_TRANSFER_ENCODING" in request.META and not request.META.get("CONTENT_LENGTH"):
            # WSGI hides a body without a length, and to take it for an empty one would lose it silently.
            raise InvalidArgument("The request has a body without a Content-Length.", field="body")

    def get_exception_handler(self) -> Any:
        return exception_handler


class PublicView(ApiView):
    """A method that anyone may call, without credentials and whatever credentials they send along."""

    authentication_classes = []
    permission_classes = []


class MethodNotFound(PublicView):
    """Any other address under /v1/."""

    schema = None
