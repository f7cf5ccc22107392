"""Slow and hanging endpoints, and their effect on other subscriptions."""

from __future__ import annotations

import statistics
import time
from contextlib import ExitStack
from dataclasses import dataclass, field

from bench.latency import percentile
from bench.message import HELLO, TOPIC
from bench.processes import BenchError, nginx, raise_file_limit, rss_mb, say, wait_until
from bench.sink import Sinks, sinks
from bench.stand import Row, Stand, stand
from deliveries.publish.service import publish_message
from deliveries.rules.payload import NewMessage
from subscriptions.selectors import get_topic
from tests.ports import free_port

SLOW_TOPIC = "projects/bench/topics/slow"
SLOW_SECONDS, QUICK_SLOW_SECONDS = 10, 2
#: A little less than the share of open files that one origin gets (deliveries/push/sending/httpclient.py).
FILES_SHARE = 0.77
#: From one address the kernel takes long to find a free port from half of its 28,000 on.
SOURCES = "127.0.0.1,127.0.0.2,127.0.0.3,127.0.0.4"
NEIGHBOUR_GAP_SECONDS = 0.01
#: The share of the wanted pushes that have to be outstanding at once.
LEAST_REACHED = 0.8


@dataclass(slots=True)
class Neighbour:
    """Publishes single messages, 100 per second, and records the times."""

    #: Fewer latencies have no 99th percentile.
    least_waits: int = 100
    sent: list[tuple[str, int]] = field(default_factory=list)

    def publish_once(self) -> None:
        time.sleep(NEIGHBOUR_GAP_SECONDS)
        [name] = publish_message(topic=get_topic(name=TOPIC), messages=[NewMessage(HELLO, {})])
        self.sent.append((name, time.monotonic_ns()))

    def p99_ms(self, arrived: dict[str, int], *, from_ns: int, to_ns: int) -> float | None:
        """Latencies by phase; None for a phase that was too short."""
        waits = sorted(max(arrived[name] - at, 0) / 1e6 for name, at in self.sent if from_ns <= at < to_ns)
        return percentile(waits, 99) if len(waits) >= self.least_waits else None


@dataclass(slots=True)
class Episode:
    """Observations while many messages were outstanding. Times are those of `time.monotonic_ns`."""

    began: int
    full: int = 0
    first_answer: int = 0
    ended: int = 0
    reached: int = 0
    rss_mb: float = 0.0


