"""Measures how far PushHub goes in one direction, and what happens beyond: `python -m bench.limits ROW...`.

The rows run one after the other on a temporary PostgreSQL, and add their figures to bench/results/limits.json, from
which `python -m bench.scale` writes docs/scale.md. `--count` is how many, in place of the row's own number; then
nothing is stored.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import select
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from statistics import quantiles
from typing import TYPE_CHECKING, Any

import grpc
from google.pubsub_v1.types import pubsub

from bench import machine
from bench.__main__ import prepare_django
from bench.capacity import database_rows, running
from bench.consolerows import execute, insert_waiting
from bench.message import ATTRIBUTES, HELLO, TOPIC, Publisher
from bench.postgresql import postgresql
from bench.processes import ROOT, BenchError, family, fork_modules, pss_mb, raise_file_limit, used_seconds, wait_until
from bench.streams import IDLE_SECONDS, QUIET_SECONDS, streams

if TYPE_CHECKING:
    from bench.stand import Stand

RESULTS = ROOT / "bench" / "results" / "limits.json"
#: Subscriptions of one project, by docs/spec.md#resource-limits.
OF_A_PROJECT = 10_000
#: Messages are published at this rate over the connections of a row.
RATE = 1000
#: How long a backlog is drained for its rate, a large one and a small one.
DRAIN_SECONDS, QUICK_SECONDS = 60, 2
#: More than the default of PUSHHUB_CLIENT_CONNECTIONS.
CONNECTIONS = 2100
#: The data of a message that fills its publish request but for some bytes.
LARGE_BYTES = 9_995_000
#: The console's pages of a subscription in which many messages wait.
PAGES = {
    "subscription": "deliveries/delivery/state/{}/",
    "its live part": "deliveries/delivery/state/{}/live/",
    "its messages": "deliveries/delivery/waiting/{}/",
    "a message": "deliveries/message/way/{message}/",
    "all deliveries": "deliveries/delivery/",
    "all messages": "deliveries/message/",
}
LISTS = {"overview": "", "subscriptions": "subscriptions/subscription/"}
Figures = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Limit:
    """A row: what there is many of, how many, and what measures it."""

    what: str
    count: int
    measure: Callable[[int], Figures]


def topic_subscriptions(count: int) -> Figures:
    """Publish to all push subscriptions of one topic, also after a loss of Redis' data; then create one too many."""
    with running(1) as (deployment, endpoint, _):
        deployment.clone_subscriptions(count - 1, topic=TOPIC)

        def publish() -> tuple[float, float]:
            """Return the seconds until the answer, and until all have it."""
            received, began = endpoint.received(), time.monotonic()
            Publisher(deployment.http_port, 1).publish()
            answered = time.monotonic() - began
            wait_until(lambda: endpoint.received() - received >= count, seconds=200, what="the last push")
            return answered, time.monotonic() - began

        (first_answered, first), (answered, arrived) = publish(), publish()
        deployment.redis.flushall()
        _, wiped = publish()
        return {
            "the first publish is answered after, s": round(first_answered, 2),
            "and pushed to all after, s": round(first, 1),
            "the next one, s": round(answered, 2),
            "and pushed, s": round(arrived, 1),
            "pushed to all after Redis lost its data, s": round(wiped, 1),
            "beyond": _create(deployment),
        }


