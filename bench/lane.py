"""A lane in simulated time: the real rules of flow control between an offered load and a model of an endpoint."""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

from deliveries.rules import flow as rules
from deliveries.rules import retry
from deliveries.rules.flow import Flow


@dataclass(frozen=True, slots=True)
class Request:
    """What an endpoint model sees of one attempt: when, the how manieth, and how many are outstanding with it."""

    now_ms: float
    number: int
    outstanding: int
    dice: random.Random


@dataclass(frozen=True, slots=True)
class Answer:
    """What an endpoint model makes of it."""

    acked: bool
    latency_ms: float


Endpoint = Callable[[Request], Answer]


@dataclass(frozen=True, slots=True)
class Sample:
    """The lane at one moment."""

    now_ms: float
    window: float
    outstanding: int
    backlog: int
    level: float
    paused: bool
    sent: int
    acked: int


@dataclass(slots=True)
class History:
    """What happened: when each attempt was sent, each pause as (from, to) in ms, and samples at even distances."""

    sent_ms: list[float] = field(default_factory=list)
    acked: int = 0
    nacked: int = 0
    pauses: list[tuple[float, float]] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)

    def mean_gap_ms(self, *, after_ms: float = 0.0) -> float:
        """The mean time between deliveries, from the first one after `after_ms` on."""
        late = [at for at in self.sent_ms if at >= after_ms]
        return (late[-1] - late[0]) / (len(late) - 1)

    def per_second(self, *, from_ms: float, to_ms: float) -> float:
        return sum(from_ms <= at < to_ms for at in self.sent_ms) * 1000 / (to_ms - from_ms)


class Lane:
    """Discrete events: a message arrives, an attempt ends, a pause or a countdown is over, a sample is due."""

    def __init__(self, endpoint: Endpoint, *, per_second: float, waiting: int = 0, seed: int = 1, flow: Flow) -> None:
        self.endpoint = endpoint
        self.flow = flow
        self.dice = random.Random(seed)
        self.gap_ms = 1000 / per_second if per_second else None
        self.history = History()
        self.now_ms = 0.0
        self.outstanding = 0
        self._ready: deque[int] = deque([1] * waiting)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()

    def run(self, seconds: float, *, samples: int = 600) -> History:
        end_ms, step_ms = seconds * 1000, seconds * 1000 / samples
        for i in range(samples):
            self._at(i * step_ms, self._sample)
        if self.gap_ms:
            self._at(0.0, self._arrive)
        self._pump()
        while self._events and self._events[0][0] <= end_ms:
            self.now_ms, _, event = heapq.heappop(self._events)
            event()
        return self.history

    def _at(self, when_ms: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when_ms, next(self._order), event))

    def _arrive(self) -> None:
        assert self.gap_ms
        self._ready.append(1)
        self._at(self.now_ms + self.gap_ms, self._arrive)
        self._pump()

    def _return(self, attempt: int) -> None:
        """A nacked message's countdown is over; like the pump, retries go first."""
        self._ready.appendleft(attempt)
        self._pump()

    def _pump(self) -> None:
        free = min(rules.free(self.flow, outstanding=self.outstanding, now_ms=self.now_ms), len(self._ready))
        if free:
            self.outstanding += free
            self.flow = rules.sent(self.flow, count=free, outstanding=self.outstanding, now_ms=self.now_ms)
        for _ in range(free):
            self._push(self._ready.popleft())
        wait_ms = rules.bucket_wait_ms(self.flow, now_ms=self.now_ms)
        if self._ready and wait_ms is not None:
            self._at(wait_ms + 0.001, self._pump)

    def _push(self, attempt: int) -> None:
        history = self.history
        request = Request(self.now_ms, len(history.sent_ms) + 1, self.outstanding, self.dice)
        history.sent_ms.append(self.now_ms)
        answer = self.endpoint(request)
        self._at(self.now_ms + answer.latency_ms, lambda: self._settle(attempt, answer))

    def _settle(self, attempt: int, answer: Answer) -> None:
        self.outstanding -= 1
        resume_ms = self.flow.backoff.resume_ms
        self.flow = rules.result(
            self.flow,
            acked=answer.acked,
            latency_ms=answer.latency_ms,
            now_ms=self.now_ms,
            dice=self.dice.random(),
        )
        if self.flow.backoff.resume_ms > resume_ms:
            self.history.pauses.append((self.now_ms, self.flow.backoff.resume_ms))
            self._at(self.flow.backoff.resume_ms, self._pump)
        if answer.acked:
            self.history.acked += 1
        else:
            self.history.nacked += 1
            delay_ms = retry.countdown_ms(attempt, dice=self.dice.random())
            self._at(self.now_ms + delay_ms, lambda: self._return(attempt + 1))
        self._pump()

    def _sample(self) -> None:
        self.history.samples.append(
            Sample(
                now_ms=self.now_ms,
                window=self.flow.window.size,
                outstanding=self.outstanding,
                backlog=len(self._ready),
                level=self.flow.backoff.level,
                paused=self.now_ms < self.flow.backoff.resume_ms,
                sent=len(self.history.sent_ms),
                acked=self.history.acked,
            )
        )