def outstanding(quick: bool) -> Row:
    """30,000 outstanding to an endpoint that answers after 10 s: memory, and a neighbour's latency before and then.

    Where the limit of open files is too low for one process, several workers and several sinks share the load.
    """
    wanted, delay_seconds, quiet = (500, QUICK_SLOW_SECONDS, 100) if quick else (30_000, SLOW_SECONDS, 600)
    a_worker = int((raise_file_limit() - 200) * FILES_SHARE)
    workers = -(-wanted // a_worker)
    with ExitStack() as stack:
        deployment = stack.enter_context(stand())
        slow = stack.enter_context(
            sinks(deployment.folder, port=free_port(), delay_seconds=delay_seconds, processes=-(-wanted // a_worker))
        )
        with sinks(deployment.folder, port=free_port(), delay_seconds=0) as fast, ExitStack() as running:
            more = {"PUSHHUB_PUSH_SOURCE_ADDRESSES": SOURCES}
            if workers > 1:
                more["PUSHHUB_WORKER_OUTSTANDING"] = str(a_worker)
            pids = [running.enter_context(deployment.worker(f"bench{number}", **more)).pid for number in range(workers)]
            deployment.subscribe(fast.url, name="neighbour")
            subscription_id = deployment.subscribe("", topic=SLOW_TOPIC, ackDeadlineSeconds=60)
            deployment.publish(wanted, topic=SLOW_TOPIC)
            neighbour, idle_rss = _warmed(deployment, fast, pids, start_seconds=3 if workers > 1 else 0)
            neighbour.least_waits = 10 if quick else 100
            before_ns = time.monotonic_ns()
            for _ in range(quiet):
                neighbour.publish_once()
            deployment.push_to(slow.url)
            deployment.open_window(subscription_id, wanted)
            episode = _episode(slow, neighbour, wanted, pids, give_up_seconds=4 * delay_seconds + 20)
            wait_until(lambda: fast.received() >= len(neighbour.sent), seconds=60, what="the neighbour's last message")
        arrived = fast.arrivals()
    if episode.reached < LEAST_REACHED * wanted:
        raise BenchError(f"{episode.reached:,} of {wanted:,} were outstanding at most")
    before = neighbour.p99_ms(arrived, from_ns=before_ns, to_ns=episode.began)
    whole = neighbour.p99_ms(arrived, from_ns=episode.began, to_ns=episode.ended)
    opening = neighbour.p99_ms(arrived, from_ns=episode.began, to_ns=episode.full)
    holding = neighbour.p99_ms(arrived, from_ns=episode.full, to_ns=episode.first_answer)
    say(
        f"  outstanding: {episode.reached:,} reached with {workers} workers,"
        f" {episode.rss_mb:.0f} MB (idle {idle_rss:.0f})"
    )
    took = [f"{(at - episode.began) / 1e9:.1f}" for at in (episode.full, episode.first_answer, episode.ended)]
    say(f"  seconds until all were out, the first answer, the last: {', '.join(took)}")
    say(f"  neighbour's p99: {before} ms before; {whole} meanwhile, {opening} opening, {holding} holding")
    return {
        "outstanding_reached": episode.reached,
        "outstanding_worker_processes": workers,
        "outstanding_30000_rss_mb": round(episode.rss_mb),
        "outstanding_30000_others_p99_ratio": round(whole / before, 2),
        "outstanding_30000_others_p99_ratio_opening": opening and round(opening / before, 2),
        "outstanding_30000_others_p99_ratio_holding": holding and round(holding / before, 2),
        "outstanding_others_p99_ms_before": before,
        "outstanding_opening_seconds": round((episode.full - episode.began) / 1e9, 2),
    }


def _warmed(deployment: Stand, fast: Sinks, pids: list[int], *, start_seconds: float) -> tuple[Neighbour, float]:
    """Return a neighbour whose messages are pushed at once, and the memory of workers that are otherwise idle."""
    neighbour = Neighbour()
    neighbour.publish_once()
    wait_until(lambda: fast.received() > 0, seconds=60, what="the first push")
    time.sleep(start_seconds)  # until the other workers have started as well
    for _ in range(100):
        neighbour.publish_once()
    wait_until(lambda: fast.received() == len(neighbour.sent), seconds=20, what="the neighbour's warm-up")
    return neighbour, rss_mb(*pids)


def _episode(slow: Sinks, neighbour: Neighbour, wanted: int, pids: list[int], *, give_up_seconds: float) -> Episode:
    """Let the neighbour publish until the last of the slow answers has come."""
    seen = Episode(began=time.monotonic_ns())
    give_up = seen.began + give_up_seconds * 10**9
    first_push = 0
    while not seen.ended:
        neighbour.publish_once()
        now, received, held = time.monotonic_ns(), slow.received(), slow.held()
        seen.reached = max(seen.reached, held)
        first_push = first_push or (now if received else 0)
        if not seen.full and held >= 0.98 * wanted:
            seen.full, seen.rss_mb = now, rss_mb(*pids)
        if not seen.first_answer and received > held:
            seen.first_answer = now
        if received >= wanted and not held:
            seen.ended = now
        if now > give_up:
            raise BenchError(f"{seen.reached:,} of {wanted:,} were outstanding at most, {received:,} pushed in all")
    seen.full = seen.full or seen.first_answer
    return seen


def fairness(quick: bool) -> Row:
    """Measure the rate of healthy subscriptions alone, and while other endpoints hang until the ack deadline."""
    hanging, each, total, rounds = (2, 50, 2_000, 1) if quick else (10, 1_000, 60_000, 2)
    alone, beside = [], []
    for _ in range(rounds):
        alone.append(_healthy_rate(0, each, total))
        beside.append(_healthy_rate(hanging, each, total))
    ratio = statistics.median(beside) / statistics.median(alone)
    say(
        f"  fairness: {statistics.median(beside):,.0f} messages/s beside {hanging * each:,} hanging pushes,"
        f" {ratio:.2f} of alone"
    )
    return {
        "fairness_rate_ratio": round(ratio, 2),
        "fairness_hanging_pushes": hanging * each,
        "fairness_per_second_alone": round(statistics.median(alone)),
        "fairness_per_second_beside": round(statistics.median(beside)),
    }


def _healthy_rate(hanging: int, each: int, total: int) -> float:
    """Return the messages per second of four healthy subscriptions beside `hanging` hanging ones."""
    with ExitStack() as stack:
        endpoint = stack.enter_context(nginx(free_port()))
        deployment = stack.enter_context(stand())
        sink = stack.enter_context(sinks(deployment.folder, port=free_port(), delay_seconds=-1))
        with deployment.worker():
            for number in range(4):
                deployment.subscribe("", name=f"healthy-{number}")
            deployment.publish(total // 4)
            windows = [
                deployment.subscribe("", name=f"hang-{n}", topic=SLOW_TOPIC, ackDeadlineSeconds=10)
                for n in range(hanging)
            ]
            if hanging:
                deployment.publish(each * 3, topic=SLOW_TOPIC)
            for number, subscription_id in enumerate(windows):
                deployment.push_to(sink.url, name=f"hang-{number}")
                deployment.open_window(subscription_id, each)
            wait_until(lambda: sink.held() >= 0.9 * hanging * each, seconds=60, what="the hanging pushes")
            for number in range(4):
                deployment.push_to(endpoint.url, name=f"healthy-{number}")
            wait_until(lambda: endpoint.received() >= 0.1 * total, seconds=90, what="the healthy start", every=0.005)
            first, began = endpoint.received(), time.monotonic()
            wait_until(lambda: endpoint.received() >= 0.9 * total, seconds=90, what="the healthy", every=0.005)
            return (endpoint.received() - first) / (time.monotonic() - began)
