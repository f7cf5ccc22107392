"""A fleet of push workers in simulated time: the law of rules.lua in each lane, and the costs that were measured.

A simulation by discrete events. Each worker computes on one core, and each cell has a Redis of its own, which runs one
script after the other. The database, publishing servers and the network cost no time. A nacked message waits in its
lane like a new one, without a countdown.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from math import inf
from typing import Any

from bench.law import Law, rule
from deliveries.rules.flow import Flow

#: The numbers of the worker (deliveries/push/, deliveries/backlog/workerverbs.py), whose modules need Django.
FETCH_SIZE, GATHER_SECONDS, MAX_SLEEP_SECONDS = 300, 0.02, 2.0
HEARTBEAT_SECONDS, DEAD_AFTER_MS = 1.0, 15_000
#: The numbers of pump.lua and fetch.lua.
QUEUE_DEPTH, SHORT_SLICE, SLICE_MS = 300, 16, 10
GROWTH_PER_MS, GROWTH_BURST = 3, 150
LOW_SHARE = 1 / 16
#: An endpoint that acks within this time is prompt (common.lua).
PROMPT_MS = 1000
#: A single message has three calls of its own: offer, fetch and settle.
CALLS = 3
SETTLE = """function(state, count, acked, latency_ms, now_ms, dice)
  for _ = 1, count do rules_return(state, false); rules_result(state, acked, latency_ms, now_ms, dice, false) end
end"""


@dataclass(frozen=True, slots=True)
class Costs:
    """Milliseconds of CPU."""

    call: float
    redis_message: float
    wake: float
    push: float
    look: float
    beat: float

    @classmethod
    def measured(cls, costs: Mapping[str, Any]) -> Costs:
        """Return what pushhub/capacity/costs.json has, where Redis' cost of a request is that of its calls."""
        redis, push, idle = costs["costs"]["redis_us"], costs["costs"]["push_us"], costs["idle_us"]
        return cls(
            call=redis["request"] / CALLS / 1000,
            redis_message=(redis["message"] + redis["delivery"]) / CALLS / 1000,
            wake=push["request"] / 1000,
            push=(push["message"] + push["delivery"]) / 1000,
            look=idle["look"] / 1000,
            beat=idle["beat"] / 1000,
        )


@dataclass(slots=True, eq=False)
class Lane:
    """A subscription: where it is, how its endpoint answers, and the times at which its waiting messages came."""

    cell: int
    latency_ms: float = 20.0
    acks: bool = True
    #: Whether messages wait at all times.
    is_full: bool = False
    kind: str = ""
    flow: Flow = field(default_factory=Flow)
    waiting: deque[float] = field(default_factory=deque)
    outstanding: int = 0
    pushed: int = 0
    settled: int = 0
    credit: float = 0.0
    pumped_ms: float = 0.0
    due_ms: float = inf
    law: Law = field(init=False)

    def __post_init__(self) -> None:
        self.law = Law(self.flow)

    @property
    def is_prompt(self) -> bool:
        state = self.law.state
        return self.acks and state["results_seen"] > 0 and state["latency_ms"] < PROMPT_MS


@dataclass(slots=True, eq=False)
class Group:
    """Messages of one lane that go together; `came_ms` has the time at which each came."""

    lane: Lane
    came_ms: list[float]


@dataclass(slots=True, eq=False)
class Worker:
    number: int
    is_alive: bool = True
    beat_ms: float = 0.0
    sleeps: int = 0
    held: set[Group] = field(default_factory=set)


class Redis:
    """A cell: its queues, and the time until which its one thread is busy."""

    def __init__(self) -> None:
        self.prompt: deque[Group] = deque()
        self.low: deque[Group] = deque()
        self.busy_until_ms = 0.0
        self.busy_ms = 0.0

    def serve(self, now_ms: float, cost_ms: float) -> float:
        """Run a call that comes now; return when its reply comes."""
        self.busy_ms += cost_ms
        self.busy_until_ms = max(self.busy_until_ms, now_ms) + cost_ms
        return self.busy_until_ms


