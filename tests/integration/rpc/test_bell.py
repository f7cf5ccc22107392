"""Streams and pulls that wait share one connection to Redis, and a ring wakes one of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from deliveries.backlog.codes import Mode
from deliveries.backlog.default import default_backlog
from deliveries.backlog.records import Lane, Offer, OfferedLane, OfferedMessage, pull_bell
from deliveries.rpc import bell as bell_module
from deliveries.rpc.bell import Bell, Rings
from deliveries.rules.taskmessage import escape_message
from pushhub.common.servers import new_event_loop
from tests.lanes import configure

WAITING = 150
LANE = Lane(7, "here")
NEVER = 1e6


@pytest.fixture(autouse=True)
def lane(redis_url: str, settings: pytest.FixtureRequest) -> None:
    settings.REGION = LANE.region  # type: ignore[attr-defined]
    configure(default_backlog(), LANE, mode=Mode.PULL, action="new")


@pytest.fixture
def no_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave waking to the rings."""
    monkeypatch.setattr(bell_module, "LOOK_SECONDS", NEVER)


@pytest.fixture
def no_pulls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nobody be woken who has nothing to pull."""
    monkeypatch.setattr(bell_module, "PULL_SECONDS", NEVER)


def offer(number: int) -> None:
    message_id = (1 << 62) + number
    text = escape_message({"messageId": str(message_id), "publishTime": "t"})
    default_backlog().offer([Offer(LANE.region, [OfferedLane(LANE, Mode.PULL)], [OfferedMessage(message_id, text)])])


@asynccontextmanager
async def listening(url: str) -> AsyncIterator[Rings]:
    """Listen for the lane, and wait until Redis knows."""
    bell = Bell(url)
    try:
        async with bell.listening(LANE.subscription_id) as rings:
            await until(is_heard)
            yield rings
            # Whoever stops listening leaves the channel.
        await bell._look()
        await until(lambda: not is_heard())
    finally:
        await bell.close()


def is_heard() -> bool:
    [(_, count)] = default_backlog().client.pubsub_numsub(pull_bell(LANE.subscription_id))
    return bool(count)


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not is_so():
            await asyncio.sleep(0.01)


def run(work: Callable[[Rings], Awaitable[None]], url: str) -> None:
    async def listen() -> None:
        async with listening(url) as rings:
            await work(rings)

    asyncio.run(listen())


def test_many_wait_over_one_connection_and_each_ring_wakes_one(redis_url: str, no_looks: None) -> None:
    async def work(rings: Rings) -> None:
        connections = default_backlog().client.info("clients")["connected_clients"]
        waiting = [asyncio.create_task(rings.wait(seconds=NEVER)) for _ in range(WAITING)]
        await asyncio.sleep(0)
        assert default_backlog().client.info("clients")["connected_clients"] == connections
        for number in range(WAITING):
            offer(number)
            await until(lambda: sum(task.done() for task in waiting) > number)  # noqa: B023
            assert sum(task.done() for task in waiting) == number + 1

    run(work, redis_url)


def test_a_ring_that_nobody_waited_for_wakes_the_next(redis_url: str, no_looks: None) -> None:
    async def work(rings: Rings) -> None:
        offer(1)
        await until(lambda: rings._is_rung)
        async with asyncio.timeout(60):
            await rings.wait(seconds=NEVER)
        rings.ring()
        rings.hush()
        assert not rings._is_rung, "whoever pulls needs no ring"

    run(work, redis_url)


@pytest.mark.parametrize("lost", ["ring", "script", "all"])
def test_a_lost_ring_and_a_wiped_redis_are_found(redis_url: str, no_pulls: None, lost: str) -> None:
    """Given that Redis has lost its scripts, its data or just the ring, when something is due, then one is woken."""

    async def work(rings: Rings) -> None:
        rings.hush()
        waiting = asyncio.create_task(rings.wait(seconds=NEVER))
        await asyncio.sleep(0)
        client = default_backlog().client
        if lost == "all":
            client.flushall()
        else:
            if lost == "script":
                client.function_flush()
            rings._waiting, kept = {}, rings._waiting
            offer(1)
            await until(lambda: rings._is_rung)
            rings._waiting, rings._is_rung = kept, False
        async with asyncio.timeout(60):
            await waiting

    run(work, redis_url)


def test_a_lapsed_lease_wakes_without_a_ring(redis_url: str, no_pulls: None) -> None:
    async def work(rings: Rings) -> None:
        offer(1)
        assert default_backlog().due([LANE]) == [LANE]
        leases = default_backlog().lease(LANE, count=1, duration_ms=1, countdown_ms=(0, 0), puller="a")
        assert leases is not None
        assert leases.deliveries
        await until(lambda: rings._is_rung)
        rings.hush()
        async with asyncio.timeout(60):
            await rings.wait(seconds=NEVER)

    run(work, redis_url)


def test_an_idle_lane_wakes_nobody_but_for_the_pull_that_is_due(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(rings: Rings) -> None:
        assert default_backlog().due([LANE]) == []
        rings.hush()
        monkeypatch.setattr(bell_module, "PULL_SECONDS", -1.0)
        async with asyncio.timeout(60):
            await rings.wait(seconds=NEVER)

    run(work, redis_url)


def test_a_bell_that_is_cut_off_hears_again(redis_url: str) -> None:
    """Given that Redis closes all subscribers' connections, when it is there, then the bell subscribes again."""

    async def work(rings: Rings) -> None:
        client = default_backlog().client
        client.client_kill_filter(_type="pubsub")
        await until(is_heard)

    run(work, redis_url)


@pytest.mark.parametrize("does", ["come", "leave"])
def test_a_connection_that_has_just_been_closed_fails_nobody(redis_url: str, does: str) -> None:
    """Given that uvloop has closed the connection, when somebody comes or leaves before the bell has heard of it."""

    async def work() -> None:
        bell = Bell(redis_url)
        try:
            async with bell.listening(LANE.subscription_id) as rings:
                await until(is_heard)
                bell._pubsub.connection._writer.transport.abort()
                await (bell._subscribe([Rings(8)]) if does == "come" else bell._unsubscribe([rings]))
        finally:
            await bell.close()

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(work())
