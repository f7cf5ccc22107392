"""Answers the usual publish request of a few messages without Django: it recognizes one, and has it stored.

A request that is unusual in any way, or that has an error, is left to Django, where PublishView serves it. So this
module knows no error, and its answer is the one that Django would give.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from io import BytesIO
from typing import Any

import orjson
from django.conf import settings

from deliveries.api.views import REGION_HEADER
from deliveries.publish.request import parse_publish_request, parse_region
from deliveries.publish.writer import PublishWriter, SmallPublish
from pushhub.common.errors import PushHubError
from subscriptions.api.othersites import is_known_host

TARGET = re.compile(rb"/v1/(projects/[A-Za-z0-9.:-]+/topics/[A-Za-z0-9._~-]+):publish")
REGION = REGION_HEADER.lower().encode()
#: The answer to more messages may be long enough to be compressed.
MAX_MESSAGES = 30
#: Django's answer doesn't depend on these header fields, or only in the way of the code below.
KNOWN_HEADERS = frozenset(
    [
        *(b"accept", b"accept-encoding", b"authorization", b"cache-control", b"connection", b"content-length"),
        *(b"content-type", b"forwarded", b"host", b"traceparent", b"tracestate", b"user-agent", b"via", b"x-real-ip"),
        *(b"x-request-id", b"x-client-version", b"x-cloud-trace-context", REGION),
    ]
)
KNOWN_PREFIXES = (b"x-goog-", b"x-forwarded-")

Headers = Iterable[tuple[bytes, bytes]]
#: A WSGI application.
Application = Callable[[dict[str, Any], Callable[..., Any]], Any]


class DirectPublish:
    """Takes publish requests of the web server. `application` is that of all other requests."""

    def __init__(self, writer: PublishWriter, application: Application) -> None:
        self._writer = writer
        self._head = _answer_head(application)

    def __call__(
        self,
        target: bytes,
        headers: Headers,
        body: bytes,
        answer: Callable[[tuple[bytes, bytes] | None], None],
    ) -> bool:
        """Take a POST request; return False for one that is left to Django.

        `answer` is called later, with header fields and body, or with None if the request is left to Django after all.
        """
        match = TARGET.fullmatch(target)
        fields = _fields(headers) if match is not None else None
        if match is None or fields is None:
            return False
        try:
            messages = parse_publish_request(orjson.loads(body))
            region = parse_region(fields.get(REGION, b"").decode("latin-1"))
        except (orjson.JSONDecodeError, PushHubError):
            return False
        if len(messages) > MAX_MESSAGES:
            return False

        def done(ids: list[str] | None) -> None:
            answer(None if ids is None else (self._head, orjson.dumps({"messageIds": ids})))

        authorization = fields[b"authorization"].decode("latin-1") if b"authorization" in fields else None
        self._writer.submit(SmallPublish(authorization, match[1].decode(), messages, region, done))
        return True


def _answer_head(application: Application) -> bytes:
    """Return the header fields of an answer, of which the server adds length and date.

    They are those with which Django refuses a publish request without valid credentials, which needs no database.
    """
    fields: list[tuple[str, str]] = []
    environ = {
        **{"REQUEST_METHOD": "POST", "PATH_INFO": "/v1/projects/p/topics/t:publish", "HTTP_AUTHORIZATION": "-"},
        **{"SERVER_NAME": "localhost", "SERVER_PORT": "80", "wsgi.input": BytesIO()},
    }
    application(environ, lambda _status, headers: fields.extend(headers))
    kept = [f"{name}: {value}\r\n" for name, value in fields if name not in ("Content-Length", "WWW-Authenticate")]
    return "".join(kept).encode("latin-1")


def _fields(headers: Headers) -> dict[bytes, bytes] | None:
    """Return the header fields by name; None if a field is unknown, is there twice or asks for something unusual."""
    fields: dict[bytes, bytes] = {}
    for name, value in headers:
        if (name not in KNOWN_HEADERS and not name.startswith(KNOWN_PREFIXES)) or name in fields:
            return None
        fields[name] = value
    if not fields.get(b"content-type", b"application/json").startswith(b"application/json"):
        return None
    hosts = (*settings.ALLOWED_HOSTS, *settings.NAMED_HOSTS)
    return fields if _is_allowed(fields.get(b"host", b""), hosts) else None


@lru_cache(maxsize=64)
def _is_allowed(host: bytes, _settings: tuple[str, ...]) -> bool:
    """Cache the answer for a host; what the settings say of hosts is part of the key only."""
    return is_known_host(host.decode("latin-1"))