class Fleet:
    """The simulation. `run` may be called again to go on."""

    def __init__(self, lanes: list[Lane], *, machines: int, cells: int, costs: Costs, seed: int) -> None:
        self.lanes, self.costs = lanes, costs
        self.dice = random.Random(seed)
        self.now_ms = 0.0
        self.cells = [Redis() for _ in range(cells)]
        self.workers = [Worker(number) for number in range(machines)]
        self._asleep = deque(self.workers)
        self._bell: dict[int, None] = {}
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        #: How long each settled message took since it came, as (settled at, ms); for messages that were offered.
        self.waits: list[tuple[float, float]] = []
        self.offered = self.fetches = self.put_back = 0
        for worker in self.workers:
            self.at(self.dice.random() * HEARTBEAT_SECONDS * 1000, lambda worker=worker: self._beat(worker))
            self.at(self.dice.random() * MAX_SLEEP_SECONDS * 1000, lambda worker=worker: self._look(worker))
        for lane in lanes:
            if lane.is_full:
                self.at(0.0, lambda lane=lane: self._pump(lane))

    @cached_property
    def _settle_law(self) -> Any:
        return rule(SETTLE)

    def at(self, when_ms: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when_ms, next(self._order), event))

    def run(self, until_ms: float) -> None:
        while self._events and self._events[0][0] <= until_ms:
            self.now_ms, _, event = heapq.heappop(self._events)
            event()
        self.now_ms = until_ms

    def offer(self, lane: Lane) -> None:
        """Publish a message to a lane."""
        self.offered += 1
        came_ms = self.now_ms
        done_ms = self.cells[lane.cell].serve(came_ms, self.costs.call + self.costs.redis_message)

        def arrive() -> None:
            lane.waiting.append(came_ms)
            self._pump(lane)

        self.at(done_ms, arrive)

    def kill(self, worker: Worker) -> None:
        worker.is_alive = False

    def held(self) -> int:
        """Return how many messages the queues and the workers have."""
        queued = [group for cell in self.cells for queue in (cell.prompt, cell.low) for group in queue]
        held = [group for worker in self.workers for group in worker.held]
        return sum(len(group.came_ms) for group in queued + held)

    def _pump(self, lane: Lane, returned: int = 0) -> None:
        """Do as pump.lua: fill the queue with what the law allows, in slices."""
        cell, law = self.cells[lane.cell], lane.law
        queue = cell.prompt if lane.is_prompt else cell.low
        now, state = self.now_ms, law.state
        is_cut, moved = False, 0
        if lane.is_full or lane.waiting:
            free = law.free(outstanding=lane.outstanding, now_ms=now) if now >= state["resume_ms"] else 0
            grown = min(lane.credit + GROWTH_PER_MS * (now - lane.pumped_ms), GROWTH_BURST)
            lane.credit, lane.pumped_ms = max(lane.credit, grown) + returned, now
            room = max(QUEUE_DEPTH - sum(len(group.came_ms) for group in queue), SHORT_SLICE)
            now_free = int(min(free, max(lane.credit, 1), room))
            is_cut = now_free < free
            moved = now_free if lane.is_full else min(now_free, len(lane.waiting))
        if moved > 0:
            lane.credit -= moved
            came = [now] * moved if lane.is_full else [lane.waiting.popleft() for _ in range(moved)]
            lane.outstanding += moved
            law.spend(moved, outstanding=lane.outstanding, now_ms=now)
            queue.append(Group(lane, came))
            self._ring(lane.cell)
        if lane.is_full or lane.waiting:
            self._schedule(lane, is_cut=is_cut)

    def _schedule(self, lane: Lane, *, is_cut: bool) -> None:
        law, now = lane.law, self.now_ms
        at_ms = now + SLICE_MS if is_cut else law.state["resume_ms"] if law.state["resume_ms"] > now else None
        if at_ms is None and lane.outstanding < law.tokens:
            at_ms = law.bucket_wait_ms(now_ms=now)
        if at_ms is None:
            return
        at_ms = max(at_ms, now + 1)
        if at_ms < lane.due_ms or lane.due_ms <= now:
            lane.due_ms = at_ms
            self.at(at_ms, lambda: self._wake(lane, at_ms))

    def _wake(self, lane: Lane, at_ms: float) -> None:
        if lane.due_ms == at_ms:
            lane.due_ms = inf
            self.cells[lane.cell].serve(self.now_ms, self.costs.call)
            self._pump(lane)

    def _ring(self, cell: int) -> None:
        self._bell[cell] = None
        while self._asleep and self._bell:
            worker = self._asleep.popleft()
            if worker.is_alive:
                worker.sleeps += 1
                self._fetch(worker)

    def _fetch(self, worker: Worker) -> None:
        """Take a batch of the cell that rang first, push it, and look at the bell again."""
        number = next(iter(self._bell))
        del self._bell[number]
        cell = self.cells[number]
        groups = self._take(cell)
        size = sum(len(group.came_ms) for group in groups)
        worker.held.update(groups)
        self.fetches += 1
        reply_ms = cell.serve(self.now_ms, self.costs.call + size * self.costs.redis_message)
        if cell.prompt or cell.low:
            self._ring(number)
        sent_ms = reply_ms + self.costs.wake
        for group in groups:
            sent_ms += len(group.came_ms) * self.costs.push
            ended_ms = sent_ms + group.lane.latency_ms * (0.8 + 0.4 * self.dice.random())
            group.lane.pushed += len(group.came_ms)
            self.at(ended_ms + GATHER_SECONDS * 1000, lambda group=group: self._settle(worker, group))
        self.at(sent_ms, lambda: self._sent(worker))

    def _take(self, cell: Redis) -> list[Group]:
        low_waiting = sum(len(group.came_ms) for group in cell.low)
        groups: list[Group] = []
        room = FETCH_SIZE - min(low_waiting, int(LOW_SHARE * FETCH_SIZE) + 1)
        for queue in (cell.prompt, cell.low):
            while queue and room > 0:
                group = queue[0]
                if len(group.came_ms) > room:
                    part, group.came_ms = Group(group.lane, group.came_ms[:room]), group.came_ms[room:]
                    groups.append(part)
                    room = 0
                else:
                    groups.append(queue.popleft())
                    room -= len(group.came_ms)
            room = FETCH_SIZE - sum(len(group.came_ms) for group in groups)
        return groups

    def _sent(self, worker: Worker) -> None:
        if not worker.is_alive:
            return
        if self._bell:
            self._fetch(worker)
        else:
            self._asleep.append(worker)

    def _settle(self, worker: Worker, group: Group) -> None:
        if not worker.is_alive or group not in worker.held:
            return
        worker.held.remove(group)
        lane, size = group.lane, len(group.came_ms)
        done_ms = self.cells[lane.cell].serve(self.now_ms, self.costs.call + size * self.costs.redis_message)

        def settled() -> None:
            lane.outstanding -= size
            lane.law.state["outstanding"] = lane.outstanding
            dice = self.dice.random()
            self._settle_law(lane.law.state, size, lane.acks, lane.latency_ms, self.now_ms, dice)
            if lane.acks:
                lane.settled += size
                if not lane.is_full:
                    self.waits += [(self.now_ms, self.now_ms - came_ms) for came_ms in group.came_ms]
            elif not lane.is_full:
                lane.waiting.extendleft(reversed(group.came_ms))
            self._pump(lane, size)

        self.at(done_ms, settled)

    def _beat(self, worker: Worker) -> None:
        """Beat in each cell; put back what workers hold that have been silent for too long."""
        if not worker.is_alive:
            return
        worker.beat_ms = self.now_ms
        for cell in self.cells:
            cell.serve(self.now_ms, self.costs.beat)
        for other in self.workers:
            if other.held and self.now_ms - other.beat_ms > DEAD_AFTER_MS:
                for group in other.held:
                    self.put_back += len(group.came_ms)
                    cell = self.cells[group.lane.cell]
                    (cell.prompt if group.lane.is_prompt else cell.low).appendleft(group)
                    self._ring(group.lane.cell)
                other.held.clear()
        self.at(self.now_ms + HEARTBEAT_SECONDS * 1000, lambda: self._beat(worker))

    def _look(self, worker: Worker) -> None:
        """Look at all cells, as a worker does whose bell was silent for long."""
        if not worker.is_alive:
            return
        if worker in self._asleep:
            for cell in self.cells:
                cell.serve(self.now_ms, self.costs.look)
        self.at(self.now_ms + MAX_SLEEP_SECONDS * 1000, lambda: self._look(worker))
