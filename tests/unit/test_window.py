"""The push window, against "Delivery rate" on Cloud Pub/Sub's push page."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from deliveries.rules import window as rules
from deliveries.rules.window import Window

#: As after a thousand fast acks.
PROVEN = Window(seen=1000.0, ack_ratio=1.0, latency_ms=50.0)


def acks(window: Window, count: int, *, latency_ms: float = 50, outstanding: float | None = None) -> Window:
    for _ in range(count):
        held = window.size if outstanding is None else outstanding
        window = rules.after_result(window, acked=True, latency_ms=latency_ms, outstanding=held)
    return window


def nack(window: Window, *, outstanding: float | None = None, latency_ms: float = 50) -> Window:
    held = window.size if outstanding is None else outstanding
    return rules.after_result(window, acked=False, latency_ms=latency_ms, outstanding=held)


def test_a_window_starts_at_three() -> None:
    assert rules.tokens(Window()) == 3


def test_every_ack_of_a_small_window_adds_one_even_when_messages_come_singly() -> None:
    assert acks(Window(), 50, outstanding=1).size == 53


def test_a_windowful_of_acks_doubles_the_window() -> None:
    assert acks(replace(PROVEN, size=200.0), 200, outstanding=200).size == 400


def test_slow_start_ends_at_three_thousand() -> None:
    window = acks(replace(PROVEN, size=2999.5), 1)

    assert window.size == 3000


def test_beyond_slow_start_the_window_grows_linearly() -> None:
    sizes = [3000.0]
    for _ in range(3):
        sizes.append(acks(replace(PROVEN, size=sizes[-1]), int(sizes[-1])).size)

    # Then each windowful adds the same, whatever the window
    grown = [after - before for before, after in pairwise(sizes)]
    assert grown == pytest.approx([rules.LINEAR_STEP] * 3, rel=0.02)


def test_the_window_never_exceeds_thirty_thousand() -> None:
    assert acks(replace(PROVEN, size=29_999.9999), 100).size == 30_000


@pytest.mark.parametrize(
    ("poor", "why"),
    [
        (replace(PROVEN, size=3000.0, latency_ms=1500.0), "slow"),
        (replace(PROVEN, size=3000.0, ack_ratio=0.98), "nacked too often"),
    ],
)
def test_an_endpoint_stays_at_three_thousand_when_it_is(poor: Window, why: str) -> None:
    assert acks(poor, 5).size == 3000


def test_a_large_window_falls_back_when_the_mean_latency_passes_a_second() -> None:
    window = acks(replace(PROVEN, size=12_000.0, latency_ms=998.5), 1, latency_ms=1000)
    assert window.size > 12_000

    assert acks(window, 3, latency_ms=3000).size == 3000


def test_a_large_window_falls_back_when_no_more_than_99_percent_are_acked() -> None:
    window = nack(replace(PROVEN, size=12_000.0, ack_ratio=0.9915))
    assert window.size > 3000

    assert nack(window).size == 3000


def test_half_a_percent_of_nacks_leaves_room_beyond_slow_start() -> None:
    window = replace(PROVEN, size=2900.0, ack_ratio=0.995)
    for number in range(60_000):
        window = nack(window) if number % 200 == 0 else acks(window, 1)

    assert window.size > 3300


def test_the_window_halves_when_everything_fails() -> None:
    assert nack(replace(PROVEN, size=1000.0, ack_ratio=0.0)).size == 500


def test_any_failure_shrinks_the_window() -> None:
    assert nack(replace(PROVEN, size=1000.0)).size < 1000


def test_the_window_shrinks_at_most_once_a_windowful() -> None:
    shrunk = nack(replace(PROVEN, size=400.0, ack_ratio=0.2), outstanding=400)

    window = shrunk
    for _ in range(399):
        window = nack(window)
    assert window.size == shrunk.size

    assert nack(window).size < shrunk.size


def test_a_windowful_is_what_was_outstanding_and_not_what_could_have_been() -> None:
    window = nack(replace(PROVEN, size=3000.0, ack_ratio=0.2), outstanding=2)

    assert nack(nack(window)).size < window.size


def test_the_window_never_falls_under_one() -> None:
    window = Window()
    for _ in range(20):
        window = nack(window, outstanding=1)

    assert window.size == 1
    assert rules.tokens(window) == 1


def test_a_window_that_is_not_used_does_not_grow() -> None:
    assert acks(replace(PROVEN, size=200.0), 1000, outstanding=99).size == 200
    assert acks(replace(PROVEN, size=200.0), 1, outstanding=100).size == 201


def test_a_pause_restarts_the_window_and_keeps_what_is_known_of_the_endpoint() -> None:
    window = replace(PROVEN, size=700.0, guard=300.0)

    assert rules.restarted(window) == replace(window, size=1.0, guard=0.0)


def test_the_means_are_over_all_results_at_first() -> None:
    window = acks(Window(), 1, latency_ms=100)
    window = acks(window, 1, latency_ms=300)
    window = nack(window, latency_ms=500)

    assert window.latency_ms == pytest.approx(300)
    assert window.ack_ratio == pytest.approx(2 / 3)


def test_a_cap_bounds_the_tokens_and_not_the_window() -> None:
    window = replace(PROVEN, size=700.9)

    assert rules.tokens(window) == 700
    assert rules.tokens(window, cap=50) == 50
    assert rules.tokens(window, cap=1000) == 700
