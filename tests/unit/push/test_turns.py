"""The settler's turn, and the engine's slices: prompt lanes are served beside any number of others."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace
from typing import Any, cast

from deliveries.backlog.records import Lane
from deliveries.push.results.settler import LOW_LANES, TURN_SIZE, next_turn
from deliveries.push.sending.delivery import PushDelivery
from deliveries.push.sending.engine import LOW_SLICE, SLICE, next_slice


def waiting(*counts: tuple[int, int, bool]) -> list[PushDelivery]:
    """Return deliveries, one of a lane each: the first lane, how many lanes there are, and whether they are prompt."""
    made: list[Any] = []
    for first, count, is_prompt in counts:
        made += [SimpleNamespace(lane=Lane(first + n, "here"), is_prompt=is_prompt) for n in range(count)]
    return cast("list[PushDelivery]", made)


def test_a_turn_has_few_lanes_that_are_not_prompt_and_all_prompt_results() -> None:
    results = waiting((1, 500, False), (9000, 300, True))
    assert next_turn(results) == ([*results[:LOW_LANES], *results[500:]], results[LOW_LANES:500])


def test_a_turn_has_all_results_of_a_lane_that_it_has() -> None:
    results = waiting(*[(1, 1, False)] * 400, (2, 500, False), (1, 1, False))
    turn, left = next_turn(results)
    assert turn == [*results[: 400 + LOW_LANES - 1], results[-1]]
    assert left == results[400 + LOW_LANES - 1 : -1]


def test_a_turn_ends_at_its_size() -> None:
    results = waiting((1, 2 * TURN_SIZE, True))
    assert next_turn(results) == (results[:TURN_SIZE], results[TURN_SIZE:])


def test_a_slice_has_prompt_messages_and_a_few_others() -> None:
    prompt, others = deque(waiting((1, SLICE + 1, True))), deque(waiting((1000, 20, False)))
    first = next_slice(prompt, others)
    assert [delivery.is_prompt for delivery in first] == [True] * SLICE + [False] * LOW_SLICE
    assert (len(prompt), len(others)) == (1, 20 - LOW_SLICE)
    assert next_slice(deque(), others) == waiting((1000 + LOW_SLICE, LOW_SLICE, False))
