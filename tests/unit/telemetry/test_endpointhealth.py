"""One line per change of an endpoint's health, however many attempts there were."""

from __future__ import annotations

import pytest

from deliveries.telemetry.sinks.endpointhealth import Change, EndpointHealth, Result, duration_text

NOON = 1_763_726_400.0 + 3  # 2025-11-21T12:00:03Z


def results(text: str, *, start: float = NOON) -> list[Result]:
    """Return results a second apart: `.` is an ack, `x` a nack with 503, `c` a nack with connect_failed."""
    words = {".": "204", "x": "503", "c": "connect_failed"}
    return [Result(letter == ".", words[letter], start + number) for number, letter in enumerate(text)]


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


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "400 ms"), (6, "6 s"), (120, "2 min"), (5400, "1.5 h")])
def test_durations(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text
