"""Wakes the streams and pulls of this process that wait for messages, by one connection to Redis for all of them.

A script that has something for pullers publishes on the subscription's channel (`ring_pullers` in pump.lua). A ring may
get lost, and retries and leases become due without one. So once a second the bell looks at the lanes of all that wait,
in one step for all of them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import cache
from typing import Any

import redis
from django.conf import settings
from redis.exceptions import RedisClusterException

from deliveries.backlog.default import default_backlog
from deliveries.backlog.records import PREFIX, Lane, pull_bell
from deliveries.store.regionholds import holds_now
from deliveries.telemetry.series import openstreams
from pushhub.common.redisclient import connect_to_redis_in_loop
from subscriptions.rpc.calls import stopping

logger = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
#: So often one of those that wait for a subscription pulls anyway: while nobody does, the lane's pullers count as away
#: after a minute (PULLER_AWAY_MS in codes.py), and the subscription as unused.
PULL_SECONDS = 20.0
#: A channel on which nobody publishes: a connection needs one.
NO_RINGS = f"{PREFIX}pull"
#: uvloop raises a RuntimeError for what is written to a connection that it has just closed.
_OUTAGES = (redis.RedisError, RedisClusterException, OSError, RuntimeError)


class Rings:
    """The rings of one subscription. Each wakes one of those that wait, in turn, or the next one that would wait."""

    def __init__(self, subscription_id: int) -> None:
        self.subscription_id = subscription_id
        #: How many listen.
        self.listeners = 0
        #: Where messages may be: the region of the process, and those that have rung.
        self.regions = {str(settings.REGION)}
        self.pulled_at = 0.0
        self._waiting: dict[object, Callable[[], None]] = {}
        self._is_rung = False

    @property
    def is_waited_for(self) -> bool:
        return bool(self._waiting)

    @property
    def lanes(self) -> list[Lane]:
        """The lanes to look at; none if nobody waits."""
        regions = sorted(self.regions) if self._waiting else []
        return [Lane(self.subscription_id, region) for region in regions if holds_now(region)]

    def ring(self) -> None:
        if self._waiting:
            self._waiting.pop(next(iter(self._waiting)))()
        else:
            self._is_rung = True

    def ring_all(self) -> None:
        while self._waiting:
            self.ring()

    def hush(self) -> None:
        """Forget the last ring, because its listener pulls now."""
        self._is_rung = False
        self.pulled_at = asyncio.get_running_loop().time()

    @contextmanager
    def waking(self, wake: Callable[[], None]) -> Iterator[None]:
        """In this block, call `wake` at the next ring; at once if it was missed."""
        waiter = object()
        self._waiting[waiter] = wake
        if self._is_rung:
            self._is_rung = False
            self.ring()
        try:
            yield
        finally:
            self._waiting.pop(waiter, None)

    async def wait(self, *, seconds: float) -> None:
        """Wait for a ring, at most so long."""
        rung = asyncio.Event()
        with self.waking(rung.set), suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await rung.wait()


class Bell:
    """Hears the rings of the subscriptions for which somebody listens."""

    def __init__(self, url: str) -> None:
        self._client: Any = connect_to_redis_in_loop(url)
        self._pubsub: Any = self._client.pubsub(ignore_subscribe_messages=True)
        self._rings: dict[int, Rings] = {}
        self._tasks: list[asyncio.Task[None]] = []

    @asynccontextmanager
    async def listening(self, subscription_id: int) -> AsyncIterator[Rings]:
        """Hear the rings of a subscription in this block: whoever pulls in it and gets nothing will be woken."""
        if not self._tasks:
            self._tasks = [asyncio.create_task(self._hear()), asyncio.create_task(self._look_around())]
        rings = self._rings.setdefault(subscription_id, Rings(subscription_id))
        rings.listeners += 1
        try:
            if rings.listeners == 1:
                await self._subscribe([rings])
            yield rings
        finally:
            rings.listeners -= 1

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._pubsub.aclose()
        await self._client.aclose()

    async def _hear(self) -> None:
        while not _is_cancelled():
            try:
                await self._hear_until_cut_off()
            except _OUTAGES as error:
                logger.debug("pullers are woken by looks alone: %s", error)
            except Exception:
                logger.exception("pullers are woken by looks alone")
            await asyncio.sleep(LOOK_SECONDS)
            with suppress(*_OUTAGES):
                await self._pubsub.aclose()
                await self._client.aclose()  # it asks again which nodes a Cluster has
            self._pubsub = self._client.pubsub(ignore_subscribe_messages=True)

    async def _hear_until_cut_off(self) -> None:
        await self._client.initialize()
        await self._pubsub.subscribe(NO_RINGS, *map(pull_bell, self._rings))
        while not _is_cancelled():
            message = await self._pubsub.get_message(timeout=None)
            if message is not None:
                self._heard(message["channel"].decode(), message["data"].decode())

    def _heard(self, channel: str, region: str) -> None:
        rings = self._rings.get(int(channel.rpartition(":")[2]))
        if rings is not None:
            rings.regions.add(region)
            rings.ring()

    async def _look_around(self) -> None:
        while not _is_cancelled():
            with suppress(TimeoutError):
                await asyncio.wait_for(stopping().wait(), LOOK_SECONDS)
            if stopping().is_set():
                for rings in self._rings.values():
                    rings.ring_all()
                return
            try:
                await self._look()
            except Exception:
                logger.exception("the bell has not looked at the lanes")

    async def _look(self) -> None:
        left = [rings for rings in self._rings.values() if not rings.listeners]
        for rings in left:
            del self._rings[rings.subscription_id]
        await self._unsubscribe(left)
        await self._subscribe(self._rings.values())
        lanes = [lane for rings in self._rings.values() for lane in rings.lanes]
        due = {lane.subscription_id for lane in await asyncio.to_thread(_due, lanes)}
        late = asyncio.get_running_loop().time() - PULL_SECONDS
        for rings in list(self._rings.values()):
            if rings.is_waited_for and (rings.subscription_id in due or rings.pulled_at < late):
                rings.ring()

    async def _subscribe(self, listened: Iterable[Rings]) -> None:
        """Subscribe to the channels that are not subscribed to; `_hear` does so first, when it has connected."""
        known = self._pubsub.channels
        channels = [pull_bell(rings.subscription_id) for rings in listened]
        missing = [channel for channel in channels if known and channel.encode() not in known]
        if missing:
            with suppress(*_OUTAGES):
                await self._pubsub.subscribe(*missing)

    async def _unsubscribe(self, left: Iterable[Rings]) -> None:
        channels = [pull_bell(rings.subscription_id) for rings in left]
        if channels:
            with suppress(*_OUTAGES):
                await self._pubsub.unsubscribe(*channels)


def _is_cancelled() -> bool:
    """Return whether the current task was cancelled.

    Before Python 3.12, asyncio.wait_for, by which redis-py sends, swallows that if what it waits for is done meanwhile.
    """
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _due(lanes: Sequence[Lane]) -> list[Lane]:
    if openstreams.is_due():
        openstreams.tell()
    try:
        return default_backlog().due(lanes) if lanes else []
    except redis.RedisError as error:
        logger.debug("the bell has not looked at the lanes: %s", error)
        return []


def bell() -> Bell:
    return _bell_of(asyncio.get_running_loop())


@cache
def _bell_of(loop: asyncio.AbstractEventLoop) -> Bell:
    return Bell(settings.REDIS_URL)
