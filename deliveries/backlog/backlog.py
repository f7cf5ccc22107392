"""The backlog in Redis: a typed call for each Lua script, without rules of its own."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import redis
from django.conf import settings

from deliveries.backlog.codes import STATE_CODES
from deliveries.backlog.connection import Steps, cells_client, redis_client
from deliveries.backlog.lanestate import (
    SUMMARY_CODES,
    LaneState,
    LaneSummary,
    parse_lane_state,
    parse_lane_summary,
)
from deliveries.backlog.offering import MAX_OFFER_WEIGHT, split_offers, weigh_offer
from deliveries.backlog.records import (
    Configuration,
    Lane,
    LaneFlow,
    Late,
    Leases,
    Offer,
    Page,
    PageRequest,
    Settlement,
    Take,
    Taken,
    cell_of_key,
    cell_prefix,
    draw_generation,
    pull_bell,
    queue_key,
    settings_text,
)
from deliveries.backlog.scripts import Call, Clients, answered, call_all, call_each, try_each
from deliveries.backlog.workerverbs import WorkerVerbs
from deliveries.rules.shards import is_in
from deliveries.rules.taskmessage import task_parts

#: Lanes that are read in one round trip, lanes that are configured in one, and keys that one step of a search looks at.
LANES_TOGETHER, MAX_CONFIGURED, SCANNED = 4000, 200, 10_000
#: Lanes that a single Redis pumps in one round trip. A lane takes about 0.2 ms, in which it serves nobody else.
LANES_AT_ONCE = 8
#: Lanes at which it looks in one, each for about 0.01 ms.
LOOKS_AT_ONCE = 100
#: In place of how often a delivery had been leased: an ack of whichever lease it has (acknowledge.lua).
WHICHEVER = 0


class Backlog(WorkerVerbs):
    """The verbs of a backlog. Every call may raise redis.RedisError; none leaves a step half done."""

    def __init__(
        self,
        client: redis.Redis | None = None,
        *,
        clients: Clients | None = None,
        limit: int | None = None,
        dice: Callable[[], float] = random.random,
        draw_generation: Callable[[], str] = draw_generation,
    ) -> None:
        """`client` is for all keys. By default the clients are those of the settings."""
        own = Clients(client, client) if client else Clients(cells_client(), redis_client())
        super().__init__(clients or own)
        self.limit = limit or settings.BACKLOG_LIMIT
        #: Numbers in [0, 1) for the jitter of countdowns.
        self._dice = dice
        self._draw_generation = draw_generation

    def offer(self, offers: Iterable[Offer]) -> None:
        """Append new deliveries to their lanes, in as few round trips as do not block Redis for long.

        Redis runs the calls of a round trip one after the other, and may answer nobody else meanwhile.
        """
        steps = Steps()
        calls: list[tuple[list[str], list[Any]]] = []
        weight = 0
        for offer, lanes, messages in split_offers(offers):
            call_weight = weigh_offer(lanes, messages)
            if calls and weight + call_weight > MAX_OFFER_WEIGHT:
                with steps:
                    call_all(self.clients, self.scripts.offer, calls)
                calls, weight = [], 0
            keys = [offered.lane.root for offered in lanes]
            settings_texts = [settings_text(offered.mode, offered.limits, offered.ordered) for offered in lanes]
            is_ordered = any(offered.ordered for offered in lanes)
            fields = [
                (it.message_id, it.text, it.key, "" if it.before is None else it.before) if is_ordered else it[:2]
                for it in messages
            ]
            fixed = [self.limit, self._draw_generation(), *task_parts(offer.region), len(fields[0])]
            calls.append((keys, [*fixed, *settings_texts, *_flat(fields)]))
            weight += call_weight
        if calls:
            with steps:
                call_all(self.clients, self.scripts.offer, calls)
        steps.end()

    def offer_pages(self, pages: Iterable[Page]) -> None:
        """Append a page to the backlog of each lane. A page that its lane no longer expects is dropped (page.lua)."""
        calls = []
        for request, messages, next_id, is_last, orderings in pages:
            text = str(next_id) if isinstance(next_id, int) else ",".join(f"{key}:{it}" for key, it in next_id.items())
            fixed = [self.limit, text, request.number, request.generation, int(is_last), ",".join(orderings)]
            flags = [int(request.is_lean), 2 if request.is_of_keys else int(request.is_probe)]
            calls.append((self.scripts.page, [request.lane.root], [*fixed, *flags, *_flat(messages)]))
        call_each(self.clients, calls, together=LANES_AT_ONCE)

    def wanted(self, requests: Sequence[PageRequest]) -> list[PageRequest]:
        """Return the requests of those lanes that still expect their page, so that page.lua would take it."""
        fields = [STATE_CODES[name] for name in ("generation", "page_number", "paging_until_ms")]
        by_lane = {request.lane: request for request in requests}
        wanted = []
        for lane, (generation, number, until) in self._of_each(
            list(by_lane), lambda pipe, lane: pipe.hmget(lane.state_key, fields)
        ):
            request = by_lane[lane]
            is_requested = float(number or 0) == request.number and float(until or 0) > 0
            if is_requested and generation == request.generation.encode():
                wanted.append(request)
        return wanted

    def settle(
        self, settlements: dict[Lane, Settlement], *, dice: float, finished: Mapping[str, Sequence[str]]
    ) -> dict[Lane, LaneFlow]:
        """End the leases of a batch. `finished` has the batches that are done by the key of their worker's record."""
        flows, _ = self.settle_and_take(settlements, dice=dice, finished=finished, takes=[])
        if left := settlements.keys() - flows.keys():
            raise redis.ConnectionError(f"the nodes of {len(left)} lanes are away")
        return flows

    def settle_and_take(
        self,
        settlements: dict[Lane, Settlement],
        *,
        dice: float,
        finished: Mapping[str, Sequence[str]],
        takes: Sequence[Take],
    ) -> tuple[dict[Lane, LaneFlow], list[Taken]]:
        """Settle, and take messages from queues in the last round trip (take.lua).

        On a Cluster, lanes whose nodes are away have no flow, and are to be settled again.
        """
        places = {(take.region, take.cell) for take in takes}
        calls: list[Call] = [
            (
                self.scripts.settle,
                [lane.root],
                [self.limit, repr(dice), int((lane.region, lane.cell) in places), *settlement.arguments],
            )
            for lane, settlement in settlements.items()
        ]
        calls += [(self.scripts.take, [queue_key(take.region, cell=take.cell), take.work], take[1:5]) for take in takes]
        works = [work for work, batches in finished.items() if batches]
        calls += [(self.scripts.finish, [work], finished[work]) for work in works]
        replies = try_each(self.clients, calls, together=LANES_AT_ONCE)
        done = dict(answered(works, replies[len(settlements) + len(takes) :]))
        away = {cell_of_key(work) for work in works if work not in done}
        flows = {
            lane: LaneFlow(
                int(window), int(pause), int(spare), int(now_ms), Late.parse(names, generation), bool(is_prompt)
            )
            for lane, (_settled, _page, window, pause, spare, now_ms, names, generation, is_prompt) in answered(
                settlements, replies
            )
            if lane.cell not in away
        }
        taken = [
            Taken(take.batch, messages, int(epoch), take.cell)
            for take, (messages, epoch) in answered(takes, replies[len(settlements) :])
        ]
        return flows, taken

    def tokens(self, lanes: Sequence[Lane]) -> dict[Lane, list[int]]:
        """Return the deliveries of each lane that hold a token (tokens.lua)."""
        tokens: dict[Lane, list[int]] = {}
        for start in range(0, len(lanes), LANES_TOGETHER):
            chunk = lanes[start : start + LANES_TOGETHER]
            replies = call_all(self.clients, self.scripts.tokens, [([lane.root], []) for lane in chunk])
            tokens |= {lane: [int(name) for name in names] for lane, names in zip(chunk, replies, strict=True)}
        return tokens

    def repair(self, lane: Lane, message_ids: Sequence[int], *, generation: str) -> int:
        """Take back tokens of deliveries lost in this generation, which are then read from the database again."""
        return int(self.scripts.repair(keys=[lane.root], args=[self.limit, generation, *message_ids]))

    def lanes(self) -> list[Lane]:
        # "*" stands for the numbers of all cells.
        keys = self.client.scan_iter(match=f"{cell_prefix('*')}*:s", count=SCANNED)
        return [Lane.parse(key.removesuffix(b":s").split(b":", 1)[1]) for key in keys]

    def configure_all(self, configurations: Iterable[Configuration]) -> None:
        """Pass settings on to lanes, in as few round trips as do not block Redis for long."""
        calls: list[tuple[list[str], list[Any]]] = [
            (
                [wanted.lane.root],
                [
                    *(int(wanted.mode), self.limit, wanted.action, wanted.from_id, *wanted.limits),
                    *(int(wanted.ordered), wanted.push_config, self._draw_generation()),
                ],
            )
            for wanted in configurations
        ]
        steps = Steps()
        for start in range(0, len(calls), MAX_CONFIGURED):
            with steps:
                call_all(self.clients, self.scripts.configure, calls[start : start + MAX_CONFIGURED])
        steps.end()

    def lease(
        self, lane: Lane, *, count: int, duration_ms: int, countdown_ms: tuple[int, int], puller: str = ""
    ) -> Leases | None:
        """Lease up to `count` deliveries to a puller (lease.lua). Return None if Redis does not know the lane."""
        args: list[Any] = [count, duration_ms, self.limit, *countdown_ms, repr(self._dice()), puller]
        reply = self.scripts.lease(keys=[lane.root], args=args)
        return None if reply is None else Leases.parse(lane, reply)

    def extend(
        self,
        lane: Lane,
        leases: Iterable[tuple[int, int]],
        *,
        generation: str,
        duration_ms: int,
        countdown_ms: tuple[int, int],
    ) -> set[int]:
        """Move the end of leases, or nack them with a duration of 0. Return the deliveries whose leases have ended.

        A lease is a pair of a delivery and the number of its leases so far, in this generation of the lane.
        """
        args: list[Any] = [duration_ms, *countdown_ms, repr(self._dice()), generation, *_flat(leases)]
        return _ids(self.scripts.extend(keys=[lane.root], args=args))

    def lost(self, lane: Lane, leases: Iterable[tuple[int, int]], *, generation: str) -> set[int]:
        """Return the deliveries whose leases have ended."""
        return _ids(self.scripts.leased(keys=[lane.root], args=[generation, *_flat(leases)]))

    def accept(self, lane: Lane, leases: Iterable[tuple[int, int]], *, generation: str) -> set[int]:
        """Note acks; return the deliveries whose leases have ended otherwise (accept.lua)."""
        return _ids(self.scripts.accept(keys=[lane.root], args=[generation, *_flat(leases)]))

    def unlease(self, lane: Lane, leases: Iterable[tuple[int, int, int]], *, generation: str) -> None:
        """Take back leases without costing an attempt (unlease.lua).

        A lease is a delivery, how often it was leased, and its end in ms.
        """
        args = [part for lease in leases for part in lease]
        if args:
            self.scripts.unlease(keys=[lane.root], args=[generation, *args])

    def hand_over(self, lane: Lane, puller: str) -> None:
        """Leave the ordering keys of a stream that has closed to the other streams of its client (handover.lua)."""
        self.scripts.handover(keys=[lane.root], args=[puller])

    def acknowledge(
        self, lane: Lane, leases: Iterable[tuple[int, int]], *, generation: str
    ) -> tuple[set[int], set[int]]:
        """Take acks of an ordered lane; return what the database may forget now, and whose acks change nothing.

        `leases` has deliveries, and how often each had been leased then, or `WHICHEVER`.
        """
        owed_no_more, vain = self.scripts.acknowledge(keys=[lane.root], args=[generation, *_flat(leases)])
        return _ids(owed_no_more), _ids(vain)

    def remove(
        self, lane: Lane, message_ids: Sequence[int], *, generation: str = "", only_waiting: bool = False
    ) -> Late | None:
        """Forget deliveries that have left the database, in this generation of the lane or in whichever there is.

        With `only_waiting`, leave those that have a token or a lease. Return those that wait in another generation.
        """
        args: list[Any] = [self.limit, generation, int(not only_waiting), *message_ids]
        return Late.parse(*self.scripts.remove(keys=[lane.root], args=args))

    def due(self, lanes: Sequence[Lane]) -> list[Lane]:
        """Return the lanes from which a puller may get something now (due.lua), of those whose nodes are there."""
        calls: list[Call] = [(self.scripts.due, [lane.root], []) for lane in lanes]
        replies = try_each(self.clients, calls, together=LOOKS_AT_ONCE)
        return [lane for lane, is_due in answered(lanes, replies) if is_due]

    def views(self, lanes: Sequence[Lane], *, retries: int) -> dict[Lane, Any]:
        """Return what people want to know of lanes (view.lua), of those whose nodes are there."""
        calls: list[Call] = [(self.scripts.view, [lane.root], [retries]) for lane in lanes]
        return dict(answered(lanes, try_each(self.clients, calls)))

    def wait_for_pull(self, subscription_id: int, *, seconds: float) -> None:
        """Sleep until a pull subscription may have messages, at most this long."""
        self.client.brpop([pull_bell(subscription_id)], timeout=seconds)

    def forget(self, lane: Lane) -> None:
        self.scripts.forget(keys=[lane.root])

    def leases_spent(self, lane: Lane, message_ids: Sequence[int]) -> dict[int, int]:
        """Return how many leases have cost each delivery an attempt, one that still holds included."""
        names = [str(message_id) for message_id in message_ids]
        pipe = self.client.pipeline(transaction=False)
        pipe.hmget(f"{lane.root}:a", names)
        pipe.hmget(f"{lane.root}:e", names)
        counts = zip(message_ids, *pipe.execute(), strict=True)
        return {message_id: int(times or 0) - int(taken_back or 0) for message_id, times, taken_back in counts}

    def states(self, lanes: Sequence[Lane]) -> list[LaneState | None]:
        """Return the state of each lane; None for one that Redis does not know."""
        replies = self._of_each(lanes, lambda pipe, lane: pipe.hgetall(lane.state_key))
        return [parse_lane_state(fields) for _, fields in replies]

    def summaries(self, *, shard: int | None = None) -> dict[Lane, LaneSummary]:
        """Return the summary of each lane that Redis knows, or of those of a shard."""
        return self.summaries_of([lane for lane in self.lanes() if is_in(lane.subscription_id, shard)])

    def summaries_of(self, lanes: Sequence[Lane]) -> dict[Lane, LaneSummary]:
        """Return the summaries of those lanes that Redis knows."""
        replies = self._of_each(lanes, lambda pipe, lane: pipe.hmget(lane.state_key, SUMMARY_CODES))
        summaries = ((lane, parse_lane_summary(values)) for lane, values in replies)
        return {lane: summary for lane, summary in summaries if summary is not None}

    def missing(self, message_ids: Mapping[Lane, Sequence[str]]) -> dict[Lane, list[str]]:
        """Return the deliveries of each lane that Redis does not have; lanes without any are left out."""
        asked = [lane for lane, names in message_ids.items() if names]
        replies = self._of_each(asked, lambda pipe, lane: pipe.hmget(lane.places_key, message_ids[lane]))
        missing = {
            lane: [name for name, place in zip(message_ids[lane], places, strict=True) if place is None]
            for lane, places in replies
        }
        return {lane: names for lane, names in missing.items() if names}

    def left_keys(self, lane: Lane) -> dict[str, int]:
        """Return digests of the ordering keys that a lane has left to the database, each with its first such message.

        One that neither waits for a message in Redis nor is to be read, as older versions may leave it, is left out.
        """
        pipe = self.client.pipeline(transaction=False)
        pipe.hgetall(f"{lane.root}:w")
        pipe.hkeys(f"{lane.root}:k")
        pipe.smembers(f"{lane.root}:y")
        left, waiting, read_next = pipe.execute()
        going_on = {*waiting, *read_next}
        return {key.decode(): int(text.split()[0]) for key, text in left.items() if key in going_on}

    def _of_each(
        self, lanes: Sequence[Lane], command: Callable[[redis.client.Pipeline, Lane], object]
    ) -> Iterator[tuple[Lane, Any]]:
        """Yield each lane with the reply to its command, many in a round trip."""
        for start in range(0, len(lanes), LANES_TOGETHER):
            chunk = lanes[start : start + LANES_TOGETHER]
            pipe = self.client.pipeline(transaction=False)
            for lane in chunk:
                command(pipe, lane)
            yield from zip(chunk, pipe.execute(), strict=True)


def _flat(tuples: Iterable[tuple[int | str, ...]]) -> list[Any]:
    return [part for fields in tuples for part in fields]


def _ids(names: Iterable[bytes]) -> set[int]:
    return {int(name) for name in names}
