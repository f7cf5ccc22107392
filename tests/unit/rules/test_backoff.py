"""The push backoff of a lane: when it pauses, for how long, and what ends it."""

from __future__ import annotations

import pytest

from bench.law import Law, rule
from deliveries.rules.flow import FREE_LEVEL, Flow


def nacks(law: Law, count: int, *, dice: float = 0.5) -> list[float]:
    """Nack requests one after the other, each sent when the lane resumes; return how long each pause was (ms)."""
    pauses = []
    for _ in range(count):
        now_ms = max(law.state["resume_ms"], 1000.0)
        law.result(acked=False, latency_ms=0, now_ms=now_ms, dice=dice)
        pauses.append(max(law.state["resume_ms"] - now_ms, 0.0))
    return pauses


def test_single_nacks_do_not_pause_a_lane() -> None:
    law = Law()

    assert nacks(law, int(FREE_LEVEL)) == [0] * int(FREE_LEVEL)
    assert not law.flow.is_backing_off


def test_one_more_nack_pauses_the_lane_for_at_least_100_ms() -> None:
    law = Law()

    assert nacks(law, int(FREE_LEVEL) + 1, dice=0)[-1] == 100
    assert law.flow.is_backing_off


def test_a_pause_doubles_with_every_nack() -> None:
    pauses = nacks(Law(), int(FREE_LEVEL) + 8)[int(FREE_LEVEL) :]

    assert pauses == [150 * 2**step for step in range(8)]


@pytest.mark.parametrize(("dice", "seconds"), [(0.0, 30), (0.5, 45), (0.999999999, 60)])
def test_if_all_results_are_nacks_a_pause_takes_30_to_60_seconds(dice: float, seconds: float) -> None:
    assert nacks(Law(), 21, dice=dice)[-1] / 1000 == pytest.approx(seconds)


@pytest.mark.parametrize("level", [0.0, 0.5, FREE_LEVEL, rule("TOP_LEVEL"), 1000.0])
@pytest.mark.parametrize("dice", [0.0, 0.5, 0.999999])
def test_no_pause_is_out_of_bounds(level: float, dice: float) -> None:
    pause_ms = nacks(Law(Flow(backoff_level=level)), 1, dice=dice)[0]

    assert pause_ms == 0 if level + 1 <= FREE_LEVEL else 100 <= pause_ms <= 60_000


def test_thousands_of_nacks_in_flight_when_an_endpoint_dies_count_as_one() -> None:
    law = Law()
    nacks(law, int(FREE_LEVEL) + 1)
    level, resume_ms = law.state["backoff_level"], law.state["resume_ms"]

    for late_ms in range(3000):
        # Sent 5 ms before the pause began; the slowest responses arrive long after its end.
        law.result(acked=False, now_ms=1000 + late_ms, latency_ms=5 + late_ms)

    assert (law.state["backoff_level"], law.state["resume_ms"]) == (level, resume_ms)


def test_an_ack_of_a_request_from_before_a_pause_does_not_end_it() -> None:
    law = Law()
    nacks(law, 8)

    law.result(acked=True, now_ms=law.state["resume_ms"] + 10, latency_ms=500)

    assert law.state["backoff_level"] == 8


def test_the_last_ack_is_known_unless_its_request_is_older_than_a_nack_or_the_endpoint() -> None:
    law = Law()
    assert law.flow.acked_ms == 0
    law.result(acked=True, latency_ms=5, now_ms=1_000)
    assert law.flow.acked_ms == 1_000
    law.result(acked=False, latency_ms=5, now_ms=2_000)
    law.result(acked=True, latency_ms=5, now_ms=2_004)
    assert law.flow.acked_ms == 1_000
    law.result(acked=True, latency_ms=5, now_ms=2_006)
    assert law.flow.acked_ms == 2_006
    law.restart(now_ms=3_000)
    law.result(acked=True, latency_ms=5, now_ms=3_004)
    assert law.flow.acked_ms == 0


def test_an_ack_starts_no_pause_and_ends_the_backoff() -> None:
    law = Law()
    nacks(law, 20)
    resume_ms = law.state["resume_ms"]

    law.result(acked=True, now_ms=resume_ms, latency_ms=0)

    assert law.state["resume_ms"] == resume_ms
    assert law.state["backoff_level"] == 0
    assert not law.flow.is_backing_off


def test_nacks_of_one_windowful_raise_the_level_by_one() -> None:
    # Given requests that all began before the first answer arrived
    law = Law()
    for number in range(100):
        law.result(acked=False, now_ms=1000 + number, latency_ms=200)

    assert law.state["backoff_level"] == 1


@pytest.mark.parametrize(("poisoned", "level"), [(0.0, 2.5), (1.0, 2.001)])
def test_a_retry_raises_the_level_by_half_and_by_little_if_messages_are_bad(poisoned: float, level: float) -> None:
    law = Law(Flow(backoff_level=2.0, poisoned=poisoned))

    law.result(acked=False, now_ms=1000, latency_ms=0, repeated=True)

    assert law.state["backoff_level"] == level
