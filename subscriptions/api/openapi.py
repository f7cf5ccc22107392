"""Parts of the OpenAPI document, derived from the field tables that also read the requests."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from drf_spectacular.extensions import OpenApiAuthenticationExtension
from drf_spectacular.openapi import AutoSchema
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse

from pushhub.common import protojson

Schema = dict[str, Any]

PAGE_TOKEN = OpenApiParameter("pageToken", str, description="The nextPageToken of the previous page")
PAGING = [OpenApiParameter("pageSize", int, description="The maximum number of items in a page"), PAGE_TOKEN]
ERROR: Schema = {
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {
                "code": {"type": "integer"},
                "message": {"type": "string"},
                "status": {"type": "string"},
                "details": {"type": "array", "items": {"type": "object"}},
            },
            "required": ["code", "message", "status"],
        }
    },
    "required": ["error"],
}
#: The errors of RFC 6749, which OAuth 2 clients expect.
OAUTH_ERROR: Schema = {
    "type": "object",
    "properties": {"error": {"type": "string"}, "error_description": {"type": "string"}},
    "required": ["error"],
}
#: The error statuses of REST, and the canonical codes that each of them stands for.
CODES = {
    400: "INVALID_ARGUMENT or FAILED_PRECONDITION",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    409: "ALREADY_EXISTS or ABORTED",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    501: "UNIMPLEMENTED",
    503: "UNAVAILABLE",
}


def kind_schema(kind: protojson.Kind) -> Schema:
    """Return the JSON schema of a kind."""
    if isinstance(kind, protojson.Message):
        properties = {
            name: {**kind_schema(field), **({"readOnly": True} if name in kind.output_only else {})}
            for name, field in kind.fields.items()
        }
        return {"type": "object", "title": kind.name, "properties": properties}
    if isinstance(kind, protojson.Repeated):
        return {"type": "array", "items": kind_schema(kind.kind), "maxItems": kind.max_items}
    if isinstance(kind, protojson.StringMap):
        return {"type": "object", "additionalProperties": {"type": "string"}}
    return _scalar_schema(kind)


def _scalar_schema(kind: protojson.Kind) -> Schema:
    if isinstance(kind, protojson.Enum):
        return {"type": "string", "enum": list(kind.names)}
    if isinstance(kind, protojson.Integer):
        return {"type": "integer", "format": "int32"} if kind.bits <= 32 else {"type": "string", "format": "int64"}
    if isinstance(kind, protojson.Bool):
        return {"type": "boolean"}
    if isinstance(kind, protojson.Struct):
        return {"type": "object"}
    if isinstance(kind, protojson.Duration):
        return {"type": "string", "example": "600s"}
    return {"type": "string", "format": "date-time"} if isinstance(kind, protojson.Timestamp) else {"type": "string"}


def _responses(schema: Schema) -> Any:
    return {200: schema, "default": OpenApiResponse(ERROR, description="Error")}


def list_error_statuses(result: Schema, **_: Any) -> Schema:
    """Replace the response `default` of each operation by each error status that the operation may answer with.

    A postprocessing hook of drf-spectacular.
    """
    shared = result.setdefault("components", {}).setdefault("responses", {})
    for path, verbs in result["paths"].items():
        for verb, operation in verbs.items():
            default = operation["responses"].pop("default")
            for status in _error_statuses(verb, path, is_public="security" not in operation):
                name = f"{default['description']}{status}"
                shared[name] = {**default, "description": CODES[status]}
                operation["responses"][str(status)] = {"$ref": f"#/components/responses/{name}"}
    return result


def _error_statuses(verb: str, path: str, *, is_public: bool) -> list[int]:
    absent = set()
    if is_public:
        absent = {401, 403, 409, 429, 501} if "{" in path else {401, 403, 404, 409, 429, 501}
    elif verb == "get":
        absent = {409, 501}
    return [status for status in CODES if status not in absent]


def message(kind: protojson.Message) -> Any:
    return _responses(kind_schema(kind))


def body(kind: protojson.Message) -> Any:
    return {"application/json": kind_schema(kind)}


def list_of(collection: str, kind: protojson.Kind) -> Any:
    properties = {collection: {"type": "array", "items": kind_schema(kind)}, "nextPageToken": {"type": "string"}}
    return _responses({"type": "object", "properties": properties})


EMPTY = _responses({"type": "object"})
OAUTH_OBJECT = {200: {"type": "object"}, "default": OpenApiResponse(OAUTH_ERROR, description="OAuthError")}


class CallerScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    """Describes CallerAuthentication in the document."""

    target_class = "subscriptions.api.authentication.CallerAuthentication"
    name = "adminSession"

    def get_security_definition(self, auto_schema: AutoSchema) -> Schema:
        return {"type": "apiKey", "in": "cookie", "name": settings.SESSION_COOKIE_NAME}
