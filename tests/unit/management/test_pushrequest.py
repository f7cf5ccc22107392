"""What `pushhub receive` reads from a push and prints."""

from __future__ import annotations

import pytest

from deliveries.management.pushrequest import NotAPushError, Pushed, read_pushed, text_for_people

WRAPPED = b"""{"message": {"attributes": {"key": "value"}, "data": "SGVsbG8=", "messageId": "7", "message_id": "7",
 "publishTime": "2021-02-26T19:13:55.749Z", "orderingKey": "k"}, "deliveryAttempt": 5,
 "subscription": "projects/p/subscriptions/s"}"""


def test_a_wrapped_push_is_read() -> None:
    assert read_pushed(headers={}, body=WRAPPED) == Pushed(
        message_id="7",
        subscription="projects/p/subscriptions/s",
        data=b"Hello",
        attributes={"key": "value"},
        ordering_key="k",
        delivery_attempt=5,
    )


def test_an_unwrapped_push_is_read_from_its_headers() -> None:
    headers = {"x-goog-pubsub-message-id": "7", "x-goog-pubsub-subscription-name": "projects/p/subscriptions/s"}
    assert read_pushed(headers=headers, body=b"\x00\x01") == Pushed("7", "projects/p/subscriptions/s", b"\x00\x01")


@pytest.mark.parametrize(
    "body",
    [b"", b"not json", b"[]", b"{}", b'{"message": 1}', b'{"message": {"messageId": "1"}}', b"\xff",
     b'{"message": {"messageId": "1", "data": "*"}, "subscription": "s"}'],
)  # fmt: skip
def test_requests_other_than_pushes_are_refused(body: bytes) -> None:
    with pytest.raises(NotAPushError):
        read_pushed(headers={}, body=body)


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        (b"Hello", "Hello"),
        ("Gr\u00fc\u00dfe \u4f60\u597d".encode(), "Gr\u00fc\u00dfe \u4f60\u597d"),
        (b"\x1b[2Jgone", r"\x1b[2Jgone"),
        (b"two\nlines", r"two\nlines"),
        ("\u202egnp.exe".encode(), r"\u202egnp.exe"),
        (b"\xff\xfe", "2 bytes that are not text: ff fe"),
        (b"x" * 1001, "x" * 1000 + " ... (1001 bytes)"),
        ("\u4f60".encode() * 5000, "\u4f60" * 1000 + " ... (15000 bytes)"),
    ],
)
def test_printed_data_cannot_harm_a_terminal(data: bytes, shown: str) -> None:
    assert text_for_people(data) == shown
