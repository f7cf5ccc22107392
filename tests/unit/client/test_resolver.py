"""The resolver's cache and limits, with scripted lookups."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable

import pytest

from deliveries.client import resolver as module
from deliveries.client.resolver import Resolver


def resolver_with(
    lookup: Callable[[str], tuple[str, ...]], *, clock: Callable[[], float], timeout_s: float = 20
) -> Resolver:
    loop = asyncio.get_running_loop()
    return Resolver(loop, clock=clock, timeout_s=timeout_s, keep_s=30, keep_failure_s=5, lookup=lookup)


def test_addresses_are_cached_and_failures_for_a_shorter_time() -> None:
    now = 0.0
    asked: list[str] = []

    def lookup(name: str) -> tuple[str, ...]:
        asked.append(name)
        if name == "bad":
            raise OSError("no such name")
        return ("192.0.2.1",)

    async def scenario() -> None:
        nonlocal now
        resolver = resolver_with(lookup, clock=lambda: now)
        for now, expected in ((0, 2), (4.9, 2), (5, 3), (9.9, 3), (29.9, 4), (30, 5)):
            assert await resolver.resolve("good") == ("192.0.2.1",)
            assert await resolver.resolve("bad") == ()
            assert len(asked) == expected, now

    asyncio.run(scenario())


def test_concurrent_requests_for_a_name_share_one_lookup() -> None:
    asked: list[str] = []

    def lookup(name: str) -> tuple[str, ...]:
        asked.append(name)
        return ("192.0.2.1",)

    async def scenario() -> None:
        resolver = resolver_with(lookup, clock=lambda: 0.0)
        assert set(await asyncio.gather(*(resolver.resolve("good") for _ in range(100)))) == {("192.0.2.1",)}

    asyncio.run(scenario())
    assert asked == ["good"]


def test_a_cancelled_request_does_not_end_the_lookup_of_the_others() -> None:
    go_on = threading.Event()

    def lookup(name: str) -> tuple[str, ...]:
        go_on.wait(20)
        return ("192.0.2.1",)

    async def scenario() -> None:
        resolver = resolver_with(lookup, clock=lambda: 0.0)
        first = asyncio.create_task(resolver.resolve("good"))
        second = asyncio.create_task(resolver.resolve("good"))
        await asyncio.sleep(0)
        first.cancel()
        go_on.set()
        assert await second == ("192.0.2.1",)

    asyncio.run(scenario())


def test_hanging_lookups_occupy_a_bounded_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_LOOKUPS", 2)
    go_on = threading.Event()
    running: list[str] = []

    def lookup(name: str) -> tuple[str, ...]:
        running.append(name)
        go_on.wait(600)
        return ("192.0.2.1",)

    async def scenario() -> None:
        resolver = resolver_with(lookup, clock=lambda: 0.0, timeout_s=0.02)
        assert set(await asyncio.gather(*(resolver.resolve(f"name{i}") for i in range(10)))) == {()}
        assert len(running) == 2
        go_on.set()
        # A lookup that began before a thread was free would fail on a busy machine, and be remembered as failed.
        resolver._timeout_s = 600
        assert await resolver.resolve("late") == ("192.0.2.1",)

    asyncio.run(scenario())


def test_lookups_go_on_after_a_shortage_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "resolver":
            raise RuntimeError("can't start new thread")
        start(thread)

    async def scenario() -> None:
        resolver = resolver_with(lambda _: ("192.0.2.1",), clock=lambda: 0.0)
        with monkeypatch.context() as shortage:
            shortage.setattr(threading.Thread, "start", refuse)
            for number in range(2 * module.MAX_LOOKUPS):
                assert await resolver.resolve(f"name{number}.example") == ()
        assert await resolver.resolve("late.example") == ("192.0.2.1",)

    asyncio.run(scenario())


@pytest.mark.parametrize("ending", ["evil.example", "EVIL.example."])
def test_a_name_server_that_hangs_leaves_places_to_other_domains(ending: str) -> None:
    """Given more names of one domain than there are places, and none of them is answered."""
    go_on = threading.Event()
    hanging: list[str] = []

    def lookup(name: str) -> tuple[str, ...]:
        if name.endswith(ending):
            hanging.append(name)
            go_on.wait(600)
        return ("192.0.2.1",)

    async def scenario() -> None:
        resolver = resolver_with(lookup, clock=lambda: 0.0, timeout_s=0.02)
        names = [f"name{i}.zone{i}.{ending}" for i in range(2 * module.MAX_LOOKUPS)]
        assert set(await asyncio.gather(*map(resolver.resolve, names))) == {()}
        assert len(hanging) <= module.MAX_DOMAIN_LOOKUPS
        resolver._timeout_s = 60
        assert await resolver.resolve("good.example") == ("192.0.2.1",)
        go_on.set()
        resolver._timeout_s = 600
        assert await resolver.resolve(f"late.{ending}") == ("192.0.2.1",)

    asyncio.run(scenario())


def test_a_domain_without_lookups_is_forgotten() -> None:
    async def scenario() -> None:
        resolver = resolver_with(lambda _: ("192.0.2.1",), clock=lambda: 0.0, timeout_s=600)
        for number in range(10):
            await resolver.resolve(f"name.number{number}.example")
        while len(resolver._domains):  # until the last thread has ended
            gc.collect()
            await asyncio.sleep(0.001)

    asyncio.run(scenario())


def test_only_the_first_addresses_are_kept_without_duplicates(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [(2, 1, 6, "", (f"192.0.2.{i // 2}", 0)) for i in range(1000)]
    monkeypatch.setattr(module.socket, "getaddrinfo", lambda *_, **__: answers)
    assert module._addresses("many") == tuple(f"192.0.2.{i}" for i in range(module.MAX_ADDRESSES))


def test_the_cache_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_REMEMBERED", 10)
    asked: list[str] = []

    def lookup(name: str) -> tuple[str, ...]:
        asked.append(name)
        return ("192.0.2.1",)

    async def scenario() -> None:
        resolver = resolver_with(lookup, clock=lambda: 0.0)
        for number in [*range(11), 0, 10]:
            await resolver.resolve(f"name{number}")

    asyncio.run(scenario())
    assert asked == [*(f"name{number}" for number in range(11)), "name0"]
