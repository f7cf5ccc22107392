"""The rate of a replay's or an ingest's task, on a clock of the test's own."""

from __future__ import annotations

import pytest

from deliveries.pipeline.publishing.parts import BATCH, Item, Pace, _size_of
from deliveries.rules.payload import NewMessage
from pushhub.common.batches import gather


class Clock:
    """A clock that moves only while a test sleeps or works."""

    def __init__(self) -> None:
        self.now = 50.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now += seconds


def ran(rate: float, *, messages: int, work_seconds: float) -> float:
    """Return the seconds that publishing takes if each batch works for `work_seconds`."""
    clock = Clock()
    pace = Pace(rate, clock=clock, sleep=clock.sleep)
    done = 0
    while done < messages:
        count = min(pace.size, messages - done)
        done += count
        clock.now += work_seconds
        pace.wait(count)
        assert not rate or done <= rate * (clock.now - 50.0) + 1e-6, "never ahead of the rate"
    return clock.now - 50.0


@pytest.mark.parametrize(("rate", "messages"), [(0.5, 4), (10, 35), (250, 1_000), (5_000, 20_000)])
def test_publishing_takes_the_time_that_the_rate_asks_for(rate: float, messages: int) -> None:
    assert ran(rate, messages=messages, work_seconds=0.001) == pytest.approx(messages / rate)


def test_time_that_publishing_takes_is_part_of_the_rate() -> None:
    assert ran(100, messages=1_000, work_seconds=0.9) == pytest.approx(10)


def test_without_a_rate_nothing_waits_and_batches_are_whole() -> None:
    assert ran(0, messages=10_000, work_seconds=0.1) == pytest.approx(0.1 * 10_000 / BATCH)


@pytest.mark.parametrize(("rate", "size"), [(0.5, 1), (10.9, 10), (1_000_000, BATCH), (0, BATCH)])
def test_a_batch_is_at_most_what_a_second_allows(rate: float, size: int) -> None:
    assert Pace(rate).size == size


def test_what_is_published_at_once_is_bounded_with_its_attributes_and_rejects() -> None:
    large = NewMessage(b"", {"a": "x" * 400})
    items: list[Item] = [(1, large), (2, "y" * 400), (3, large), (4, "y" * 400)]

    batches = list(gather(items, most=1000, size_of=_size_of, size=1000))

    assert [len(batch) for batch in batches] == [2, 2]
