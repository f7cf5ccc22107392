"""Message ids increase, never repeat, and contain the publish time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from deliveries.rules.ids import COUNTER_SIZE, EPOCH_MS, MessageIds, first_id_at, publish_time_ms

NOW = EPOCH_MS + 123_456_789


@given(st.lists(st.tuples(st.integers(0, 5000), st.integers(-50, 50)), max_size=20))
def test_ids_rise_whatever_the_clock_does(takes: list[tuple[int, int]]) -> None:
    ids = MessageIds(node=3)
    taken: list[int] = []
    now = NOW
    for count, step in takes:
        now += step
        taken += ids.take(count, now_ms=now)
    assert taken == sorted(set(taken))


def test_an_id_holds_its_publish_time() -> None:
    [message_id] = MessageIds(node=1023).take(1, now_ms=NOW)
    assert publish_time_ms(message_id) == NOW
    assert first_id_at(NOW) <= message_id < first_id_at(NOW + 1)


def test_ids_beyond_the_capacity_of_a_millisecond_use_the_next() -> None:
    ids = MessageIds(node=0).take(COUNTER_SIZE + 1, now_ms=NOW)
    assert publish_time_ms(ids[-2]) == NOW
    assert publish_time_ms(ids[-1]) == NOW + 1


def test_two_processes_with_different_numbers_never_meet() -> None:
    assert not set(MessageIds(node=1).take(5000, now_ms=NOW)) & set(MessageIds(node=2).take(5000, now_ms=NOW))


def test_ids_fit_a_signed_bigint_for_decades() -> None:
    year_2088 = EPOCH_MS + 68 * 365 * 86_400_000
    assert max(MessageIds(node=1023).take(1, now_ms=year_2088)) < 2**63
