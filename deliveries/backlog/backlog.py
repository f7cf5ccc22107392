"""The backlog in Redis, verb by verb: typed calls around the Lua scripts, no rule of its own."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Literal, NamedTuple, cast

import redis
from django.conf import settings

from deliveries.backlog.connection import redis_client
from deliveries.backlog.scripts import Scripts, call_all
from deliveries.rules.flow import is_repeated
from deliveries.rules.limits import Limits
from deliveries.rules.taskmessage import queue_name

PREFIX = "ph:"
#: When each region was last served (beat.lua).
REGIONS_KEY = f"{PREFIX}regions"
NO_LIMITS = Limits()
#: What to do with a lane besides telling it how it stands (configure.lua).
Action = Literal["new", "known", "more", "spill"]
#: A worker that was silent for so long is dead, and what it held goes back to the queue.
DEAD_AFTER_MS = 15_000


def pull_bell(subscription_id: int) -> str:
    """The list that holds one entry while a waiting puller of the subscription should look at its lanes."""
    return f"{PREFIX}pull:{subscription_id}"


@dataclass(frozen=True, slots=True)
class Lane:
    """One subscription's deliveries from one publish region; each lane has a window of its own."""

    subscription_id: int
    region: str

    @property
    def key(self) -> str:
        return f"{self.subscription_id}:{self.region}"

    @classmethod
    def parse(cls, key: bytes | str) -> Lane:
        subscription_id, _, region = (key.decode() if isinstance(key, bytes) else key).partition(":")
        return cls(int(subscription_id), region)


class Mode(IntEnum):
    """What becomes of a lane's messages (configure.lua)."""

    IDLE = 0
    PUSH = 1
    PULL = 2


@dataclass(frozen=True, slots=True)
class Offer:
    """Deliveries of one lane in publish order: pairs of message id and Celery task message.

    The mode and the limits are for a lane that Redis does not know yet.
    """

    lane: Lane
    mode: Mode
    messages: Sequence[tuple[int, str]]
    limits: Limits = NO_LIMITS


@dataclass(frozen=True, slots=True)
class PageRequest:
    """A lane whose backlog in Redis runs low: read the rows from `from_id` on; `seq` guards against a race."""

    lane: Lane
    from_id: int
    seq: int


class LeasedDelivery(NamedTuple):
    """A delivery that was leased to a puller."""

    message_id: int
    #: The Celery message.
    task: bytes
    #: How often the delivery was leased, and how many of these leases count as attempts, both with this one.
    times: int
    attempts: int


@dataclass(frozen=True, slots=True)
class Leases:
    """What a puller got, and the page that it must read where the backlog runs low."""

    deliveries: list[LeasedDelivery]
    page: PageRequest | None
    #: When the leases end, in ms of Redis' clock.
    ends_ms: int


@dataclass(slots=True)
class Settlement:
    """Results of one lane, in their order; the fields run parallel (settle.lua says what the codes mean)."""

    message_ids: list[str] = field(default_factory=list)
    codes: list[str] = field(default_factory=list)
    latencies_ms: list[str] = field(default_factory=list)
    #: For each nack and release: the delay in ms and the task message of the next attempt.
    returned: list[str | int] = field(default_factory=list)

    def add(
        self, message_id: str, code: Literal["a", "n", "r", "x", "d"], latency_ms: float = 0.0, *, attempt: int = 1
    ) -> None:
        self.message_ids.append(message_id)
        self.codes.append(code.upper() if is_repeated(attempt) else code)
        self.latencies_ms.append(f"{latency_ms:.3f}")


@dataclass(frozen=True, slots=True)
class LaneFlow:
    """How a lane stands after a settle: its push window, and how long its push backoff holds the next delivery back."""

    window: int
    backoff_ms: int


@dataclass(frozen=True, slots=True)
class Health:
    """What a heartbeat learns."""

    was_wiped: bool
    put_back: int
    #: Regions that no worker serves, with the seconds since one did.
    silent_regions: dict[str, float]


def bell_key(region: str) -> str:
    return f"{PREFIX}bell:{region}"


def work_key(worker: str) -> str:
    return f"{PREFIX}work:{worker}"


