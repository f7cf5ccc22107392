"""What the end of a delivery attempt means (docs/spec.md#push-acknowledgement)."""

from __future__ import annotations

from enum import StrEnum

#: The only statuses that acknowledge. 203 and 206 are not among them, and 102 is, although HTTP calls it interim.
ACK_STATUSES = frozenset({102, 200, 201, 202, 204})


class Outcome(StrEnum):
    """What an attempt does to its delivery."""

    ACK = "ack"
    NACK = "nack"


class Reason(StrEnum):
    """Why an attempt ended without a status of the endpoint's: a bounded set, fit for labels and journals."""

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
    INTERNAL = "internal"


class ResponseClass(StrEnum):
    """Values of the metric label `response_class`."""

    ACK = "ack"
    DEADLINE_EXCEEDED = "deadline_exceeded"
    INTERNAL = "internal"
    INVALID = "invalid"
    REMOTE_SERVER_4XX = "remote_server_4xx"
    REMOTE_SERVER_5XX = "remote_server_5xx"
    UNREACHABLE = "unreachable"


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
    # We gave up: the worker shuts down.
    Reason.ABORTED: ResponseClass.INTERNAL,
    # No request was made: the fault is in our configuration and not in the endpoint.
    Reason.TOKEN_DENIED: ResponseClass.INTERNAL,
    Reason.INVALID_ENDPOINT: ResponseClass.INTERNAL,
    Reason.INTERNAL: ResponseClass.INTERNAL,
}


def outcome(status: int | None, reason: str | None = None) -> Outcome:
    """Ack or nack. A reason means that the attempt failed, whatever status came before it."""
    return Outcome.ACK if not reason and status in ACK_STATUSES else Outcome.NACK


def response_class(status: int | None, reason: str | None = None) -> ResponseClass:
    """The metric's class of an attempt; a reason we do not know is a fault of ours."""
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
