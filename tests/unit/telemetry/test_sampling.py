"""A sample represents all events, including those that it leaves out."""

from __future__ import annotations

from deliveries.telemetry.sinks.sampling import Sample


def test_sampled_events_carry_the_number_of_events_they_represent() -> None:
    now = 0.0
    sample = Sample(2, clock=lambda: now)
    assert sample.take(5) == [1, 1]
    assert sample.take(4) == []
    now = 1.0
    assert sample.take(3) == [8, 1]
    now = 2.0
    assert sample.take(1) == [2]