class Backlog:
    """The six verbs. Every call may raise redis.RedisError; none leaves a half-done step behind."""

    def __init__(self, client: redis.Redis | None = None, *, limit: int | None = None) -> None:
        self.client = client or redis_client()
        self.scripts = Scripts(self.client)
        self.limit = limit or settings.BACKLOG_LIMIT

    def offer(self, offers: Iterable[Offer]) -> None:
        """Append new deliveries, in one round trip for all lanes."""
        calls = [
            (
                offer.lane.key,
                [int(offer.mode), self.limit, "", "", "", "", "", *_own(offer.limits), *_flat(offer.messages)],
            )
            for offer in offers
        ]
        call_all(self.client, self.scripts.offer, calls)

    def offer_page(
        self,
        request: PageRequest,
        messages: Sequence[tuple[int, str]],
        *,
        next_id: int,
        complete: bool,
        orderings: Sequence[str] = (),
    ) -> bool:
        """Append a page read from the database; true when the lane wants another at once.

        `orderings` holds, for an ordered lane, the digest of each message's ordering key, or "".
        """
        keys = ",".join(orderings)
        own = _own(NO_LIMITS)
        args = [1, self.limit, "page", next_id, request.seq, int(complete), keys, *own, *_flat(messages)]
        _accepted, _refused, again = self.scripts.offer(keys=[request.lane.key], args=args)
        return bool(again)

    def settle(
        self, settlements: dict[Lane, Settlement], *, dice: float, finished: dict[str, list[str]]
    ) -> dict[Lane, LaneFlow]:
        """End the leases of a batch, and forget the finished batches of each worker in `finished`."""
        calls = [
            (
                lane.key,
                [
                    self.limit,
                    repr(dice),
                    ",".join(settlement.message_ids),
                    "".join(settlement.codes),
                    ",".join(settlement.latencies_ms),
                    *settlement.returned,
                ],
            )
            for lane, settlement in settlements.items()
        ]
        done = [("HDEL", work_key(worker), *batches) for worker, batches in finished.items() if batches]
        replies = call_all(self.client, self.scripts.settle, calls, then=done)
        return {lane: LaneFlow(int(reply[2]), int(reply[3])) for lane, reply in zip(settlements, replies, strict=True)}

    def beat(self, worker: str = "", *, regions: Iterable[str] = ()) -> Health:
        """Renew the heartbeat of a worker that serves these regions, and put back what the dead held."""
        wiped, put_back, silent = self.scripts.beat(args=[worker, DEAD_AFTER_MS, *regions])
        silences = {name.decode(): int(ms) / 1000 for name, ms in zip(silent[0::2], silent[1::2], strict=True)}
        return Health(was_wiped=bool(wiped), put_back=int(put_back), silent_regions=silences)

    def regions_silent(self) -> dict[str, float]:
        """The regions that no worker serves, with the seconds since one did or since messages were found there."""
        return self.beat().silent_regions

    def note_regions(self, regions: Iterable[str]) -> None:
        """Messages wait in these regions; a region of which nothing is known counts as served until now."""
        now = int(time.time() * 1000)
        times = dict.fromkeys(regions, now)
        if times:
            self.client.zadd(REGIONS_KEY, times, nx=True)

    def forget_regions(self, regions: Sequence[str]) -> None:
        """Nothing waits in these regions, and nothing will come."""
        if regions:
            self.client.zrem(REGIONS_KEY, *regions)

    def leave(self, worker: str) -> bool:
        """A worker takes its leave; false when it still holds batches, which the others then take over."""
        return bool(self.scripts.leave(args=[worker]))

    def finish(self, worker: str, batch: str) -> None:
        """Forget a batch that holds nothing to settle."""
        self.client.hdel(work_key(worker), batch)

    def held(self, regions: Iterable[str]) -> set[str]:
        """The task ids of all deliveries that a queue or a worker holds; slow, for the audit."""
        return {task.decode() for task in self.scripts.held(args=list(regions))}

    def tokens(self, lane: Lane) -> list[int]:
        """The deliveries of a lane that hold a token."""
        where: dict[Any, Any] = self.client.hgetall(f"{PREFIX}{lane.key}:d")
        return [int(message_id) for message_id, place in where.items() if place == b"t"]

    def repair(self, lane: Lane, message_ids: Sequence[int]) -> int:
        """Take back tokens that nobody holds; their deliveries are read from the database again."""
        return int(self.scripts.repair(keys=[lane.key], args=[self.limit, *message_ids]))

    def lanes(self) -> list[Lane]:
        """Every lane that Redis knows."""
        keys = self.client.scan_iter(match=f"{PREFIX}*:s", count=1000)
        return [Lane.parse(key.decode().removeprefix(PREFIX).removesuffix(":s")) for key in keys]

    def configure(
        self,
        lane: Lane,
        *,
        mode: Mode,
        action: Action,
        from_id: int = 0,
        limits: Limits = NO_LIMITS,
        ordered: bool = False,
    ) -> None:
        """Tell a lane how its subscription stands (configure.lua)."""
        args = [int(mode), self.limit, action, from_id, *_own(limits), int(ordered)]
        self.scripts.configure(keys=[lane.key], args=args)

    def lease(
        self, lane: Lane, *, count: int, duration_ms: int, countdown_ms: tuple[int, int], puller: str = ""
    ) -> Leases | None:
        """Lease up to `count` deliveries to a puller; None for a lane that Redis does not know (lease.lua)."""
        reply = self.scripts.lease(keys=[lane.key], args=[count, duration_ms, self.limit, *countdown_ms, puller])
        if reply is None:
            return None
        leased, from_id, seq, ends_ms = reply
        page = PageRequest(lane, int(from_id), int(float(seq))) if from_id else None
        fields = zip(leased[0::4], leased[1::4], leased[2::4], leased[3::4], strict=True)
        deliveries = [LeasedDelivery(int(name), task, times, attempts) for name, task, times, attempts in fields]
        return Leases(deliveries, page, ends_ms)

    def extend(
        self, lane: Lane, leases: Iterable[tuple[int, int]], *, duration_ms: int, countdown_ms: tuple[int, int]
    ) -> set[int]:
        """Move the end of leases (delivery and how often it was leased), or nack them with 0; returns those lost."""
        return _ids(self.scripts.extend(keys=[lane.key], args=[duration_ms, *countdown_ms, *_flat(leases)]))

    def lost(self, lane: Lane, leases: Iterable[tuple[int, int]]) -> set[int]:
        """Those of the leases that hold no more."""
        return _ids(self.scripts.leased(keys=[lane.key], args=_flat(leases)))

    def unlease(self, lane: Lane, leases: Iterable[tuple[int, int, int]]) -> None:
        """Take back leases at no cost of an attempt: delivery, how often it was leased, end in ms (unlease.lua)."""
        args = [part for lease in leases for part in lease]
        if args:
            self.scripts.unlease(keys=[lane.key], args=args)

    def acknowledge(self, lane: Lane, leases: Iterable[tuple[int, int]]) -> tuple[set[int], set[int]]:
        """Take acks of an ordered lane; return what the database may forget now, and what came too late."""
        owed_no_more, late = self.scripts.acknowledge(keys=[lane.key], args=_flat(leases))
        return _ids(owed_no_more), _ids(late)

    def release(self, lane: Lane, message_ids: Sequence[int]) -> None:
        """Forget deliveries that were acknowledged, after the database has."""
        self.scripts.release(keys=[lane.key], args=[self.limit, *message_ids])

    def wait_for_pull(self, subscription_id: int, *, seconds: float) -> None:
        """Sleep until something of a pull subscription may be ready, or that long."""
        self.client.brpop([pull_bell(subscription_id)], timeout=seconds)

    def forget(self, lane: Lane) -> None:
        self.scripts.forget(keys=[lane.key])

    def announce_change(self, subscription_id: int) -> None:
        """Make every worker read this subscription's settings again before its next push."""
        epoch = self.client.incr(f"{PREFIX}epoch")
        self.client.zadd(f"{PREFIX}changed", {str(subscription_id): epoch})

    def changed_since(self, epoch: int) -> list[int]:
        members = self.client.zrangebyscore(f"{PREFIX}changed", f"({epoch}", "+inf")
        return [int(cast(bytes, member)) for member in members]

    def mark_alive(self) -> None:
        """Redis knows all lanes again; a wipe removes this mark with the rest."""
        self.client.set(f"{PREFIX}alive", 1)

    def known(self, lane: Lane, message_ids: Sequence[int]) -> list[bool]:
        """Which of these deliveries Redis has."""
        if not message_ids:
            return []
        found = self.client.hmget(f"{PREFIX}{lane.key}:d", [str(i) for i in message_ids])
        return [where is not None for where in found]

    def state(self, lane: Lane) -> dict[str, str]:
        """A lane's state for people and tests, the fields of common.lua; empty when Redis does not know it."""
        raw: dict[Any, Any] = self.client.hgetall(f"{PREFIX}{lane.key}:s")
        return {name.decode(): value.decode() for name, value in raw.items()}

    def states(self, lanes: Sequence[Lane]) -> list[dict[str, str]]:
        """`state` of many lanes, in one round trip."""
        pipe = self.client.pipeline(transaction=False)
        for lane in lanes:
            pipe.hgetall(f"{PREFIX}{lane.key}:s")
        return [{name.decode(): value.decode() for name, value in raw.items()} for raw in pipe.execute()]

    def ring(self, region: str) -> None:
        """Wake one worker that sleeps on a region's bell; where none does, the next to lie down gets up at once."""
        self.client.lpush(f"{PREFIX}bell:{region}", "1")

    def queue_length(self, region: str) -> int:
        return int(self.client.llen(queue_name(region)))


def _own(limits: Limits) -> tuple[float, float, float]:
    """A subscription's own limits in the order of the scripts' arguments."""
    return limits.max_outstanding, limits.rate, limits.burst


def _flat(tuples: Iterable[tuple[int | str, ...]]) -> list[Any]:
    return [part for fields in tuples for part in fields]


def _ids(names: Iterable[bytes]) -> set[int]:
    return {int(name) for name in names}
