"""The OpenAPI document describes what the API does: each operation, called at random, answers as documented."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

import pytest
from drf_spectacular.generators import SchemaGenerator
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from tests.restapi import Answer, Api

Json = dict[str, Any]

#: Ids of resources that exist, so that some calls succeed.
IDS = {"project": "shop", "topic": "orders", "subscription": "sub", "account": "pusher@shop.iam.gserviceaccount.com"}
FEW = settings(
    max_examples=4,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
TEXTS = st.sampled_from(["", "600s", "projects/shop/topics/orders", "💥", "a\0b", "2026-01-01T00:00:00Z"])
ANYTHING = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | TEXTS | st.lists(TEXTS, max_size=2)


def operations() -> Iterator[tuple[str, str, Json]]:
    """(verb, path, operation) of everything in the document."""
    document: Json = SchemaGenerator().get_schema(public=True)  # type: ignore[no-untyped-call]
    for path, verbs in document["paths"].items():
        for verb, operation in verbs.items():
            yield verb, path, operation


OPERATIONS = {operation["operationId"]: (verb, path, operation) for verb, path, operation in operations()}


def values(schema: Json) -> st.SearchStrategy[Any]:
    """Values that mostly fit a schema."""
    if "enum" in schema:
        return st.sampled_from(schema["enum"]) | TEXTS
    if schema.get("type") == "object":
        fields = {name: values(field) | ANYTHING for name, field in schema.get("properties", {}).items()}
        return st.fixed_dictionaries({}, optional=fields).map(lambda body: dict(list(body.items())[:4]))
    if schema.get("type") == "array":
        return st.lists(values(schema["items"]), max_size=2)
    if schema.get("type") == "boolean":
        return st.booleans()
    return st.integers(-1, 1000) if schema.get("type") == "integer" else TEXTS


@st.composite
def calls(draw: st.DrawFn, operation: Json) -> tuple[dict[str, str], dict[str, str], Any]:
    """The path parameters, the query and the body of a call."""
    in_path, query = {}, {}
    for parameter in operation.get("parameters", []):
        name = parameter["name"]
        if parameter["in"] == "path":
            in_path[name] = draw(st.sampled_from([IDS.get(name, "x1234567"), "missing-one"]))
        elif draw(st.booleans()):
            query[name] = str(draw(values(parameter["schema"])))
    content = operation.get("requestBody", {}).get("content", {})
    if not content:
        return in_path, query, None
    kind, described = next(iter(content.items()))
    body = draw(values(described["schema"]))
    return in_path, query, body if kind == "application/json" else urlencode(body).encode(errors="replace")


def strict(schema: Any) -> Any:
    """The schema, in which an object has no fields but those that are documented."""
    if isinstance(schema, list):
        return [strict(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    result = {name: strict(item) for name, item in schema.items()}
    return {**result, "additionalProperties": False} if "properties" in schema else result


def documented(operation: Json, answer: Answer) -> Json:
    responses = operation["responses"]
    response = responses.get(str(answer.status)) or responses["default"]
    schema: Json = next(iter(response["content"].values()))["schema"]
    return schema


@pytest.fixture
def shop(api: Api) -> Api:
    api.made("topics/orders")
    api.made("subscriptions/sub", {"topic": "projects/shop/topics/orders"})
    api.post("serviceAccounts", {"accountId": "pusher"})
    return api


@pytest.mark.parametrize("operation_id", sorted(OPERATIONS))
@FEW
@given(data=st.data())
def test_every_answer_is_documented(shop: Api, operation_id: str, data: st.DataObject) -> None:
    verb, path, operation = OPERATIONS[operation_id]
    in_path, query, body = data.draw(calls(operation))
    for name, value in in_path.items():
        path = path.replace(f"{{{name}}}", value)

    answer = shop.call(verb.upper(), path, body, query=query)

    assert answer.status < 500 or answer.status == 501
    Draft202012Validator(strict(documented(operation, answer))).validate(answer.body)
