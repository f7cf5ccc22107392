"""What callers of the backlog and its scripts tell each other, and the keys that both know."""

from __future__ import annotations

import hashlib
import secrets
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal, NamedTuple, TypeVar

from django.conf import settings

from deliveries.backlog.codes import VERDICT_CODES, Mode
from deliveries.rules.limits import NO_LIMITS, Limits
from deliveries.rules.outcome import Verdict
from deliveries.rules.taskmessage import queue_name

Item = TypeVar("Item")
Key = TypeVar("Key")

#: All keys begin with it, but for Celery's and those of cells if there are several.
PREFIX = "ph:"
#: What `configure` does besides passing the settings on (configure.lua).
Action = Literal["new", "known", "spill", "anew"]


def cell_of(subscription_id: int) -> int:
    """Return the cell of a subscription's lanes, from 0 on. A script touches the keys of one cell only."""
    return subscription_id % settings.CELLS


def all_cells() -> range:
    return range(settings.CELLS)


def cell_prefix(cell: int | str) -> str:
    """Return the text with which all keys of a cell begin. A Redis Cluster keeps all keys of a {tag} together."""
    return PREFIX if settings.CELLS == 1 else f"ph{{{cell}}}:"


def cell_key(cell: int, name: str) -> str:
    """Return a key that all lanes of a cell share (common.lua)."""
    return cell_prefix(cell) + name


def cell_of_key(key: str) -> int:
    tag = key.partition("{")[2].partition("}")[0]
    return int(tag) if tag else 0


def bell_key(name: str) -> str:
    """Return the list that wakes a sleeping worker of a region, or the worker of this name.

    An entry of a region's bell is the number of a cell at which a worker should look.
    """
    return f"{PREFIX}bell:{name}"


def queue_key(region: str, *, cell: int) -> str:
    """Return kombu's queue, or the list that stands for it in a cell if there are several."""
    return queue_name(region) if settings.CELLS == 1 else cell_key(cell, queue_name(region))


def low_queue_key(region: str, *, cell: int) -> str:
    """Return the list of the queue's messages of the lowest priority (`low_of` in common.lua)."""
    return f"{queue_key(region, cell=cell)}\x06\x169"


def pull_bell(subscription_id: int) -> str:
    """Return the list that holds an entry while a waiting puller of the subscription should look at its lanes.

    A channel has the same name, for processes in which many wait.
    """
    return cell_key(cell_of(subscription_id), f"pull:{subscription_id}")


class Lane(NamedTuple):
    """One subscription's deliveries from one publish region; each lane has its own push window."""

    subscription_id: int
    region: str

    @property
    def key(self) -> str:
        """The lane's name in Redis, and in the log."""
        return f"{self.subscription_id}:{self.region}"

    @property
    def cell(self) -> int:
        return cell_of(self.subscription_id)

    @property
    def root(self) -> str:
        """The text with which the lane's keys begin (common.lua)."""
        return f"{cell_prefix(self.cell)}{self.subscription_id}:{self.region}"

    @property
    def state_key(self) -> str:
        """The hash that holds the lane's state."""
        return f"{self.root}:s"

    @property
    def places_key(self) -> str:
        """The hash that holds the place of each delivery."""
        return f"{self.root}:d"

    @classmethod
    def parse(cls, key: bytes | str) -> Lane:
        subscription_id, _, region = (key.decode() if isinstance(key, bytes) else key).partition(":")
        return cls(int(subscription_id), region)


