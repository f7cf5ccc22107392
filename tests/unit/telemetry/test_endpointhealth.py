"""One line per change of an endpoint's health, however many attempts there were."""

from __future__ import annotations

import pytest

from deliveries.rules.outcome import Reason, Verdict
from deliveries.telemetry.events import Attempt
from deliveries.telemetry.sinks.endpointhealth import MOST_ENDPOINTS, Change, EndpointHealth, EndpointLog
from tests.attempts import SOURCE, attempt, attempts

NOON = 1_763_726_400.0 + 3  # 2025-11-21T12:00:03Z


def results(text: str, *, start: float = NOON) -> list[Attempt]:
    """Return attempts a second apart: `.` is an ack, `x` a nack with 503, `c` a nack with connect_failed."""
    kinds = {".": (Verdict.ACK, ""), "x": (Verdict.NACK, ""), "c": (Verdict.NACK, Reason.CONNECT_FAILED)}
    return [
        attempt(number, kinds[letter][0], reason=kinds[letter][1], ended=start + number)
        for number, letter in enumerate(text)
    ]


def changes(text: str) -> list[tuple[int, str]]:
    """Return the number of the result that each change came with, and the reason."""
    health = EndpointHealth()
    seen = [(number, health.observe([result])) for number, result in enumerate(results(text))]
    return [(number, change.reason) for number, change in seen if change is not None]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("." * 50, []),
        ("xx.xx.xx.....", []),
        ("..xxx", [(4, "503")]),
        ("xxx" + "x" * 30, [(2, "503")]),
        ("x." * 10, [(18, "503")]),
        ("xxx..........", [(2, "503"), (12, "")]),
        ("xxx.x.x.x", [(2, "503")]),
        ("xxxccc", [(2, "503"), (5, "connect_failed")]),
        ("xxxcxcxcx", [(2, "503")]),
    ],
)
def test_changes(text: str, expected: list[tuple[int, str]]) -> None:
    assert changes(text) == expected


def test_a_line_counts_the_whole_batch_and_says_since_when() -> None:
    change = EndpointHealth().observe(results("x" * 17))
    assert change is not None
    line = change.describe("shop/hello", backoff_ms=6000)
    assert line == "shop/hello: 503 since 12:00:03, 17 pushes failed, backing off 6 s"


def test_an_ack_that_nothing_follows_is_a_recovery_after_a_while() -> None:
    health = EndpointHealth()
    health.observe(results("xxx"))
    health.observe(results(".", start=NOON + 120))
    assert health.settle(NOON + 121) is None
    change = health.settle(NOON + 126)
    assert change is not None
    assert change.describe("shop/hello", backoff_ms=0) == "shop/hello: healthy again after 2 min"
    assert health.settle(NOON + 300) is None
    assert health.is_forgettable


def test_nacks_from_long_ago_are_not_counted() -> None:
    health = EndpointHealth()
    health.observe(results("x..."))
    assert health.observe(results("xxx", start=NOON + 900)) == Change("503", NOON + 900, 3, 0.0)


def test_only_endpoints_that_fail_have_lines_and_faults_of_pushhub_count_for_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    sink = EndpointLog(clock=lambda: NOON + 60)
    internal = [attempt(number, Verdict.NACK, reason=Reason.INTERNAL, ended=NOON) for number in range(9)]
    released = [attempt(number, Verdict.RELEASE, ended=NOON) for number in range(9)]
    sink.take([attempts(*internal, *released)])
    sink.take([attempts(*results("xxx."), source=SOURCE._replace(backoff_ms=6000))])
    sink.report_recovered()
    assert [record.getMessage() for record in caplog.records] == [
        "shop/hello: 503 since 12:00:03, 3 pushes failed, backing off 6 s",
        "shop/hello: healthy again after 3 s",
    ]


def test_the_endpoints_that_are_remembered_are_bounded() -> None:
    sink = EndpointLog()
    for number in range(MOST_ENDPOINTS + 5):
        sink.take([attempts(attempt(1, Verdict.NACK), source=SOURCE._replace(subscription_id=number))])
    assert len(sink._endpoints) == MOST_ENDPOINTS
    assert 0 not in sink._endpoints
