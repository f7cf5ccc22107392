"""Responses as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson
from rest_framework.negotiation import BaseContentNegotiation
from rest_framework.parsers import BaseParser
from rest_framework.renderers import BaseRenderer
from rest_framework.request import Request

from subscriptions.api.answers import PLAIN


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
