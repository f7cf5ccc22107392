"""What the end of a delivery attempt means (docs/spec-delivery.md#push-acknowledgement)."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from functools import cache
from typing import Any

#: The only statuses that acknowledge. 203 and 206 are not among them, and 102 is, although HTTP calls it interim.
ACK_STATUSES = frozenset({102, 200, 201, 202, 204})


class Verdict(StrEnum):
    """How a delivery is settled."""

    #: The endpoint has acknowledged it.
    ACK = "ack"
    #: The attempt failed; there will be another one.
    NACK = "nack"
    #: Nothing was decided; the delivery goes back to the backlog, and this attempt does not count.
    RELEASE = "release"
    #: The delivery is no longer owed: the message or its subscription is gone, or the message has expired.
    DROP = "drop"
    #: The last attempt failed, and the message has gone to the dead-letter topic.
    DEAD_LETTER = "dead_letter"


class Reason(StrEnum):
    """Why an attempt ended without a status from the endpoint: a bounded set, fit for labels and journals."""

    DEADLINE_EXCEEDED = "deadline_exceeded"
    CONNECT_TIMEOUT = "connect_timeout"
    CONNECT_FAILED = "connect_failed"
    DNS_FAILED = "dns_failed"
    TLS_FAILED = "tls_failed"
    RESET = "reset"
    INVALID_RESPONSE = "invalid_response"
    HEADER_TOO_LARGE = "header_too_large"
    BODY_INCOMPLETE = "body_incomplete"
    BODY_TIMEOUT = "body_timeout"
    BODY_TOO_LARGE = "body_too_large"
    ABORTED = "aborted"
    ADDRESS_DENIED = "address_denied"
    TOKEN_DENIED = "token_denied"  # noqa: S105 - a reason, no secret
    INVALID_ENDPOINT = "invalid_endpoint"
    TRANSFORM_FAILED = "transform_failed"
    INTERNAL = "internal"


#: The result of a delivery whose message a transform filters. It counts as acknowledged.
FILTER = "filter"


class ResponseClass(StrEnum):
    """Values of the metric label `response_class`."""

    ACK = "ack"
    DEADLINE_EXCEEDED = "deadline_exceeded"
    INTERNAL = "internal"
    INVALID = "invalid"
    REMOTE_SERVER_4XX = "remote_server_4xx"
    REMOTE_SERVER_5XX = "remote_server_5xx"
    UNREACHABLE = "unreachable"


#: All other reasons are internal: the worker is shutting down, or no request was sent, as the fault is in the
#: configuration and not in the endpoint.
_CLASS_OF_REASON: dict[str, ResponseClass] = {
    Reason.DEADLINE_EXCEEDED: ResponseClass.DEADLINE_EXCEEDED,
    Reason.CONNECT_TIMEOUT: ResponseClass.UNREACHABLE,
    Reason.CONNECT_FAILED: ResponseClass.UNREACHABLE,
    Reason.DNS_FAILED: ResponseClass.UNREACHABLE,
    Reason.TLS_FAILED: ResponseClass.UNREACHABLE,
    Reason.RESET: ResponseClass.UNREACHABLE,
    Reason.ADDRESS_DENIED: ResponseClass.UNREACHABLE,
    Reason.INVALID_RESPONSE: ResponseClass.INVALID,
    Reason.HEADER_TOO_LARGE: ResponseClass.INVALID,
    Reason.BODY_INCOMPLETE: ResponseClass.INVALID,
    Reason.BODY_TIMEOUT: ResponseClass.INVALID,
    Reason.BODY_TOO_LARGE: ResponseClass.INVALID,
}


def verdict(status: int | None, reason: str | None = None) -> Verdict:
    """Return how an attempt with this result settles its delivery.

    A reason means that the attempt failed, whatever status came before it. An aborted attempt counts for nothing: the
    worker is shutting down, and another worker repeats the attempt.
    """
    if reason:
        return Verdict.RELEASE if reason == Reason.ABORTED else Verdict.NACK
    return Verdict.ACK if status in ACK_STATUSES else Verdict.NACK


@cache
def response_class(status: int | None, reason: str | None = None) -> ResponseClass:
    """Return the metric's class of an attempt; an unknown reason counts as a fault of PushHub."""
    if reason:
        return _CLASS_OF_REASON.get(reason, ResponseClass.INTERNAL)
    if status is None:
        return ResponseClass.INTERNAL
    if status in ACK_STATUSES:
        return ResponseClass.ACK
    if 400 <= status <= 499:
        return ResponseClass.REMOTE_SERVER_4XX
    if 500 <= status <= 599:
        return ResponseClass.REMOTE_SERVER_5XX
    return ResponseClass.INVALID


class Nack(Exception):
    """A push that was nacked. It carries the fields of its event from the process of the push to the main process."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        super().__init__(fields)
        self.fields = fields

    def __repr__(self) -> str:
        return str(self.fields["exception"])
