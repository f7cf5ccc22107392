"""Which responses are acks, and the class that each response counts as."""

from __future__ import annotations

import pytest

from deliveries.rules.outcome import Reason, ResponseClass, Verdict, response_class, verdict


def test_exactly_five_statuses_acknowledge() -> None:
    assert {status for status in range(100, 600) if verdict(status) is Verdict.ACK} == {102, 200, 201, 202, 204}


def test_an_attempt_that_the_worker_aborts_counts_for_nothing() -> None:
    assert {reason for reason in Reason if verdict(0, reason) is not Verdict.NACK} == {Reason.ABORTED}
    assert verdict(0, Reason.ABORTED) is Verdict.RELEASE


def test_no_response_is_a_nack() -> None:
    assert verdict(None, "connect_failed") is Verdict.NACK
    assert verdict(None) is Verdict.NACK


def test_a_reason_makes_a_nack_of_an_ack_status() -> None:
    assert verdict(200, "deadline_exceeded") is Verdict.NACK
    assert response_class(200, "deadline_exceeded") == "deadline_exceeded"


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        *[(status, "ack") for status in (102, 200, 201, 202, 204)],
        *[(status, "invalid") for status in (100, 103, 203, 205, 206, 299, 301, 302, 307, 399, 600, 999)],
        *[(status, "remote_server_4xx") for status in (400, 401, 404, 429, 499)],
        *[(status, "remote_server_5xx") for status in (500, 503, 599)],
    ],
)
def test_a_status_has_its_class(status: int, expected: str) -> None:
    assert response_class(status) == expected


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("deadline_exceeded", "deadline_exceeded"),
        ("connect_timeout", "unreachable"),
        ("connect_failed", "unreachable"),
        ("dns_failed", "unreachable"),
        ("tls_failed", "unreachable"),
        ("reset", "unreachable"),
        ("address_denied", "unreachable"),
        ("invalid_response", "invalid"),
        ("header_too_large", "invalid"),
        ("token_denied", "internal"),
        ("something_new", "internal"),
    ],
)
def test_a_reason_has_its_class(reason: str, expected: str) -> None:
    assert response_class(None, reason) == expected


def test_only_faults_of_pushhub_count_as_internal() -> None:
    internal = {reason for reason in Reason if response_class(None, reason) is ResponseClass.INTERNAL}

    assert internal == {
        Reason.TOKEN_DENIED,
        Reason.ABORTED,
        Reason.INVALID_ENDPOINT,
        Reason.TRANSFORM_FAILED,
        Reason.INTERNAL,
    }
