"""The cache whose values expire."""

from __future__ import annotations

from pushhub.common.expiring import ExpiringCache
from tests.clocks import Clock


def test_a_value_expires_after_the_cache_time() -> None:
    clock = Clock(100.0)
    cache: ExpiringCache[str, int] = ExpiringCache(seconds=1.0, max_entries=10, clock=clock)
    cache.put("a", 1)

    clock.now += 0.9
    assert cache.get("a") == 1
    clock.now += 0.1
    assert cache.get("a") is None


def test_a_value_can_expire_sooner_and_never_later() -> None:
    clock = Clock(100.0)
    cache: ExpiringCache[str, int] = ExpiringCache(seconds=1.0, max_entries=10, clock=clock)
    cache.put("sooner", 1, at_most_seconds=0.5)
    cache.put("not later", 2, at_most_seconds=60)

    clock.now += 0.5
    assert (cache.get("sooner"), cache.get("not later")) == (None, 2)
    clock.now += 0.5
    assert cache.get("not later") is None


def test_a_full_cache_starts_again_empty() -> None:
    cache: ExpiringCache[int, bool] = ExpiringCache(seconds=1.0, max_entries=10, clock=Clock())

    for number in range(25):
        cache.put(number, True)

    assert [number for number in range(25) if cache.get(number)] == [20, 21, 22, 23, 24]


def test_a_cleared_cache_holds_nothing() -> None:
    cache: ExpiringCache[str, int] = ExpiringCache(seconds=1.0, max_entries=10, clock=Clock())
    cache.put("a", 1)

    cache.clear()

    assert cache.get("a") is None


def test_a_value_that_was_read_before_the_cache_was_cleared_is_not_kept() -> None:
    cache: ExpiringCache[str, bool] = ExpiringCache(seconds=1.0, max_entries=10, clock=Clock())
    generation = cache.generation
    cache.clear()
    cache.put("ada", True, generation=generation)
    assert cache.get("ada") is None
    cache.put("ada", True, generation=cache.generation)
    assert cache.get("ada") is True