def grouped(items: Iterable[Item], key_of: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """Group items by their keys, for instance by their lanes, in order."""
    groups: dict[Key, list[Item]] = defaultdict(list)
    for item in items:
        groups[key_of(item)].append(item)
    return groups


def draw_generation() -> str:
    """Return the generation of a lane that is made now (common.lua): 48 random bits, without a dot or a comma."""
    return secrets.token_urlsafe(6)


@lru_cache(maxsize=10_000)
def settings_text(mode: Mode, limits: Limits, ordered: bool) -> str:
    """Return the settings of a new lane as offer.lua takes them."""
    return ",".join(map(str, (int(mode), *limits, int(ordered))))


class OfferedLane(NamedTuple):
    """A lane, with the mode and the limits that it gets if Redis does not know it yet."""

    lane: Lane
    mode: Mode
    limits: Limits = NO_LIMITS
    ordered: bool = False


def key_digest(ordering_key: str) -> str:
    """Return the short form of an ordering key that Redis holds; "" for no key."""
    return hashlib.blake2s(ordering_key.encode(), digest_size=12).hexdigest() if ordering_key else ""


def is_left(message_id: int, ordering_key: str, keys: Mapping[str, int]) -> bool:
    """Return whether a lane leaves a message to the database: `keys` has the first one of ordering keys, by digest."""
    return message_id >= keys.get(key_digest(ordering_key), message_id + 1)


class OfferedMessage(NamedTuple):
    """A message of an offer. Ordered lanes need its ordering key, too."""

    message_id: int
    #: JSON text that `taskmessage.escape_message` returned.
    text: str
    #: Its `key_digest`; "" too if no lane of the offer is ordered.
    key: str = ""
    #: The message before it in its key: 0 if the database had none, None if nobody knows.
    before: int | None = None


@dataclass(frozen=True, slots=True)
class Offer:
    """New deliveries of the same messages, in the order of ids, in lanes of one region."""

    region: str
    lanes: Sequence[OfferedLane]
    messages: Sequence[OfferedMessage]


@dataclass(frozen=True, slots=True)
class Configuration:
    """The settings that a lane gets from its subscription, and what else becomes of it (configure.lua)."""

    lane: Lane
    mode: Mode
    action: Action
    from_id: int = 0
    limits: Limits = NO_LIMITS
    ordered: bool = False
    push_config: int = 0


@dataclass(frozen=True, slots=True)
class PageRequest:
    """A page that a lane with little in Redis wants: the rows from `from_id` on. Its number says whether it is overdue.

    Rows up to `read_to` may have been in Redis before. The page belongs to one generation of the lane.
    """

    lane: Lane
    from_id: int
    number: int
    read_to: int
    generation: str
    #: How many rows the lane wants at most.
    rows: int
    #: Whether all but small payloads stay in the database.
    is_lean: bool
    #: Whether the lane's pages go before those of lanes that are not prompt.
    is_prompt: bool = False
    is_ordered: bool = False
    #: Whether it is for one row that has not failed yet, wherever it is (request_page in common.lua).
    is_probe: bool = False
    #: Whether it is for messages of `keys` alone, up to `rows` of each.
    is_of_keys: bool = False
    #: Digests of ordering keys, each with the first of its messages that the lane has left to the database.
    keys: Mapping[str, int] = field(default_factory=dict, kw_only=True)

    @classmethod
    def parse(cls, lane: Lane, fields: Sequence[Any]) -> PageRequest:
        """Return the request for which request_page (common.lua) returned these fields."""
        from_id, number, read_to, generation, rows, *flags, keys = fields
        pairs = (pair.split(":") for pair in keys.decode().split(",") if pair)
        numbers = int(from_id), int(float(number)), int(read_to), generation.decode(), rows
        return cls(lane, *numbers, *map(bool, flags), keys={key: int(first_id) for key, first_id in pairs})

    @classmethod
    def parse_all(cls, fields: Sequence[Any]) -> list[PageRequest]:
        """Return the requests in the reply of fetch.lua."""
        return [cls.parse(Lane.parse(fields[i]), fields[i + 1 : i + 12]) for i in range(0, len(fields), 12)]


class Page(NamedTuple):
    """A page that was read from the database."""

    request: PageRequest
    #: Ids and complete Celery messages.
    messages: Sequence[tuple[int, str]]
    #: The id to read on from. A page of ordering keys has one for each, or "" if the database has no more of it.
    next_id: int | Mapping[str, int | str]
    #: Whether the database has no more.
    is_last: bool
    #: For an ordered lane the digest of each message's ordering key, or "" for no key.
    orderings: Sequence[str] = ()


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
    #: The lane's generation.
    generation: str

    @classmethod
    def parse(cls, lane: Lane, reply: Sequence[Any]) -> Leases:
        """Return what lease.lua returned for a lane that Redis knows."""
        leased, wanted, ends_ms, generation = reply
        page = PageRequest.parse(lane, wanted) if wanted else None
        fields = zip(leased[0::4], leased[1::4], leased[2::4], leased[3::4], strict=True)
        deliveries = [LeasedDelivery(int(name), task, times, attempts) for name, task, times, attempts in fields]
        return cls(deliveries, page, ends_ms, generation.decode())


class Result(NamedTuple):
    """How an attempt at a delivery ended, as settle.lua takes it."""

    message_id: str
    code: str
    latency_ms: str
    #: The generation of the lane for which it was sent; "" in a result of an older version.
    generation: str
    #: The worker's lease when it was fetched; "" for callers without one.
    lease: str
    #: Where the worker's record has it (record.lua): "<worker>/<batch>"; "" for callers without a record.
    batch: str


@dataclass(slots=True)
class Settlement:
    """Results of one lane, in their order."""

    results: list[Result] = field(default_factory=list)
    #: For each nack and release: the delay in ms and the task message of the next attempt.
    returned: list[str | int] = field(default_factory=list)

    def add(
        self,
        message_id: str,
        verdict: Verdict,
        latency_ms: float = 0.0,
        *,
        attempt: int = 1,
        generation: str = "",
        lease: str = "",
        batch: str = "",
    ) -> None:
        code = VERDICT_CODES[verdict]
        code = code.upper() if attempt > 1 else code
        self.results.append(Result(message_id, code, f"{latency_ms:.3f}", generation, lease, batch))

    @property
    def arguments(self) -> list[str | int]:
        """The results as settle.lua takes them."""
        ids, codes, latencies, *others = zip(*self.results, strict=True) if self.results else [()] * len(Result._fields)
        return [",".join(ids), "".join(codes), ",".join(latencies), *map(_joined, others), *self.returned]


def _joined(values: Sequence[str]) -> str:
    """Return values as settle.lua takes them: one, if it is the same for all results."""
    return values[0] if len(set(values)) == 1 else ",".join(values)


class Take(NamedTuple):
    """Up to `most` messages of a region's queue that a worker wants as a batch (take.lua)."""

    #: The key of the worker's record.
    work: str
    region: str
    batch: str
    most: int
    #: The worker's lease.
    lease: str
    #: The cell of the queue and of the record.
    cell: int = 0


class Taken(NamedTuple):
    """The messages of a batch, and the epoch of the subscriptions' settings at that time."""

    batch: str
    messages: list[bytes]
    epoch: int
    cell: int = 0


class Late(NamedTuple):
    """Deliveries that have ended, and that wait in a generation of their lane that was made meanwhile (late.py)."""

    generation: str
    message_ids: list[int]

    @classmethod
    def parse(cls, names: Sequence[bytes], generation: bytes) -> Late | None:
        return cls(generation.decode(), [int(name) for name in names]) if names else None


@dataclass(frozen=True, slots=True)
class LaneFlow:
    """A lane after a settle: its push window, and how long its push backoff holds the next delivery back."""

    window: int
    backoff_ms: int
    #: How many more deliveries may go out before one waits for a token; 0 if one waits or more than half are in use.
    #: It is -1 if one waits for a result of its ordering key.
    spare: int = 0
    #: The time of the settle in ms since 1970, by Redis' clock, from which the delays of nacks count.
    settled_ms: int = 0
    late: Late | None = None
    #: Whether its messages go before those of lanes whose endpoints are slow, down or not tried yet.
    is_prompt: bool = False


@dataclass(frozen=True, slots=True)
class Health:
    """What a heartbeat reveals of a cell."""

    was_wiped: bool
    put_back: int
    #: Regions that no worker serves, with the seconds since a worker did.
    silent_regions: dict[str, float]
    #: Whether the worker still has the lease that it renewed.
    holds_lease: bool
    #: About how many bytes the deliveries take in Redis.
    bytes_held: int

    @classmethod
    def parse(cls, reply: Sequence[Any]) -> Health:
        """Return what beat.lua returned."""
        wiped, put_back, silent, holds, bytes_held = reply
        silences = {name.decode(): int(ms) / 1000 for name, ms in zip(silent[0::2], silent[1::2], strict=True)}
        return cls(bool(wiped), int(put_back), silences, bool(holds), int(bytes_held))

    @classmethod
    def of_all(cls, healths: Collection[Health]) -> Health:
        """Return what heartbeats in cells reveal together. Only the first cell has regions."""
        return cls(
            any(health.was_wiped for health in healths),
            sum(health.put_back for health in healths),
            {name: seconds for health in healths for name, seconds in health.silent_regions.items()},
            all(health.holds_lease for health in healths),
            sum(health.bytes_held for health in healths),
        )


def work_key(worker: str, *, cell: int = 0) -> str:
    """Return the record of what a worker has fetched from a cell (record.lua)."""
    return cell_key(cell, f"work:{worker}")
