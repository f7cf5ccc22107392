"""Message transforms of a topic: what is stored, what the publisher is answered, over every publish path."""

from __future__ import annotations

import base64
import threading
from typing import Any

import pytest

from deliveries.models import Message
from subscriptions.transforms import sandboxes
from tests.integration.publish.directapi import direct_api
from tests.ports import wait_for
from tests.restapi import Answer, Api

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.any_database, pytest.mark.usefixtures("redis_url")]

REDACT = """
    function redact(message, metadata) {
        const order = JSON.parse(message.data);
        if (order.test) return null;
        if (order.broken) throw new Error("broken order");
        delete order.card;
        return {data: JSON.stringify(order), attributes: {...message.attributes, key: metadata.ordering_key || ""}};
    }
"""


def udf(code: str, name: str, **fields: Any) -> dict[str, Any]:
    return {"javascriptUdf": {"functionName": name, "code": code}, **fields}


def topic(api: Api, *transforms: dict[str, Any], **fields: Any) -> None:
    api.create("topics/orders", {"messageTransforms": list(transforms), **fields})


def publish(api: Api, *data: str, **fields: Any) -> Answer:
    messages = [{"data": base64.b64encode(text.encode()).decode(), **fields} for text in data]
    return api.post("topics/orders:publish", {"messages": messages})


def stored() -> list[str]:
    return [bytes(row.data).decode() for row in Message.objects.order_by("pk")]


def test_a_message_is_stored_as_the_functions_return_it(api: Api) -> None:
    topic(
        api,
        udf(REDACT, "redact"),
        udf("function off() { return null; }", "off", disabled=True),
        udf("const mark = m => ({data: m.data + '!', attributes: m.attributes});", "mark"),
    )

    answer = publish(api, '{"id":1,"card":"4111"}', orderingKey="k", attributes={"a": "b"})

    assert answer.status == 200, answer
    [row] = Message.objects.all()
    assert (str(row.pk), row.ordering_key) == (answer.body["messageIds"][0], "k")
    assert bytes(row.data) == b'{"id":1}!'
    assert row.attributes == '{"a":"b","key":"k"}'


def test_a_filtered_message_has_an_id_and_is_not_stored(api: Api) -> None:
    topic(api, udf(REDACT, "redact"))

    answer = publish(api, '{"id":1}', '{"test":1}', '{"id":2}')
    only_filtered = publish(api, '{"test":1}')

    message_ids = answer.body["messageIds"]
    assert len(set(message_ids) | set(only_filtered.body["messageIds"])) == 4
    assert [str(row.pk) for row in Message.objects.order_by("pk")] == [message_ids[0], message_ids[2]]
    assert stored() == ['{"id":1}', '{"id":2}']


def test_a_failure_refuses_the_request_and_stores_nothing(api: Api) -> None:
    topic(api, udf(REDACT, "redact"))

    answer = publish(api, '{"id":1}', '{"broken":1}', '{"id":2}')

    assert (answer.status, answer.error["status"]) == (400, "INVALID_ARGUMENT")
    assert answer.fields == ["messages[1]"]
    assert "Error: broken order" in answer.error["message"]
    assert stored() == []


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        ('{data: "", attributes: {}}', "empty"),
        ('{data: "x", attributes: {google: "x"}}', "Invalid attribute key"),
        ('{data: "x", attributes: {a: "x".repeat(1025)}}', "messages[0].attributes"),
        ('{data: "é".repeat(5000001)}', "request_size"),
    ],
)
def test_a_function_may_not_return_what_a_publisher_may_not_send(api: Api, returned: str, words: str) -> None:
    topic(api, udf(f"function f() {{ return {returned}; }}", "f"))

    answer = publish(api, "x")

    assert (answer.status, answer.error["status"]) == (400, "INVALID_ARGUMENT")
    assert words in answer.error["message"]
    assert stored() == []


def test_the_transformed_message_must_match_the_schema(api: Api) -> None:
    definition = '{"type":"record","name":"Order","fields":[{"name":"id","type":"int"}]}'
    assert api.post("schemas?schemaId=order", {"type": "AVRO", "definition": definition}).status == 200
    schema = {"schema": "projects/shop/schemas/order", "encoding": "JSON"}
    topic(api, udf(REDACT, "redact"), schemaSettings=schema)

    assert publish(api, '{"id":1,"card":"4111"}').status == 200
    assert publish(api, '{"number":1}').status == 400
    assert stored() == ['{"id":1}']


def test_functions_that_take_too_long_for_a_request_refuse_it(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deliveries.publish.service.REQUEST_SECONDS", 0.0)
    topic(api, udf("function f(m) { return m; }", "f"))

    answer = publish(api, "1", "2", "3")

    assert (answer.status, answer.error["status"]) == (504, "DEADLINE_EXCEEDED")
    assert stored() == []


def test_a_publish_is_refused_while_the_projects_functions_are_busy(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    topic(api, udf("function f(m) { return m; }", "f"))
    pool, busy = sandboxes.sandboxes()._pool, threading.Event()
    pool.submit("shop", lambda: busy.set() or wait_for(lambda: pool._waiting, what="the publish"))
    assert busy.wait(60)
    monkeypatch.setattr(pool, "_wait_seconds", 0.0)

    answer = publish(api, "1")

    assert (answer.status, answer.error["status"]) == (429, "RESOURCE_EXHAUSTED")


def test_the_direct_path_leaves_a_publish_with_transforms_to_django(redis_url: str) -> None:
    with direct_api() as api:
        topic(api, udf("const f = m => ({data: m.data + '!'});", "f"))

        assert publish(api, "x").status == 200
        assert api.outcomes == ["given back"]
        assert stored() == ["x!"]

        assert api.patch("topics/orders", {"topic": {}, "updateMask": "messageTransforms"}).status == 200
        assert publish(api, "y").status == 200
        assert api.outcomes == ["given back", "direct"]
        assert stored() == ["x!", "y"]
