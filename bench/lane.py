"""A lane in simulated time: the real rules of flow control, between an offered load and a model of an endpoint."""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count, pairwise
from typing import NamedTuple

from bench.law import Law
from deliveries.rules import retry
from deliveries.rules.flow import Flow, Phase


class Request(NamedTuple):
    """What an endpoint model sees of an attempt: its time, its number among all attempts, and its message."""

    now_ms: float
    number: int
    message: int
    dice: random.Random


class Answer(NamedTuple):
    """What an endpoint model answers."""

    acked: bool
    latency_ms: float


Endpoint = Callable[[Request], Answer]


@dataclass(frozen=True, slots=True)
class Sample:
    """The state of the lane at one moment."""

    now_ms: float
    window: float
    outstanding: int
    backlog: int
    level: float
    share: float
    gap_ms: float
    phase: Phase
    #: Whether nacks are due to bad messages.
    poisoned: bool
    sent: int
    acked: int
    nacked: int
    #: The sum of the latencies of all acks.
    latency_ms: float


@dataclass(slots=True)
class History:
    """What happened: the time of each attempt, each pause as (from, to) in ms, and samples at regular intervals."""

    sent_ms: list[float] = field(default_factory=list)
    acked: int = 0
    nacked: int = 0
    latency_ms: float = 0.0
    dead_lettered: int = 0
    #: The first ack of a request that was sent after the first pause.
    healed_ms: float = 0.0
    pauses: list[tuple[float, float]] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)

    def at(self, seconds: float) -> Sample:
        """Return the sample that is closest to a moment."""
        return min(self.samples, key=lambda sample: abs(sample.now_ms - seconds * 1000))

    def acks_per_second(self, from_seconds: float, to_seconds: float) -> float:
        first, last = self.at(from_seconds), self.at(to_seconds)
        return (last.acked - first.acked) * 1000 / (last.now_ms - first.now_ms)

    def nacks(self, from_seconds: float, to_seconds: float) -> float:
        """Return the share of nacks among the results of a period."""
        first, last = self.at(from_seconds), self.at(to_seconds)
        nacks = last.nacked - first.nacked
        return nacks / max(nacks + last.acked - first.acked, 1)

    def mean_latency_ms(self, from_seconds: float, to_seconds: float) -> float:
        """Return the mean over the acks of a period."""
        first, last = self.at(from_seconds), self.at(to_seconds)
        return (last.latency_ms - first.latency_ms) / (last.acked - first.acked)

    def gaps_ms(self, *, after_ms: float = 0.0) -> list[float]:
        """Return the times between deliveries, beginning with the first delivery after `after_ms`."""
        late = [at for at in self.sent_ms if at >= after_ms]
        return [after - before for before, after in pairwise(late)]

    def mean_gap_ms(self, *, after_ms: float = 0.0) -> float:
        gaps = self.gaps_ms(after_ms=after_ms)
        return sum(gaps) / len(gaps)

    def per_second(self, *, from_ms: float, to_ms: float) -> float:
        return sum(from_ms <= at < to_ms for at in self.sent_ms) * 1000 / (to_ms - from_ms)


class Lane:
    """A simulation by discrete events: arrivals of messages, ends of attempts, pauses and countdowns, and samples."""

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        per_second: float = 0,
        waiting: int = 0,
        seed: int = 1,
        flow: Flow | None = None,
        max_attempts: int = 0,
    ) -> None:
        self.endpoint = endpoint
        self.law = Law(flow)
        self.dice = random.Random(seed)
        self.gap_ms = 1000 / per_second if per_second else None
        #: The number of attempts after which a message goes to the dead letters; 0 for no limit.
        self.max_attempts = max_attempts
        self.history = History()
        self.now_ms = 0.0
        self.outstanding = 0
        self._waiting = waiting
        self._messages = count(1)
        #: Retries that are due: message and number of its next attempt.
        self._due: deque[tuple[int, int]] = deque()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._pump_ms = -1.0

    def run(self, seconds: float, *, samples: int = 600) -> History:
        end_ms, step_ms = seconds * 1000, seconds * 1000 / samples
        for i in range(samples + 1):
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
        self._waiting += 1
        self._at(self.now_ms + self.gap_ms, self._arrive)
        self._pump()

    def _return(self, message: int, attempt: int) -> None:
        """Send a nacked message again, as its countdown is over. Retries go first, as in the pump."""
        self._due.append((message, attempt))
        self._pump()

    def _pump(self) -> None:
        free, most, first = self.law.room(outstanding=self.outstanding, now_ms=self.now_ms)
        if free and (self._waiting or self._due):
            retries = min(first, len(self._due))
            fresh = min(free - retries, self._waiting)
            retries += min(most - retries, free - retries - fresh, len(self._due) - retries)
            self._send(fresh, retries)
        if (self._waiting or self._due) and self._pump_ms <= self.now_ms:
            wait_ms = self.law.bucket_wait_ms(now_ms=self.now_ms)
            if wait_ms is not None and self.outstanding < self.law.tokens:
                self._pump_ms = wait_ms + 0.001
                self._at(self._pump_ms, self._pump)

    def _send(self, fresh: int, retries: int) -> None:
        if retries + fresh:
            self.outstanding += retries + fresh
            self.law.spend(retries + fresh, outstanding=self.outstanding, now_ms=self.now_ms, retries=retries)
        self._waiting -= fresh
        for _ in range(retries):
            self._push(*self._due.popleft())
        for _ in range(fresh):
            self._push(next(self._messages), 1)

    def _push(self, message: int, attempt: int) -> None:
        history = self.history
        request = Request(self.now_ms, len(history.sent_ms) + 1, message, self.dice)
        history.sent_ms.append(self.now_ms)
        answer = self.endpoint(request)
        self._at(self.now_ms + answer.latency_ms, lambda: self._settle(message, attempt, answer))

    def _settle(self, message: int, attempt: int, answer: Answer) -> None:
        history = self.history
        self.outstanding -= 1
        resume_ms = self.law.come_back(
            acked=answer.acked,
            latency_ms=answer.latency_ms,
            now_ms=self.now_ms,
            dice=self.dice.random(),
            repeated=attempt > 1,
        )
        if resume_ms is not None:
            history.pauses.append((self.now_ms, resume_ms))
            self._at(resume_ms, self._pump)
        if answer.acked:
            history.acked += 1
            history.latency_ms += answer.latency_ms
            if not history.healed_ms and history.pauses and self.now_ms - answer.latency_ms >= history.pauses[0][1]:
                history.healed_ms = self.now_ms
        else:
            history.nacked += 1
            self._retry(message, attempt)
        self._pump()

    def _retry(self, message: int, attempt: int) -> None:
        if self.max_attempts and attempt >= self.max_attempts:
            self.history.dead_lettered += 1
            return
        delay_ms = retry.countdown_ms(attempt, dice=self.dice.random())
        self._at(self.now_ms + delay_ms, lambda: self._return(message, attempt + 1))

    def _sample(self) -> None:
        history, flow = self.history, self.law.flow
        history.samples.append(
            Sample(
                now_ms=self.now_ms,
                window=flow.window,
                outstanding=self.outstanding,
                backlog=self._waiting + len(self._due),
                level=flow.backoff_level,
                share=flow.nack_share,
                gap_ms=flow.gap_ms,
                phase=Phase(flow.phase),
                poisoned=flow.poisoned == 1,
                sent=len(history.sent_ms),
                acked=history.acked,
                nacked=history.nacked,
                latency_ms=history.latency_ms,
            )
        )
