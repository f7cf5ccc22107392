"""kombu's Redis transport, fetching deliveries in batches.

Between polls of kombu's hub the channel either asks for a batch (fetch.lua) or, if the queue was empty, sleeps on the
region's bell until a lane is due. Fetched batches are recorded under this worker (fetch.lua), so kombu's own record of
unacknowledged messages is not used. Queues other than `deliveries.*` work as in the base class.

Where there are several cells, the region's bell is the list of those that have something for a worker: the channel
sleeps on it, and fetches from the cell that it gets. A cell with more than a batch rings again, behind the others. Now
and then the channel looks at every cell, without taking messages, as rings may be lost and lanes become due.
"""

from __future__ import annotations

from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Any

import orjson
from django.conf import settings
from kombu.transport import redis
from kombu.utils.encoding import bytes_to_str
from redis.exceptions import ResponseError

from deliveries.backlog.records import bell_key
from deliveries.backlog.scripts import lacks_library, library, load_library
from deliveries.backlog.workerverbs import Fetched
from deliveries.push.alarm import MIN_SECONDS, Alarm
from deliveries.rules.taskmessage import QUEUE_PREFIX, parse_own
from deliveries.store.regionholds import holds_now
from pushhub.common.redisclient import connect_to_redis, shared_url

if TYPE_CHECKING:
    from deliveries.push.worker import PushWorker

#: The longest sleep on the bell, and so the longest delay after a lost ring. pump.lua has the same number.
MAX_SLEEP_SECONDS = 2.0
#: The shortest sleep before the channel looks at all cells, which it does when the sleep has ended.
SHORTEST_SLEEP_SECONDS = 0.01
#: No reply takes that long: a sleep on a bell or a queue ends after a second or two.
REPLY_SECONDS = 30

# kombu's published types know little of its Redis transport.
BaseQoS: Any = redis.QoS
BaseChannel: Any = redis.Channel
BaseTransport: Any = redis.Transport


@dataclass(frozen=True, slots=True)
class _Fetch:
    """A batch of at most `room` messages has been requested."""

    region: str
    batch: str
    room: int
    cell: int = 0


#: In its place, while the channel waits for a bell.
_SLEEP = _Fetch("", "", 0)


class QoS(BaseQoS):  # type: ignore[misc]
    """Keeps no record of the worker's messages, because their batch is already recorded in Redis."""

    def append(self, message: Any, delivery_tag: str) -> None:
        if not self.channel.fetches(message):
            super().append(message, delivery_tag)

    def ack(self, delivery_tag: str) -> None:
        if delivery_tag in self._delivered:
            super().ack(delivery_tag)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        if delivery_tag in self._delivered:
            super().reject(delivery_tag, requeue=requeue)


