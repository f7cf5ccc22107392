"""What the REST views of both apps share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import orjson
from rest_framework.exceptions import MethodNotAllowed
from rest_framework.negotiation import BaseContentNegotiation
from rest_framework.parsers import BaseParser
from rest_framework.renderers import BaseRenderer
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView, set_rollback

from pushhub.common import names
from pushhub.common.errors import InvalidArgument, PermissionDenied
from pushhub.common.principals import Principal
from subscriptions.api.answers import PLAIN, AnswerForm
from subscriptions.api.authentication import CallerAuthentication, IsCaller
from subscriptions.api.errors import exception_handler
from subscriptions.api.parsers import ProtoJSONParser
from subscriptions.audit import denied, refine_origin
from subscriptions.iam.methods import METHODS, authorize
from subscriptions.identity.tenants import admit_tenant
from subscriptions.quotas import charge_administration


class ProtoJSONRenderer(BaseRenderer):
    """Renders JSON. An empty response is `{}`, as google.protobuf.Empty is."""

    media_type = "application/json"
    format = "json"
    charset = "UTF-8"
    render_style = "text"

    def render(
        self, data: Any, accepted_media_type: str | None = None, renderer_context: Mapping[str, Any] | None = None
    ) -> bytes:
        context = renderer_context or {}
        form = getattr(context.get("view"), "form", PLAIN)
        answer = {} if data is None else data
        if "response" in context and context["response"].status_code < 400:
            answer = form.selection.of(answer)
        return orjson.dumps(answer, option=orjson.OPT_INDENT_2 if form.is_pretty else None)


class OneForm(BaseContentNegotiation):
    """Reads and renders JSON whatever the headers say, as Google's REST APIs do."""

    def select_parser(self, request: Request, parsers: Any) -> BaseParser:
        parser: BaseParser = parsers[0]
        return parser

    def select_renderer(
        self, request: Request, renderers: Any, format_suffix: str | None = None
    ) -> tuple[BaseRenderer, str]:
        return renderers[0], renderers[0].media_type


class ApiView(APIView):
    """A method of the API: JSON in, JSON out, errors in Google's form, and a caller whose permissions are checked."""

    #: The RPC that each HTTP method stands for. Others are refused.
    methods: ClassVar[Mapping[str, str]] = {}

    authentication_classes = [CallerAuthentication]
    permission_classes = [IsCaller]
    parser_classes = [ProtoJSONParser]
    renderer_classes = [ProtoJSONRenderer]
    content_negotiation_class = OneForm
    #: The form of the response. A view instance serves a single request.
    form = PLAIN

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        served = {name.upper(): rpc for name, served in vars(cls).items() if (rpc := getattr(served, "rpc", ""))}
        cls.methods = {**cls.methods, **served}

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)
        self.form = AnswerForm.read(request.query_params)
        if "HTTP_TRANSFER_ENCODING" in request.META and not request.META.get("CONTENT_LENGTH"):
            # WSGI hides a body without a length. To treat it as empty would lose it silently.
            raise InvalidArgument("The request has a body without a Content-Length.", field="body")
        if any("\0" in segment for segment in kwargs.values()):  # PostgreSQL can't even look it up
            raise names.invalid_name(self.resource_name(**kwargs))
        self.check_access(request, kwargs)

    def check_access(self, request: Request, kwargs: Mapping[str, str]) -> None:
        """Check that the caller may call this method on the resources that the request names."""
        http_method = "GET" if request.method == "HEAD" else request.method or ""
        method = self.methods.get(http_method)
        if method is None:
            raise MethodNotAllowed(http_method)
        refine_origin(caller=caller_of(request).member, surface="rest", method=method)
        name = self.resource_name(**kwargs)
        resource_names = {}
        requirements = METHODS.get(method, ())
        for requirement in requirements:
            resource_names[requirement.source] = (
                _body_name(request, requirement.source) if requirement.in_body else name
            )
        authorize(caller_of(request), method, resource_names)
        # Anybody may call a method without requirements, which makes nobody a tenant of the project.
        if requirements and "project" in kwargs:
            admit_tenant(request._request, project=kwargs["project"])
        charge_administration(method, resource_names)

    def handle_exception(self, exc: Exception) -> Response:
        """Record a denied administrative call in the audit log."""
        method = self.methods.get(self.request.method or "", "")
        if isinstance(exc, PermissionDenied):
            set_rollback()
            denied(method=method, resource=self.resource_name(**self.kwargs))
        return super().handle_exception(exc)

    def resource_name(self, **kwargs: str) -> str:
        """Return the full name of the resource that the URL is about."""
        return names.of_segments(**kwargs)

    def get_exception_handler(self) -> Any:
        return exception_handler


class PublicView(ApiView):
    """A method that anyone may call. Credentials are ignored."""

    authentication_classes = []
    permission_classes = []

    def check_access(self, request: Request, kwargs: Mapping[str, str]) -> None:
        """Nothing to check."""


class MethodNotFound(PublicView):
    """Any other URL of the API."""

    schema = None


def caller_of(request: Request) -> Principal:
    """Return the authenticated caller of a view that requires authentication."""
    caller = request.user
    assert isinstance(caller, Principal)
    return caller


def _body_name(request: Request, field: str) -> str:
    """Return a resource's name in the body, "" if there is none. The service refuses other values."""
    value = request.data.get(field) if isinstance(request.data, dict) else None
    return value if isinstance(value, str) else ""