def subscriptions(count: int) -> Figures:
    """Push to few of many subscriptions, list and audit all, and lose Redis' data; then create one too many."""
    from bench.console import page_cost, readers
    from deliveries.backlog import reconcile
    from subscriptions.services.topics import create_topic

    idle_seconds = IDLE_SECONDS if count >= 100 else 1
    with running(1, workers=0) as (deployment, endpoint, meter):
        for number in range(-(-count // OF_A_PROJECT)):
            topic = f"projects/bench{number or ''}/topics/idle"
            create_topic(name=topic, topic={})
            deployment.clone_subscriptions(min(count - number * OF_A_PROJECT, OF_A_PROJECT) - (not number), topic=topic)
        execute("ANALYZE", [])
        publisher, received = Publisher(deployment.http_port, 1), endpoint.received()
        publisher.publish()
        with deployment.worker() as worker:
            started = wait_until(lambda: endpoint.received() > received, seconds=120, what="the first push")
            audited = _timed(reconcile.audit)
            listed = _timed(lambda: _answer(deployment, "GET", "/v1/projects/bench/subscriptions?pageSize=1000"))
            reader = readers()["superuser"]
            pages = {name: page_cost(reader, f"/admin/{path}").wall_ms for name, path in LISTS.items()}
            pids = {**meter.pids, "push": worker.pid}
            before = {part: used_seconds(*family(pid)) for part, pid in pids.items()}
            time.sleep(idle_seconds)
            idle = {part: (used_seconds(*family(pid)) - before[part]) / idle_seconds for part, pid in pids.items()}
            waits = [1000 * _timed(publisher.publish) for _ in range(500)]
            wait_until(lambda: not deployment.left(), seconds=60, what="the last ack")
            received, held = endpoint.received(), deployment.redis.info("memory")["used_memory"]
            deployment.publish(1, topic="projects/bench/topics/idle")
            deployment.redis.flushall()
            fanout = min(count, OF_A_PROJECT) - 1
            wiped = wait_until(lambda: endpoint.received() - received >= fanout, seconds=200, what="the last push")
        return {
            "a push worker pushes after, s": round(started, 1),
            "audit of all, s": round(audited, 1),
            "a page of 1,000, s": round(listed, 2),
            **{f"console, {name}, ms": round(ms) for name, ms in pages.items()},
            **{f"{part}, idle for {idle_seconds} s, of a core": round(share, 3) for part, share in idle.items()},
            "publish p50, ms": round(quantiles(waits, n=100)[49], 1),
            "publish p99, ms": round(quantiles(waits, n=100)[98], 1),
            f"pushed to {fanout:,} after Redis lost its data, s": round(wiped, 1),
            "redis, MB": round(held / 1e6, 1),
            "beyond": _create(deployment),
        }


def _timed(work: Callable[[], object]) -> float:
    began = time.monotonic()
    work()
    return time.monotonic() - began


def connections(count: int) -> Figures:
    """Publish over this many connections in turns; then open more than an address may have."""
    seconds = 15 if count >= 100 else 1
    with (
        running(1, PUSHHUB_CLIENT_CONNECTIONS="0") as (deployment, _, meter),
        tempfile.NamedTemporaryFile("r") as notes,
    ):
        words = map(str, (deployment.http_port, RATE, seconds, count, notes.name))
        before = meter.read()
        if subprocess.run(
            [sys.executable, "-m", "bench.publisher", *words], cwd=ROOT, check=False, timeout=60
        ).returncode:
            raise BenchError("the publisher failed")
        after = meter.read()
        lines = [line.split() for line in notes]
        waits = quantiles(((int(line[2]) - int(line[1])) / 1e6 for line in lines), n=100)
        figures = {
            "messages/s": round(len(lines) / seconds),
            "publish p50, ms": round(waits[49], 1),
            "publish p99, ms": round(waits[98], 1),
            "web, µs a message": round((after["web_us"] - before["web_us"]) / len(lines)),
            "web, MB": round(sum(map(pss_mb, family(meter.pids["web"])))),
        }
    with running(1, PUSHHUB_WEB_WORKERS="1") as (deployment, _, _):
        return figures | {"beyond": _connect(deployment.http_port)}


def _connect(port: int) -> str:
    """Open some connections more than an address may have; return how they are refused."""
    with ExitStack() as stack:
        poll = select.poll()
        for _ in range(CONNECTIONS):
            poll.register(stack.enter_context(socket.create_connection(("127.0.0.1", port))), select.POLLIN)
        time.sleep(QUIET_SECONDS)
        refused = poll.poll(0)
        head, _, body = os.read(refused[0][0], 4096).partition(b"\r\n\r\n")
        return f"{len(refused)} of {CONNECTIONS:,} of an address: {_sentence((int(head.split()[1]), body))}"


def ordering_keys(count: int) -> Figures:
    """Drain two messages of each ordering key."""
    from bench.drain import middle_rate
    from deliveries.publish.service import publish_message
    from deliveries.rules.payload import NewMessage
    from subscriptions.selectors import get_topic

    with running(0, workers=0) as (deployment, endpoint, _):
        deployment.subscribe(endpoint.url, enableMessageOrdering=True)
        for start in range(0, 2 * count, 1000):
            keys = [f"key-{number % count}" for number in range(start, min(start + 1000, 2 * count))]
            publish_message(topic=get_topic(name=TOPIC), messages=[NewMessage(HELLO, ATTRIBUTES, key) for key in keys])
        received = endpoint.received()
        with deployment.worker() as worker:
            rate = middle_rate(endpoint, received, 2 * count, what="the drain")
            wait_until(lambda: not deployment.left(), seconds=60, what="the last ack")
            spent = used_seconds(worker.pid) * 1e6 / 2 / count
        return {
            "messages/s": round(rate),
            "push worker, µs a message": round(spent),
            "redis at most, MB": round(deployment.redis.info("memory")["used_memory_peak"] / 1e6, 1),
            "beyond": "no limit; their messages wait in the database",
        }


def large_messages(count: int) -> Figures:
    """Publish messages of 10 MB over gRPC, four at a time, and push them; then one that is larger."""

    def publish(size: int) -> str:
        request = pubsub.PublishRequest(topic=TOPIC, messages=[{"data": os.urandom(size)}])
        try:
            call(pubsub.PublishRequest.serialize(request), timeout=60)
        except grpc.RpcError as error:
            return f"{error.code().name}: {error.details()}"
        return ""

    with running(1) as (deployment, endpoint, meter), deployment.grpc() as server:
        options = [("grpc.max_send_message_length", -1)]
        channel = grpc.insecure_channel(f"127.0.0.1:{deployment.grpc_port}", options=options)
        with channel, ThreadPoolExecutor(4) as pool:
            call = channel.unary_unary("/google.pubsub.v1.Publisher/Publish")
            received, began = endpoint.received(), time.monotonic()
            refused = list(filter(None, pool.map(publish, [LARGE_BYTES] * count)))
            accepted = time.monotonic() - began
            wait_until(lambda: not deployment.left(), seconds=200, what="the last ack")
            pushed = time.monotonic() - began
            if refused or endpoint.received() - received < count:
                raise BenchError(f"{endpoint.received() - received} of {count} arrived; refused: {refused[:1]}")
            beyond = publish(LARGE_BYTES + 10_000)
        peaks = {"grpc": server.pid, "push": meter.pids["push0"]}
        return {
            "accepted, MB/s": round(10 * count / accepted, 1),
            "pushed, MB/s": round(10 * count / pushed, 1),
            **{f"{part} at most, MB": round(_peak_mb(pid)) for part, pid in peaks.items()},
            "redis at most, MB": round(deployment.redis.info("memory")["used_memory_peak"] / 1e6),
            "beyond": beyond,
        }


def waiting_messages(count: int) -> Figures:
    """Let many messages wait for one subscription, look at the console, and drain a part of them."""
    from bench.console import page_cost, readers
    from deliveries.backlog import reconcile
    from deliveries.models import Message
    from deliveries.telemetry.series.gauges import take_gauges
    from subscriptions.models import Subscription

    with running(1, workers=0) as (deployment, endpoint, _):
        row = Subscription.objects.get()
        waiting = [f"{row.pk}, 'local', 0, NULL, ''"]
        filled = _timed(lambda: insert_waiting(count, topic=row.topic_id, deliveries=waiting))
        vacuumed = _timed(lambda: execute("VACUUM ANALYZE", []))
        sizes = {
            f"{table}, GB of rows and of indexes": " and ".join(f"{size / 1e9:.2f}" for size in _sizes(table))
            for table in ("messages", "deliveries")
        }
        counted, audited = _timed(take_gauges), _timed(reconcile.audit)
        reconcile.rebuild()
        reader = readers()["superuser"]
        middle = Message.objects.order_by("pk")[count // 2].pk
        pages = {
            name: page_cost(reader, f"/admin/{path.format(row.pk, message=middle)}").wall_ms
            for name, path in {**LISTS, **PAGES}.items()
        }
        drain_seconds = DRAIN_SECONDS if count >= 100_000 else QUICK_SECONDS
        received, began = endpoint.received(), time.monotonic()
        with deployment.worker():
            wait_until(lambda: endpoint.received() > received, seconds=120, what="the first push")
            first = time.monotonic() - began
            publisher, waits = Publisher(deployment.http_port, 1), []
            sampled, began = endpoint.received(), time.monotonic()
            while time.monotonic() - began < drain_seconds:
                waits.append(1000 * _timed(publisher.publish))
                time.sleep(0.05)
            rate = (endpoint.received() - sampled) / (time.monotonic() - began)
        return {
            "inserted in, s": round(filled),
            **sizes,
            "VACUUM ANALYZE, s": round(vacuumed, 1),
            "gauges of a minute, s": round(counted, 2),
            "audit, s": round(audited, 2),
            **{f"console, {name}, ms": round(ms) for name, ms in pages.items()},
            "first push after, s": round(first, 1),
            f"drained in {drain_seconds} s, messages/s": round(rate),
            "all of it at this rate, minutes": round(count / rate / 60, 1),
            "publish p99 meanwhile, ms": round(quantiles(waits, n=100)[98], 1),
            "redis, MB": round(deployment.redis.info("memory")["used_memory"] / 1e6, 1),
            "beyond": "no limit but the disk: while it is full, publishes are UNAVAILABLE",
        }


def _sizes(noun: str) -> tuple[int, int]:
    """Return the bytes of the rows and of the indexes of messages or deliveries."""
    table = {"messages": "deliveries_message", "deliveries": "deliveries_delivery"}[noun]
    [(rows, indexes)] = database_rows(f"SELECT pg_table_size('{table}'), pg_indexes_size('{table}')")
    return rows, indexes


def _create(deployment: Stand) -> str:
    """Create one more subscription; return the answer."""
    path = "/v1/projects/bench/subscriptions/one-too-many"
    return _sentence(_answer(deployment, "PUT", path, json.dumps({"topic": TOPIC}).encode()))


def _answer(deployment: Stand, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
    with closing(http.client.HTTPConnection("127.0.0.1", deployment.http_port, timeout=200)) as connection:
        connection.request(method, path, body)
        answer = connection.getresponse()
        return answer.status, answer.read()


def _sentence(answer: tuple[int, bytes]) -> str:
    """Return the code and the message of an error as the API words it."""
    status, body = answer
    try:
        error = json.loads(body)["error"]
    except (ValueError, KeyError):
        return f"{status} {body.decode(errors='replace')[:100]}"
    return f"{error['status']}: {error['message']}"


def _peak_mb(pid: int) -> float:
    """Return the most memory that a process and its children have had."""
    lines = [line for each in family(pid) for line in Path(f"/proc/{each}/status").read_text().splitlines()]
    return sum(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1000


LIMITS = {
    "topic-subscriptions": Limit("subscriptions on one topic", 10_000, topic_subscriptions),
    "subscriptions": Limit("subscriptions", 100_000, subscriptions),
    "connections": Limit("publishing connections", 500, connections),
    "many-connections": Limit("publishing connections", 5_000, connections),
    "ordering-keys": Limit("ordering keys", 100_000, ordering_keys),
    "large-messages": Limit("messages of 10 MB, four at a time", 60, large_messages),
    "waiting-messages": Limit("waiting messages", 10_000_000, waiting_messages),
    "streams": Limit("StreamingPull streams", 1_000, streams),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.limits", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rows", nargs="+", choices=LIMITS, metavar="ROW", help=", ".join(LIMITS))
    parser.add_argument("--count", type=int, help="how many, to try the harness")
    arguments = parser.parse_args()
    raise_file_limit()
    if arguments.count:
        fork_modules()
    measured: dict[str, Any] = {}
    with postgresql() as url, tempfile.TemporaryDirectory(prefix="pushhub-bench-") as folder:
        os.environ["PUSHHUB_DATABASE_URL"] = url
        prepare_django(folder, on_postgresql=True)
        for row in arguments.rows:
            at = machine.moment()["at"]
            measured[row] = {"at": at, "figures": LIMITS[row].measure(arguments.count or LIMITS[row].count)}
            if not arguments.count:
                stored = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
                RESULTS.write_text(json.dumps(stored | measured, indent=1, ensure_ascii=False) + "\n")
    print(json.dumps(measured, indent=1))


if __name__ == "__main__":
    main()
