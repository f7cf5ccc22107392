"""A cache that is bounded by the bytes of its values."""

from __future__ import annotations

from pushhub.common.sizedcache import SizedCache


def test_what_was_used_last_stays() -> None:
    cache: SizedCache[str, int] = SizedCache(most_bytes=10)
    cache.put("a", 1, size=4)
    cache.put("b", 2, size=4)
    assert cache.get("a") == 1
    cache.put("c", 3, size=4)
    assert [cache.get(key) for key in "abc"] == [1, None, 3]


def test_a_value_that_is_put_again_counts_once() -> None:
    cache: SizedCache[str, int] = SizedCache(most_bytes=10)
    for value in range(5):
        cache.put("a", value, size=6)
    cache.put("b", 1, size=4)
    assert (cache.get("a"), cache.get("b")) == (4, 1)


def test_a_value_above_the_bound_is_not_kept() -> None:
    cache: SizedCache[str, int] = SizedCache(most_bytes=10)
    cache.put("a", 1, size=11)
    assert cache.get("a") is None
    cache.put("b", 1, size=10)
    assert cache.get("b") == 1
