"""The body and headers of a push, against the documented example and the shapes an attacker would try."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deliveries.rules.envelope import metadata_headers, push_body, trace_headers, unwrapped_body

SUBSCRIPTION = "projects/myproject/subscriptions/mysubscription"
MESSAGE: dict[str, Any] = {
    "attributes": {"key": "value"},
    "data": "SGVsbG8gQ2xvdWQgUHViL1N1YiEgSGVyZSBpcyBteSBtZXNzYWdlIQ==",
    "messageId": "2070443601311540",
    "publishTime": "2021-02-26T19:13:55.749Z",
}
#: The example of Google's page "Push subscriptions" (docs/spec-delivery.md#push-request).
EXAMPLE = """
{
    "message": {
        "attributes": {
            "key": "value"
        },
        "data": "SGVsbG8gQ2xvdWQgUHViL1N1YiEgSGVyZSBpcyBteSBtZXNzYWdlIQ==",
        "messageId": "2070443601311540",
        "message_id": "2070443601311540",
        "publishTime": "2021-02-26T19:13:55.749Z",
        "publish_time": "2021-02-26T19:13:55.749Z"
    },
   "subscription": "projects/myproject/subscriptions/mysubscription"
}
"""

OURS = [
    "Host",
    "content-length",
    "AUTHORIZATION",
    "Connection",
    "Transfer-Encoding",
    "TE",
    "Upgrade",
    "Keep-Alive",
    "Proxy-Authorization",
    "Trailer",
    "Expect",
    "User-Agent",
    "X-Goog-Pubsub-Message-Id",
    "x-goog-pubsub-anything",
    "x_goog_pubsub_message_id",
    "X-Goog_PubSub-Anything",
    "Content_Length",
]


def attributes_sent(attributes: dict[str, str], **fields: str) -> list[tuple[str, str]]:
    """Return the metadata headers besides the three that are always there."""
    headers = metadata_headers({**MESSAGE, "attributes": attributes, **fields}, subscription=SUBSCRIPTION)
    return headers[3:]


def test_the_body_is_the_documented_example_key_by_key_and_in_order() -> None:
    compact = json.dumps(json.loads(EXAMPLE), separators=(",", ":"))

    assert push_body(MESSAGE, subscription=SUBSCRIPTION) == compact.encode()


def test_with_ordering_key_and_delivery_attempt_the_keys_are_still_alphabetical() -> None:
    body = push_body({**MESSAGE, "orderingKey": "k"}, subscription=SUBSCRIPTION, delivery_attempt=5)

    parsed = json.loads(body)
    assert list(parsed) == sorted(parsed) == ["deliveryAttempt", "message", "subscription"]
    assert parsed["deliveryAttempt"] == 5
    assert list(parsed["message"]) == sorted(parsed["message"])
    assert parsed["message"]["orderingKey"] == "k"
    assert "ordering_key" not in parsed["message"]


@pytest.mark.parametrize("empty", [{}, {"attributes": {}, "data": "", "orderingKey": ""}])
def test_empty_fields_are_left_out(empty: dict[str, Any]) -> None:
    message = {"messageId": "1", "publishTime": "t", **empty}

    parsed = json.loads(push_body(message, subscription="s"))

    assert parsed == {
        "message": {"messageId": "1", "message_id": "1", "publishTime": "t", "publish_time": "t"},
        "subscription": "s",
    }


def test_the_message_that_travels_is_left_as_it_was() -> None:
    message = {"messageId": "1", "publishTime": "t", "orderingKey": "k"}
    push_body(message, subscription=SUBSCRIPTION, delivery_attempt=1)

    assert message == {"messageId": "1", "publishTime": "t", "orderingKey": "k"}


@given(data=st.binary(max_size=200))
def test_the_unwrapped_body_is_the_data(data: bytes) -> None:
    assert unwrapped_body({**MESSAGE, "data": base64.b64encode(data).decode()}) == data


def test_a_message_without_data_has_an_empty_body() -> None:
    assert unwrapped_body({"messageId": "1", "publishTime": "t"}) == b""


def test_the_metadata_headers_are_the_documented_ones() -> None:
    message = {**MESSAGE, "orderingKey": "k", "attributes": {"Content-Type": "text/plain", "key": "value"}}

    assert metadata_headers(message, subscription=SUBSCRIPTION) == [
        ("x-goog-pubsub-subscription-name", SUBSCRIPTION),
        ("x-goog-pubsub-message-id", "2070443601311540"),
        ("x-goog-pubsub-publish-time", "2021-02-26T19:13:55.749Z"),
        ("x-goog-pubsub-ordering-key", "k"),
        ("Content-Type", "text/plain"),
        ("key", "value"),
    ]


@pytest.mark.parametrize("name", OURS)
def test_an_attribute_cannot_override_a_header_of_pushhub(name: str) -> None:
    assert attributes_sent({name: "evil"}) == []


@pytest.mark.parametrize(
    "name", ["", "a b", "a:b", "a\r\nHost", "a\n", "é", "a\0", "a/b", "(a)", "a\u212a", " a", "a\t"]
)
def test_an_illegal_name_is_left_out(name: str) -> None:
    assert attributes_sent({name: "v", "good": "v"}) == [("good", "v")]


@pytest.mark.parametrize(
    "value", ["a\r\nHost: evil", "a\nb", "a\n", "a\0b", "\x7f", " a", "a ", "\ta", "café", "\u2028"]
)
def test_an_illegal_value_is_left_out(value: str) -> None:
    assert attributes_sent({"bad": value, "good": "v"}) == [("good", "v")]
    assert ("x-goog-pubsub-ordering-key", value) not in attributes_sent({}, orderingKey=value)


@pytest.mark.parametrize("value", ["", "a", "a b\tc", "text/plain; charset=utf-8", "~!@#$%^&*()"])
def test_a_legal_value_is_sent_as_it_is(value: str) -> None:
    assert attributes_sent({"key": value}) == [("key", value)]


def test_of_names_that_differ_in_case_only_the_first_is_sent() -> None:
    assert attributes_sent({"Content-Type": "a", "content-type": "b"}) == [("Content-Type", "a")]


@given(attributes=st.dictionaries(st.text(max_size=8), st.text(max_size=12)), ordering_key=st.text(max_size=12))
def test_no_attribute_can_break_out_of_its_line(attributes: dict[str, str], ordering_key: str) -> None:
    for name, value in attributes_sent(attributes, orderingKey=ordering_key):
        line = f"{name}: {value}"
        assert line.isascii()
        assert line.isprintable() or "\t" in line
        assert ":" not in name
        assert name


TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_a_publishers_trace_goes_on_in_a_header_of_its_own() -> None:
    message = MESSAGE | {"attributes": {"googclient_traceparent": TRACE, "TraceParent": "theirs"}}
    assert trace_headers(message) == [("traceparent", TRACE)]
    sent = metadata_headers(message, subscription=SUBSCRIPTION)
    assert [value for name, value in sent if name.lower() == "traceparent"] == []


@pytest.mark.parametrize(
    "trace",
    [
        "",
        TRACE[:-1],
        TRACE.upper(),
        TRACE + "\r\nHost: evil",
        TRACE + "\n",
        "ff" + TRACE[2:],
        "00-" + "0" * 32 + TRACE[35:],
        TRACE[:36] + "0" * 16 + "-01",
    ],
)
def test_a_trace_that_is_not_valid_is_not_continued(trace: str) -> None:
    assert trace_headers(MESSAGE | {"attributes": {"googclient_traceparent": trace}}) == []
