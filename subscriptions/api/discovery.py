"""The description of the API from which google-api-python-client and others make their methods.

It is made from the OpenAPI document, so it has the routes and the fields that PushHub has, and from the table of
permissions, which knows the name of the field that names a method's resource.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from django.urls import resolve
from drf_spectacular.generators import SchemaGenerator
from rest_framework.request import Request
from rest_framework.response import Response

from pushhub.common.errors import NotFound
from subscriptions.api.base import PublicView
from subscriptions.iam.methods import METHODS
from subscriptions.identity.scopes import OPENING

Fields = dict[str, Any]

#: The paths of Pub/Sub. Those of other services of Google have documents of their own there.
PATHS = re.compile(r"/v1/projects/\{project\}/(topics|subscriptions|snapshots|schemas)\b")
PLACEHOLDER = re.compile(r"\{(\w+)\}")
#: What describes a value in OpenAPI and here.
SHARED = ("type", "format", "enum", "description", "readOnly", "deprecated")
#: The query parameters of all methods.
PARAMETERS = {
    name: {"location": "query", "type": "boolean" if name == "prettyPrint" else "string"}
    for name in ("access_token", "alt", "fields", "oauth_token", "prettyPrint")
}


class Discovery(PublicView):
    """`GET /$discovery/rest?version=v1`. It is public, as Google's is, and says nothing of what is stored."""

    schema = None

    def get(self, request: Request) -> Response:
        version = request.query_params.get("version", "v1")
        if version != "v1":
            raise NotFound(f"Discovery document not found for API service: pubsub version: {version[:100]}")
        root = request.build_absolute_uri("/")
        return Response({**_description(), "rootUrl": root, "baseUrl": root})


@cache
def _description() -> Fields:
    """Return the document without the address of this PushHub."""
    document = SchemaGenerator().get_schema(public=True)  # type: ignore[no-untyped-call]
    schemas: Fields = {}
    projects: Fields = {}
    for path, verbs in document["paths"].items():
        for verb, operation in verbs.items() if PATHS.match(path) else ():
            *collections, name = operation["operationId"].split("_")
            resource = projects
            for collection in collections:
                resource = resource.setdefault("resources", {}).setdefault(collection, {})
            method = _method(path, verb.upper(), operation, schemas)
            identifier = ".".join(["pubsub", "projects", *collections, name])
            resource.setdefault("methods", {})[name] = {"id": identifier, **method}
    return {
        "kind": "discovery#restDescription",
        "discoveryVersion": "v1",
        "id": "pubsub:v1",
        "name": "pubsub",
        "version": "v1",
        "title": document["info"]["title"],
        "description": document["info"]["description"],
        "protocol": "rest",
        "servicePath": "",
        "parameters": PARAMETERS,
        "auth": {"oauth2": {"scopes": {scope: {"description": ""} for scope in sorted(OPENING)}}},
        "schemas": schemas,
        "resources": {"projects": projects},
    }


def _method(path: str, verb: str, operation: Fields, schemas: Fields) -> Fields:
    """Return the description of a method. Its schemas are added to `schemas`."""
    rpc = resolve(PLACEHOLDER.sub("x", path)).func.cls.methods[verb]  # type: ignore[attr-defined]
    source = next((row.source for row in METHODS[rpc] if not row.in_body), "resource").rpartition(".")[2]
    named, rest = re.fullmatch(r"/v1/(.*\})(.*)", path).groups()  # type: ignore[union-attr]
    pattern = f"^{PLACEHOLDER.sub('[^/]+', named)}$"
    parameters = {source: {"location": "path", "required": True, "type": "string", "pattern": pattern}}
    for parameter in operation.get("parameters", []):
        if parameter["in"] == "query":
            schema = {**parameter["schema"], **parameter}
            parameters[parameter["name"]] = {"location": "query", **_value(schema, schemas)}
    method: Fields = {
        "httpMethod": verb,
        "path": f"v1/{{+{source}}}{rest}",
        "flatPath": PLACEHOLDER.sub(r"{\1sId}", path).removeprefix("/"),
        "parameters": parameters,
        "parameterOrder": [source],
        "scopes": sorted(OPENING),
        "response": _reference(_content(operation["responses"]["200"]), f"{rpc.rpartition('.')[2]}Response", schemas),
    }
    if "requestBody" in operation:
        method["request"] = _reference(_content(operation["requestBody"]), "", schemas)
    return method


def _content(part: Mapping[str, Any]) -> Fields:
    """Return the JSON schema of a request or a response."""
    schema: Fields = part["content"]["application/json"]["schema"]
    return schema


def _reference(schema: Fields, name: str, schemas: Fields) -> Fields:
    """Add an object's schema under its title, or else under `name`. Return the reference to it."""
    name = schema.get("title", name if schema.get("properties") else "Empty")
    if name not in schemas:
        schemas[name] = {"id": name, "type": "object"}
        schemas[name]["properties"] = {
            field: _value(value, schemas) for field, value in schema.get("properties", {}).items()
        }
    return {"$ref": name}


def _value(schema: Fields, schemas: Fields) -> Fields:
    """Return the description of a field or a parameter."""
    if "properties" in schema:
        return _reference(schema, "", schemas)
    value = {name: schema[name] for name in SHARED if name in schema}
    for inner in ("items", "additionalProperties"):
        if inner in schema:
            value[inner] = _value(schema[inner], schemas)
    return value
