"""The example message of Google's push page (docs/spec-delivery.md#push-request), and the request that publishes it."""

from __future__ import annotations

import base64
import http.client
import json
from typing import Any

from bench.processes import BenchError

HELLO = b"Hello Cloud Pub/Sub! Here is my message!"
ATTRIBUTES = {"key": "value"}
TOPIC = "projects/bench/topics/bench"


def topic_names(count: int) -> list[str]:
    """Return the names of so many topics, of which the first is TOPIC."""
    return [TOPIC, *(f"{TOPIC}-{number}" for number in range(1, count))]


def publish_body(messages: int, *, data: bytes = HELLO, key: str = "") -> bytes:
    message: dict[str, Any] = {"data": base64.b64encode(data).decode(), "attributes": ATTRIBUTES}
    if key:
        message["orderingKey"] = key
    return json.dumps({"messages": [message] * messages}).encode()


class Publisher:
    """A keep-alive connection that publishes the same body again and again."""

    def __init__(self, port: int, messages: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        self._body = publish_body(messages)

    def publish(self) -> bytes:
        self._connection.request("POST", f"/v1/{TOPIC}:publish", self._body)
        answer = self._connection.getresponse()
        text = answer.read()
        if answer.status != 200:
            raise BenchError(f"publish was answered {answer.status}: {text[:200]!r}")
        return text
