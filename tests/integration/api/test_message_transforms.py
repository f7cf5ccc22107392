"""Message transforms over REST: which ones are accepted, and the methods that validate and test them."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from subscriptions.models import Topic
from tests.restapi import Answer, Api

pytestmark = [pytest.mark.django_db, pytest.mark.any_database, pytest.mark.usefixtures("redis_url")]

ECHO = "function echo(message) { return message; }"
MARK = 'function mark(message) { return {data: message.data + "!", attributes: {marked: "yes"}}; }'


def udf(name: str, code: str, **fields: Any) -> dict[str, Any]:
    return {"javascriptUdf": {"functionName": name, "code": code}, **fields}


BAD_TRANSFORMS = [
    ({}, ".javascriptUdf", "must have a javascriptUdf"),
    ({"enabled": True}, ".javascriptUdf", "must have a javascriptUdf"),
    (udf("", ECHO), ".javascriptUdf.functionName", "Invalid function name"),
    (udf("a.b", ECHO), ".javascriptUdf.functionName", "Invalid function name"),
    (udf("f(); g", ECHO), ".javascriptUdf.functionName", "Invalid function name"),
    (udf("echo", ""), ".javascriptUdf.code", "must not be empty"),
    (udf("other", ECHO), ".javascriptUdf.code", "no function other"),
    (udf("echo", "function echo(message) {"), ".javascriptUdf.code", "SyntaxError"),
    (udf("echo", "while (true);"), ".javascriptUdf.code", "longer than 500 ms"),
    (udf("echo", ECHO + " " * 20_480), ".javascriptUdf.code", "too large"),
]


def refused(answer: Answer) -> tuple[str, list[str], str]:
    return answer.error["status"], answer.fields, answer.error["message"]


@pytest.mark.parametrize(("transform", "field", "words"), BAD_TRANSFORMS)
def test_a_bad_transform_is_refused_by_name(api: Api, transform: dict[str, Any], field: str, words: str) -> None:
    api.create("topics/kept", {"messageTransforms": [udf("echo", ECHO)]})

    created = api.put("topics/orders", {"messageTransforms": [udf("mark", MARK), transform]})
    patch = {"topic": {"messageTransforms": [transform]}, "updateMask": "messageTransforms"}
    patched = api.patch("topics/kept", patch)
    validated = api.post("/v1/projects/shop:validateMessageTransform", {"messageTransform": transform})

    for answer, path in (
        (created, "messageTransforms[1]"),
        (patched, "topic.messageTransforms[0]"),
        (validated, "messageTransform"),
    ):
        status, fields, message = refused(answer)
        assert (answer.status, status) == (400, "INVALID_ARGUMENT")
        assert fields[0].removeprefix("topic.") == path.removeprefix("topic.") + field
        assert words in message
    assert [row.topic_id for row in Topic.objects.all()] == ["kept"]
    assert api.get("topics/kept").body["messageTransforms"] == [udf("echo", ECHO)]


def test_names_of_functions_are_unique_in_a_resource(api: Api) -> None:
    answer = api.put("topics/orders", {"messageTransforms": [udf("echo", ECHO), udf("echo", ECHO, disabled=True)]})

    assert (answer.status, answer.fields) == (400, ["messageTransforms[1].javascriptUdf.functionName"])


@pytest.mark.parametrize(
    "transform",
    [
        {"aiInference": {"endpoint": "projects/p/locations/l/endpoints/e", "unstructuredInference": {}}},
        {"compression": {"compressionAlgorithm": "ZLIB", "compressionMode": "COMPRESS"}},
    ],
)
def test_other_transforms_than_functions_are_refused_by_name(api: Api, transform: dict[str, Any]) -> None:
    [kind] = transform
    created = api.put("topics/orders", {"messageTransforms": [transform]})
    validated = api.post("/v1/projects/shop:validateMessageTransform", {"messageTransform": transform})

    for answer in (created, validated):
        assert (answer.status, answer.error["status"]) == (501, "UNIMPLEMENTED")
        assert kind in answer.error["message"]


def test_the_transforms_of_a_topic_are_replaced_and_cleared(api: Api) -> None:
    api.create("topics/orders", {"messageTransforms": [udf("echo", ECHO)], "labels": {"team": "shop"}})
    replacement = [udf("mark", MARK, disabled=True)]

    patch = {"topic": {"messageTransforms": replacement}, "updateMask": "message_transforms"}
    assert api.patch("topics/orders", patch).body["messageTransforms"] == replacement
    assert "messageTransforms" not in api.patch("topics/orders", {"topic": {}, "updateMask": "messageTransforms"}).body
    assert api.get("topics/orders").body["labels"] == {"team": "shop"}


def test_validating_a_valid_transform_succeeds(api: Api) -> None:
    answer = api.post("/v1/projects/shop:validateMessageTransform", {"messageTransform": udf("echo", ECHO)})

    assert (answer.status, answer.body) == (200, {})


def tried(api: Api, **fields: Any) -> list[dict[str, Any]]:
    data = base64.b64encode(b"hello").decode()
    message = {"data": data, "attributes": {"a": "b"}, "orderingKey": "k"}
    answer = api.post("/v1/projects/shop:testMessageTransforms", {"message": message, **fields})
    assert answer.status == 200, answer
    listed: list[dict[str, Any]] = answer.body.get("transformedMessages", [])
    return listed


def transformed(text: str, attributes: dict[str, str]) -> dict[str, Any]:
    data = base64.b64encode(text.encode()).decode()
    return {"transformedMessage": {"data": data, "attributes": attributes, "orderingKey": "k"}}


def test_a_test_shows_the_message_after_each_transform(api: Api) -> None:
    transforms = [udf("echo", ECHO), udf("off", "const off = () => null;", disabled=True), udf("mark", MARK)]

    assert tried(api, messageTransforms={"messageTransforms": transforms}) == [
        transformed("hello", {"a": "b"}),
        transformed("hello!", {"marked": "yes"}),
    ]


def test_a_test_ends_with_the_transform_that_filters_or_fails(api: Api) -> None:
    fails = udf("fails", 'function fails() { throw new TypeError("no"); }')
    filters = udf("filters", "function filters() { return null; }")

    assert tried(api, messageTransforms={"messageTransforms": [fails, udf("mark", MARK)]}) == [
        {"messageTransformFailure": {"description": "TypeError: no (line 1)"}}
    ]
    assert tried(api, messageTransforms={"messageTransforms": [filters, udf("mark", MARK)]}) == [
        {"messageFiltered": {}}
    ]


def test_a_test_takes_the_transforms_of_a_topic_or_a_subscription(api: Api) -> None:
    api.create("topics/orders", {"messageTransforms": [udf("mark", MARK)]})
    api.create(
        "subscriptions/audit", {"topic": "projects/shop/topics/orders", "messageTransforms": [udf("echo", ECHO)]}
    )

    assert tried(api, topic="projects/shop/topics/orders") == [transformed("hello!", {"marked": "yes"})]
    assert tried(api, subscription="projects/shop/subscriptions/audit") == [transformed("hello", {"a": "b"})]


@pytest.mark.parametrize(
    "body", [{}, {"topic": "projects/shop/topics/orders", "subscription": "projects/shop/subscriptions/audit"}]
)
def test_a_test_needs_transforms_from_one_place(api: Api, body: dict[str, Any]) -> None:
    answer = api.post("/v1/projects/shop:testMessageTransforms", {"message": {"data": ""}, **body})

    assert (answer.status, answer.fields) == (400, ["messageTransforms"])
