"""A healthy subscription beside a thousand whose messages wait, as their endpoints are dead or slow, for instance."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from statistics import fmean

from django.db import connection

from bench.limited import limited
from bench.message import HELLO
from bench.neighbours import SLOW_TOPIC, Neighbour
from bench.processes import BenchError, cpu_seconds, family, say, wait_until
from bench.sink import sinks
from bench.stand import Row, Stand, stand
from deliveries.publish.service import publish_message
from deliveries.rules.payload import NewMessage
from subscriptions.selectors import get_topic
from tests.ports import free_port

LARGE_BYTES = 100_000
#: Of the messages of one publish.
MOST_BYTES = 5_000_000
#: A function that never ends: the sandbox ends it after its time, for each attempt anew.
BURNS = "function burn(message, metadata) { for (;;) {} }"
#: The share of the dead neighbours that wait for their next try, once all were tried. The others are being tried.
LEAST_WAITING = 0.9
#: The CPU time of the sandboxes, in seconds, after which transforms are taken to burn.
LEAST_BURNT = 1.0
#: The ports of slow neighbours. With 14,000 connections to one port, Linux takes a millisecond to find a free one of
#: its own for the next.
SLOW_PORTS = 4
#: The shares of the healthy messages between whose arrivals the rate is measured.
FIRST, LAST = 0.1, 0.9


@dataclass(frozen=True, slots=True)
class Crowd:
    """How many neighbours there are, and what each of them has to wait for."""

    name: str
    #: "dead" refuses connections, "slow" answers after a delay, "refusing" answers 503 at once.
    endpoint: str = "dead"
    data: bytes = HELLO
    burns: bool = False


CROWDS = (
    Crowd("dead"),
    Crowd("slow", endpoint="slow"),
    Crowd("large", endpoint="slow", data=b"x" * LARGE_BYTES),
    Crowd("burning", burns=True),
    Crowd("poison", endpoint="refusing"),
)


@dataclass(frozen=True, slots=True)
class Size:
    """The neighbours, the messages of each, the healthy messages of the drain and those of the latencies.

    A worker that starts tries all neighbours at once. `settle_seconds` later their backoffs have grown. The drain lasts
    longer than slow ones take to answer: as they began together, a shorter one has all of their answers in it, or none.
    """

    neighbours: int
    each: int
    drained: int
    timed: int
    slow_seconds: float
    settle_seconds: float


FULL = Size(neighbours=1000, each=1000, drained=140_000, timed=1000, slow_seconds=9, settle_seconds=20)
QUICK = Size(neighbours=10, each=10, drained=300, timed=100, slow_seconds=1, settle_seconds=0)


@dataclass(frozen=True, slots=True)
class Healthy:
    """What the healthy subscription got: messages per second, and the time from publish to arrival.

    `start_p99_ms` is that while the neighbours were tried for the first times; None if that was short.
    """

    rate: float
    p99_ms: float
    start_p99_ms: float | None
    #: The most memory that Redis took.
    redis_mb: float


def neighbours(quick: bool) -> Row:
    """Measure the healthy subscription beside each crowd, and alone before each."""
    size = QUICK if quick else FULL
    suffix = "" if connection.vendor == "sqlite" else f"_{connection.vendor}"
    alone: list[Healthy] = []
    row: Row = {}
    for crowd in CROWDS:
        if not (quick and alone):
            alone.append(_measured(None, size))
        beside = _measured(crowd, size)
        row[f"neighbours_{crowd.name}_rate_ratio{suffix}"] = round(beside.rate / alone[-1].rate, 2)
        row[f"neighbours_{crowd.name}_p99_ratio{suffix}"] = round(beside.p99_ms / alone[-1].p99_ms, 2)
        row[f"neighbours_{crowd.name}_start_p99_ms{suffix}"] = beside.start_p99_ms
        row[f"neighbours_{crowd.name}_redis_mb_peak{suffix}"] = round(beside.redis_mb, 1)
    row[f"neighbours_alone_per_second{suffix}"] = round(fmean(healthy.rate for healthy in alone))
    row[f"neighbours_alone_p99_ms{suffix}"] = round(fmean(healthy.p99_ms for healthy in alone), 2)
    return row


def _measured(crowd: Crowd | None, size: Size) -> Healthy:
    with ExitStack() as stack:
        deployment = stack.enter_context(stand())
        with sinks(deployment.folder, port=free_port(), delay_seconds=0) as fast:
            deployment.subscribe(fast.url, name="healthy")
            is_busy = stack.enter_context(_gathered(deployment, crowd, size)) if crowd is not None else None
            with deployment.worker() as worker:
                healthy = Neighbour()
                healthy.publish_once()
                wait_until(lambda: fast.received() > 0, seconds=60, what="the first healthy push")
                started = time.monotonic_ns()
                while is_busy is not None and not (
                    time.monotonic_ns() > started + size.settle_seconds * 1e9 and is_busy(worker.pid)
                ):
                    healthy.publish_once()
                    if time.monotonic_ns() > started + (size.settle_seconds + 90) * 1e9:
                        raise BenchError("not all neighbours were tried")
                began = time.monotonic_ns()
                for _ in range(size.timed):
                    healthy.publish_once()
                wait_until(lambda: fast.received() >= len(healthy.sent), seconds=120, what="the timed messages")
                timed = time.monotonic_ns()
                deployment.publish(size.drained)
                total = len(healthy.sent) + size.drained
                wait_until(lambda: fast.received() >= total, seconds=240, what="the healthy drain")
            redis_mb = int(deployment.redis.info("memory")["used_memory_peak"]) / 1e6
        arrived = fast.arrivals()
    p99_ms = healthy.p99_ms(arrived, from_ns=began, to_ns=timed)
    drained = sorted(at for at in arrived.values() if at > timed)
    first, last = int(FIRST * len(drained)), int(LAST * len(drained))
    rate = (last - first) / (drained[last] - drained[first]) * 1e9
    if p99_ms is None:
        raise BenchError("too few messages were timed")
    start_p99_ms = healthy.p99_ms(arrived, from_ns=started, to_ns=began)
    words = f"{rate:,.0f} messages/s, p99 {p99_ms} ms, at the start {start_p99_ms} ms; Redis {redis_mb:.1f} MB"
    say(f"  healthy, beside {crowd.name if crowd else 'none'}: {words}")
    return Healthy(rate, p99_ms, start_p99_ms, redis_mb)


@contextmanager
def _gathered(deployment: Stand, crowd: Crowd, size: Size) -> Iterator[Callable[[int], bool]]:
    """Make the neighbours, with their messages. Yield what tells whether the worker of a process id tries them."""
    with ExitStack() as stack:
        folder, ports = deployment.folder, [free_port()]
        is_busy: Callable[[int], bool]
        if crowd.endpoint == "slow":
            ports = [free_port() for _ in range(SLOW_PORTS)]
            slow = [stack.enter_context(sinks(folder, port=port, delay_seconds=size.slow_seconds)) for port in ports]
            is_busy = lambda _: sum(sink.held() for sink in slow) >= size.neighbours  # noqa: E731
        elif crowd.endpoint == "refusing":
            refusing = stack.enter_context(limited(folder, port=ports[0], places=0, delay_seconds=1))
            is_busy = lambda _: refusing.counts().nacked >= size.neighbours  # noqa: E731
        elif crowd.burns:
            is_busy = lambda worker: cpu_seconds(*family(worker)[1:]) > LEAST_BURNT  # noqa: E731
        else:
            is_busy = lambda _: int(deployment.redis.zcard("ph:wake")) >= LEAST_WAITING * size.neighbours  # noqa: E731
        transforms = {"messageTransforms": [{"javascriptUdf": {"functionName": "burn", "code": BURNS}}]}
        for number in range(size.neighbours):
            deployment.subscribe(
                f"http://127.0.0.1:{ports[number % len(ports)]}/push",
                name=f"neighbour-{number}",
                topic=SLOW_TOPIC,
                **(transforms if crowd.burns else {}),
            )
        topic, step = get_topic(name=SLOW_TOPIC), max(MOST_BYTES // len(crowd.data), 1)
        for start in range(0, size.each, min(step, 1000)):
            count = min(step, 1000, size.each - start)
            publish_message(topic=topic, messages=[NewMessage(crowd.data, {})] * count)
        yield is_busy
