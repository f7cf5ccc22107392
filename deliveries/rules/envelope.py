"""The body and the headers of a push (docs/spec-delivery.md#push-request, docs/spec-delivery.md#unwrapped-push).

A message is the object that travels in the task: `data` (base64), `attributes`, `messageId`, `orderingKey` and
`publishTime`; fields without content are absent.
"""

from __future__ import annotations

import re
from binascii import a2b_base64
from collections.abc import Mapping
from typing import Any

import orjson

METADATA_PREFIX = "x-goog-pubsub-"
#: Where Google's clients put the trace context of a publish when OpenTelemetry is on.
TRACE_ATTRIBUTE = "googclient_traceparent"
#: W3C Trace Context, version 00: neither the trace id nor the parent id may be all zeros.
_TRACEPARENT = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")

#: Headers that an attribute must never set: they frame the request, belong to one hop, or are set by PushHub.
RESERVED_HEADERS = frozenset(
    {
        "accept",
        "accept-encoding",
        "authorization",
        "connection",
        "content-encoding",
        "content-length",
        "expect",
        "host",
        "http2-settings",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "user-agent",
    }
)

_HEADER_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
#: Visible ASCII, with blanks only inside: servers read anything else in different ways.
_HEADER_VALUE = re.compile(r"[!-~](?:[ \t!-~]*[!-~])?|")


def push_body(message: Mapping[str, Any], *, subscription: str, delivery_attempt: int | None = None) -> bytes:
    """Return the wrapped form: keys in alphabetical order, id and publish time in both spellings, no empty fields.

    `delivery_attempt` is sent only for subscriptions with a dead-letter policy.
    """
    inner: dict[str, Any] = {}
    if attributes := message.get("attributes"):
        inner["attributes"] = attributes
    if data := message.get("data"):
        inner["data"] = data
    inner["messageId"] = inner["message_id"] = message["messageId"]
    if ordering_key := message.get("orderingKey"):
        inner["orderingKey"] = ordering_key
    inner["publishTime"] = inner["publish_time"] = message["publishTime"]
    if delivery_attempt is None:
        return orjson.dumps({"message": inner, "subscription": subscription})
    return orjson.dumps({"deliveryAttempt": delivery_attempt, "message": inner, "subscription": subscription})


def unwrapped_body(message: Mapping[str, Any]) -> bytes:
    """Return the unwrapped form: only the data."""
    return a2b_base64(message.get("data", ""))


def metadata_headers(message: Mapping[str, Any], *, subscription: str) -> list[tuple[str, str]]:
    """Return the headers of an unwrapped push with `writeMetadata`: the message's fields, then each attribute.

    An attribute is left out if it is no legal header or would override one of PushHub's: the publisher chooses the
    attributes, and must not be able to forge or split the request. Of names that differ only in letter case, the first
    wins.
    """
    headers = [
        (METADATA_PREFIX + "subscription-name", subscription),
        (METADATA_PREFIX + "message-id", message["messageId"]),
        (METADATA_PREFIX + "publish-time", message["publishTime"]),
    ]
    ordering_key = message.get("orderingKey")
    if ordering_key and _HEADER_VALUE.fullmatch(ordering_key):
        headers.append((METADATA_PREFIX + "ordering-key", ordering_key))
    seen = {name for name, _ in trace_headers(message)}
    for name, value in (message.get("attributes") or {}).items():
        lowered = name.lower()
        if lowered not in seen and _is_free(name, lowered) and _HEADER_VALUE.fullmatch(value):
            seen.add(lowered)
            headers.append((name, value))
    return headers


def trace_headers(message: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the header that continues the publisher's trace at the endpoint, if the message has a valid one."""
    traceparent = traceparent_of(message.get("attributes") or {})
    return [("traceparent", traceparent)] if traceparent else []


def traceparent_of(attributes: Mapping[str, str]) -> str:
    """Return the trace context of the publisher, or "" if there is none or it is not valid."""
    traceparent = attributes.get(TRACE_ATTRIBUTE, "")
    return traceparent if _TRACEPARENT.fullmatch(traceparent) else ""


def _is_free(name: str, lowered: str) -> bool:
    # Receivers that have headers as variables, such as those of WSGI, don't tell `_` from `-`.
    dashed = lowered.replace("_", "-")
    return (
        dashed not in RESERVED_HEADERS
        and not dashed.startswith(METADATA_PREFIX)
        # Check the name before lowering, which turns the Kelvin sign, for example, into a plain k.
        and _HEADER_NAME.fullmatch(name) is not None
    )
