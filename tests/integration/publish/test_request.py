"""How publish requests are read: messages in their usual form, and the same messages in any other form."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from deliveries.publish.request import parse_publish_request
from deliveries.rules.payload import NewMessage
from pushhub.common.errors import PushHubError

HELLO = base64.b64encode(b"hello").decode()


def read(item: dict[str, Any]) -> Any:
    """Return the message, or the error's text."""
    try:
        return parse_publish_request({"messages": [item]})
    except PushHubError as error:
        return type(error), error.message, error.field


@pytest.mark.parametrize(
    "item",
    [
        {"data": HELLO},
        {"attributes": {"a": "1", "b": ""}},
        {"data": HELLO, "attributes": {"a": "\0"}},
        {"data": HELLO, "attributes": {"a": "x" * 256}},
        {"data": HELLO, "attributes": {"a": "x" * 1024}},
        {"data": HELLO, "attributes": {"a": "x" * 1025}},
        {"data": HELLO, "attributes": {"a": "\N{SNOWMAN}" * 342}},
        {"data": HELLO, "attributes": {"k" * 257: "1"}},
        {"data": HELLO, "attributes": {"a\0": "1"}},
        {"data": HELLO, "attributes": {"a": 1}},
        {"data": HELLO, "attributes": {"a": None}},
        {"data": HELLO, "attributes": {str(number): "1" for number in range(101)}},
        {"data": HELLO, "attributes": {"goog-x": "1"}},
        {"data": HELLO, "attributes": None},
        {"data": HELLO, "attributes": ["a"]},
        {"data": None, "attributes": {"a": "1"}},
        {"data": "-_8", "attributes": {}},
        {"data": "aGVsbG8"},
        {"data": "aGVsbG8==="},
        {"data": "\N{SNOWMAN}"},
        {"data": 1},
        {"data": ""},
        {},
    ],
)
def test_the_usual_form_is_read_as_any_other(item: dict[str, Any]) -> None:
    # An output-only field makes the form unusual, and is ignored
    assert read(item) == read({**item, "messageId": "1"})


def test_a_message_in_the_usual_form_is_read() -> None:
    assert read({"data": HELLO, "attributes": {"a": "1"}}) == [NewMessage(b"hello", {"a": "1"})]
