"""A failing answer is kept as people read it: without secrets, and no longer than a screen."""

from __future__ import annotations

import pytest

from deliveries.client.answer import readable_answer


def test_status_line_headers_and_the_beginning_of_the_body_are_shown() -> None:
    raw = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 3\r\nContent-Length: 5000\r\n\r\n" + b"x" * 3000
    assert readable_answer(raw) == (
        "HTTP/1.1 503 Service Unavailable\nRetry-After: 3\nContent-Length: 5000\n\n" + "x" * 1024
    )


def test_chunks_are_joined_and_interim_answers_left_out() -> None:
    interim = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"
    raw = interim + b"HTTP/1.1 500 No\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
    assert readable_answer(raw) == "HTTP/1.1 500 No\nTransfer-Encoding: chunked\n\nabcde"


@pytest.mark.parametrize(
    "header",
    [
        "Set-Cookie: sid=SECRET; Path=/",
        "set-cookie2: SECRET",
        "Authorization: Bearer SECRET",
        "WWW-Authenticate: Basic realm=SECRET",
        "X-Api-Key: SECRET",
        "X-Csrf-Token: SECRET",
        "Client-Secret: SECRET",
        "Location: https://example.com/?access_token=SECRET&a=b",
    ],
)
def test_secrets_in_headers_are_replaced(header: str) -> None:
    shown = readable_answer(f"HTTP/1.1 401 No\r\n{header}\r\n\r\n".encode())
    assert "SECRET" not in shown and "[redacted]" in shown and header.partition(":")[0] in shown


@pytest.mark.parametrize(
    "body",
    [
        '{"error": "denied", "api_key": "SECRET", "n": 1}',
        '{"error": "denied", "refreshToken" : "SEC\\"RET SECRET',
        "denied, Authorization: Bearer SECRET",
        "denied password=SECRET&x=1",
        "denied for Bearer SECRETSECRET",
        "denied eyJhbGciOiJSUzI1NiJ9.SECRET.SECRET",
        "<p>denied</p> <cookie: 'SECRET'>",
    ],
)
def test_secrets_in_bodies_are_replaced(body: str) -> None:
    shown = readable_answer(b"HTTP/1.1 401 No\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body.encode()))
    assert "SECRET" not in shown and "[redacted]" in shown and "denied" in shown


def test_what_is_not_http_is_shown_as_text_without_control_characters() -> None:
    assert readable_answer(b"SSH-2.0-OpenSSH\x1b[2J\xff\r\n") == "SSH-2.0-OpenSSH\ufffd[2J\ufffd\n"