class Channel(BaseChannel):  # type: ignore[misc]
    """Fetches in batches for a push worker, and is an ordinary channel for any other worker."""

    QoS = QoS

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._regions: list[str] = []
        self._turn = 0
        #: Regions whose last fetch emptied the queue. Filling the queue rings the bell.
        self._quiet: set[str] = set()
        self._alarm: Alarm | None = None
        #: When the next lane of a cell is due (time.monotonic).
        self._due: dict[int, float] = {}
        #: When to look at every cell, where there are several.
        self._look_at = 0.0
        #: The request that the next reply answers, whatever has been cancelled since.
        self._awaited: _Fetch | None = None
        self._fetch_function = library().function("fetch")

    def _get_pool(self, asynchronous: bool = False) -> Any:
        """Return a pool for the broker. kombu's own URLs lack the options of TLS, and its Sentinels a claim."""
        pool = connect_to_redis(shared_url(), seconds=REPLY_SECONDS, health_check_interval=30).connection_pool
        self.keyprefix_fanout: str = self.keyprefix_fanout.format(db=pool.connection_kwargs.get("db", 0))
        if asynchronous:
            pool.connection_class = _watched(pool.connection_class, self)
        return pool

    @property
    def fetcher(self) -> PushWorker | None:
        # A closed channel has no connection.
        fetcher: PushWorker | None = self.connection.fetcher if self.connection is not None else None
        return fetcher

    @property
    def _served(self) -> list[str]:
        adopted = self.fetcher.adopted if self.fetcher is not None else ()
        others = (region for region in adopted if region not in self._regions)
        return [region for region in (*self._regions, *others) if holds_now(region)]

    def fetches(self, message: Any) -> bool:
        routing_key = str(message.delivery_info.get("routing_key", ""))
        return self.fetcher is not None and routing_key.startswith(QUEUE_PREFIX)

    def _update_queue_cycle(self) -> None:
        super()._update_queue_cycle()
        self._regions = [
            queue.removeprefix(QUEUE_PREFIX) for queue in self.active_queues if queue.startswith(QUEUE_PREFIX)
        ]
        self._quiet.clear()
        self._look_at = 0.0
        if self.fetcher is not None:
            self.fetcher.consumed = tuple(self._regions)

    def _brpop_start(self, timeout: float | None = None) -> None:
        self._awaited = None
        if self.fetcher is None or not self._regions:
            super()._brpop_start(timeout)
            return
        self._in_poll = self.client.connection
        self._brpop_sent_at = monotonic()
        if settings.CELLS > 1:
            self._send_sleep_beside_cells(self.fetcher)
        elif not self._quiet.issuperset(served := self._served):
            self._send_fetch(self.fetcher, served)
        else:
            self._send_sleep()

    def close(self) -> None:
        """Close without kombu's wait for an outstanding reply if that reply would only end a sleep."""
        if self._alarm is not None:
            self._alarm.cancel()
        if self._in_poll and self._awaited is _SLEEP:
            self.client.connection.disconnect()
            self._in_poll = None
        super().close()

    def _send_fetch(self, fetcher: PushWorker, regions: list[str]) -> None:
        self._turn = (self._turn + 1) % len(regions)
        region = regions[self._turn]
        work, batch, room, *others = fetcher.fetch_arguments(region, is_own=region in self._regions)
        if not room:
            self._send_full_sleep(fetcher)
            return
        self._awaited = _Fetch(region, batch, room)
        keys = QUEUE_PREFIX + region, work
        self.client.connection.send_command("FCALL", self._fetch_function, 2, *keys, region, batch, room, *others)

    def _send_sleep_beside_cells(self, fetcher: PushWorker) -> None:
        if fetcher.room():
            self._send_sleep(max(self._look_at - monotonic(), SHORTEST_SLEEP_SECONDS))
        else:
            self._send_full_sleep(fetcher)

    def _send_sleep(self, seconds: float = MAX_SLEEP_SECONDS) -> None:
        self._awaited = _SLEEP
        self._quiet.clear()
        # A worker that serves no region now sleeps on a bell that nobody rings: BRPOP wants a key.
        bells = [bell_key(region) for region in self._served or ([self.fetcher.name] if self.fetcher else [])]
        others = [queue for queue in self.active_queues if settings.CELLS > 1 or not queue.startswith(QUEUE_PREFIX)]
        self.client.connection.send_command("BRPOP", *bells, *others, f"{seconds:.3f}")

    def _send_full_sleep(self, fetcher: PushWorker) -> None:
        """Sleep on the worker's own bell, which its settler rings, because the worker is full.

        The region's bell is left to other workers. They also take care of lanes that become due, at the end of their
        sleep at the latest.
        """
        self._awaited = _SLEEP
        self.client.connection.send_command("BRPOP", bell_key(fetcher.name), f"{MAX_SLEEP_SECONDS:.3f}")

    def _brpop_read(self, **options: Any) -> Any:
        awaited, fetcher = self._awaited, self.fetcher
        if awaited is None or fetcher is None:
            return super()._brpop_read(**options)
        try:
            reply = self._read(**options)
        finally:
            self._in_poll = None
            self._flush_brpop_reauth()
        if awaited is _SLEEP:
            return self._woken(fetcher, reply)
        if reply is not None:
            self._deliver_batch(fetcher, awaited, Fetched.parse(reply))
        return True

    def _read(self, **options: Any) -> Any:
        try:
            return self.client.parse_response(self.client.connection, "FCALL", **options)
        except ResponseError as error:
            if not lacks_library(error):
                raise
            load_library(self.client)
            return None
        except self.connection_errors:
            self.client.connection.disconnect()
            raise

    def _woken(self, fetcher: PushWorker, reply: Any) -> bool:
        """Handle a ring or the end of the sleep; deliver an item of another queue as kombu would."""
        if reply:
            queue, item = bytes_to_str(reply[0]), reply[1]
            region = queue.removeprefix(bell_key(""))
            if queue.startswith(QUEUE_PREFIX):
                fetcher.sort_in(queue.removeprefix(QUEUE_PREFIX), item)
            elif region == queue:
                self.connection._deliver(orjson.loads(item), queue)
            elif settings.CELLS > 1 and region != fetcher.name:
                self._fetch_rung(fetcher, region, int(item))
        if settings.CELLS > 1 and monotonic() >= self._look_at:
            self._look(fetcher)
        return True

    def _look(self, fetcher: PushWorker) -> None:
        self._look_at = monotonic() + MAX_SLEEP_SECONDS
        for region in self._served:
            for cell, reply in fetcher.look(region, is_own=region in self._regions).items():
                self._deliver_batch(fetcher, _Fetch(region, "", 1, cell), reply)

    def _fetch_rung(self, fetcher: PushWorker, region: str, cell: int) -> None:
        room = fetcher.room()
        if not room:
            fetcher.ring(region, cell=cell)
            return
        batch, reply = fetcher.fetch(region, cell, room=room, is_own=region in self._regions)
        if reply is not None:
            self._deliver_batch(fetcher, _Fetch(region, batch, room, cell), reply)

    def _wake_after(self, seconds: float, cell: int) -> None:
        """Set the alarm for the next lane of a cell that is due.

        Call this while a reply is read: kombu's hub notices a timer too late if it is set when polling begins.
        """
        loop = self.connection.loop
        if self._alarm is None and loop is not None:
            self._alarm = Alarm(clock=monotonic, call_later=loop.call_later, ring=self._ring)
        if self._alarm is not None:
            self._due[cell] = monotonic() + seconds
            self._alarm.set(seconds)

    def _ring(self) -> None:
        if self.fetcher is not None and self._regions:
            now = monotonic()
            for cell in [cell for cell, at in self._due.items() if at <= now + MIN_SECONDS]:
                del self._due[cell]
                self.fetcher.ring(self._regions[0], cell=cell)
            if self._due and self._alarm is not None:
                self._alarm.set(min(self._due.values()) - now)

    def _deliver_batch(self, fetcher: PushWorker, awaited: _Fetch, reply: Fetched) -> None:
        messages, wait_ms, epoch, pages = reply
        region = awaited.region
        # A wait of 0 means that more lanes are due than one fetch wakes: fetch again at once.
        if wait_ms == 0 and settings.CELLS > 1:
            fetcher.ring(region, cell=awaited.cell)
        elif len(messages) < awaited.room and wait_ms != 0:
            self._quiet.add(region)
            if 0 < wait_ms < MAX_SLEEP_SECONDS * 1000:
                self._wake_after(wait_ms / 1000, awaited.cell)
        fetcher.fetched(awaited.batch, messages, epoch=epoch, pages=pages, cell=awaited.cell)
        queue = QUEUE_PREFIX + region
        # If the queue was cancelled while the reply was on its way, the messages are handed back.
        is_wanted = queue in self.connection._callbacks or region in fetcher.adopted
        take, take_delivery, deliver = fetcher.take, fetcher.take_delivery, self.connection._deliver
        for message in messages:
            try:
                parts = parse_own(message) if is_wanted else None
                if parts is not None and take_delivery(*parts):
                    continue
                raw = orjson.loads(message)
                if not is_wanted:
                    fetcher.hand_back(raw)
                elif not take(raw):
                    deliver(raw, queue)
            except (orjson.JSONDecodeError, TypeError, KeyError):
                fetcher.undecodable(message)
        fetcher.delivered()


class Transport(BaseTransport):  # type: ignore[misc]
    """kombu's Redis transport. A push worker sets `fetcher` on the transport that it consumes with."""

    Channel = Channel
    driver_name = "pushhub"
    fetcher: PushWorker | None = None
    #: kombu's hub, once the worker runs; pools of green threads have none, and sleep longer.
    loop: Any = None

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        self.loop = loop
        super().register_with_event_loop(connection, loop)


def _watched(connection_class: Any, channel: Channel) -> Any:
    """Return a class of connections that leave the channel's poller when they are disconnected, as kombu's do."""

    class Watched(connection_class):  # type: ignore[misc]
        def disconnect(self, *args: Any, **kwargs: Any) -> None:
            super().disconnect(*args, **kwargs)
            if channel._registered:
                channel._on_connection_disconnect(self)

    return Watched
