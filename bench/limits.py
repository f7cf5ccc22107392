"""Measures how far PushHub goes in one direction, and what happens beyond: `python -m bench.limits ROW`.

Each row runs on a temporary PostgreSQL and adds its figures to bench/results/limits.json, from which `python -m
bench.scale` writes docs/scale.md. `--count` is how many, in place of the row's own number; then nothing is stored.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import os
import select
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from statistics import quantiles
from typing import TYPE_CHECKING, Any

import grpc.aio
from google.pubsub_v1.types import pubsub

from bench import machine
from bench.__main__ import prepare_django
from bench.capacity import database_rows, running
from bench.message import ATTRIBUTES, HELLO, TOPIC, Publisher
from bench.postgresql import postgresql
from bench.processes import ROOT, BenchError, family, fork_modules, raise_file_limit, rss_mb, used_seconds, wait_until

if TYPE_CHECKING:
    from bench.stand import Stand

RESULTS = ROOT / "bench" / "results" / "limits.json"
#: Subscriptions of one project, by docs/spec.md#resource-limits.
OF_A_PROJECT = 10_000
#: Messages are published at this rate over the connections of a row.
RATE = 1000
#: How long a backlog is drained for its rate, and how long idle streams are watched.
DRAIN_SECONDS, QUIET_SECONDS, IDLE_SECONDS = 20, 5, 30
#: More than the default of PUSHHUB_CLIENT_CONNECTIONS.
CONNECTIONS = 2100
STREAM_SUBSCRIPTIONS = 10
#: The data of a message that fills its publish request but for some bytes.
LARGE_BYTES = 9_995_000
#: The console's pages of a subscription in which many messages wait.
PAGES = {"overview": "", "subscription": "deliveries/delivery/state/{}/", "messages": "deliveries/delivery/waiting/{}/"}
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
        _clone_subscriptions(count - 1, topic=TOPIC)

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
    """Push to ten of many subscriptions, audit all, and list them; then create one too many of a project."""
    from deliveries.backlog import reconcile
    from subscriptions.services.topics import create_topic

    with running(1) as (deployment, endpoint, meter):
        for number in range(-(-count // OF_A_PROJECT)):
            topic = f"projects/bench{number or ''}/topics/idle"
            create_topic(name=topic, topic={})
            _clone_subscriptions(min(count - number * OF_A_PROJECT, OF_A_PROJECT) - (not number), topic=topic)
        began = time.monotonic()
        reconcile.audit()
        audited = time.monotonic() - began
        began = time.monotonic()
        page = _answer(deployment, "GET", "/v1/projects/bench/subscriptions?pageSize=1000")
        listed = time.monotonic() - began
        before, received = meter.read(), endpoint.received()
        publisher = Publisher(deployment.http_port, 100)
        for _ in range(100):
            publisher.publish()
        wait_until(lambda: endpoint.received() - received >= 10_000, seconds=100, what="the last push")
        after = meter.read()
        return {
            "audit of all, s": round(audited, 1),
            "a page of 1,000, s": round(listed, 2) if page[0] == 200 else None,
            "push worker, µs a message": round((after["push0_us"] - before["push0_us"]) / 10_000),
            "redis, MB": round(deployment.redis.info("memory")["used_memory"] / 1e6, 1),
            "beyond": _create(deployment),
        }


def connections(count: int) -> Figures:
    """Publish over this many connections in turns; then open more than an address may have."""
    seconds = 15
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
            "web, MB": round(rss_mb(*family(meter.pids["web"]))),
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
    from bench.consolerows import execute, insert_waiting
    from deliveries.backlog import reconcile
    from subscriptions.models import Subscription

    with running(1, workers=0) as (deployment, endpoint, _):
        row = Subscription.objects.get()
        began = time.monotonic()
        insert_waiting(count, topic=row.topic_id, deliveries=[f"{row.pk}, 'local', 0, NULL, ''"])
        execute("ANALYZE", [])
        filled = time.monotonic() - began
        [(size,)] = database_rows("SELECT pg_database_size(current_database())")
        reconcile.rebuild()
        reader = readers()["superuser"]
        pages = {name: page_cost(reader, f"/admin/{path.format(row.pk)}").wall_ms for name, path in PAGES.items()}
        received, began = endpoint.received(), time.monotonic()
        with deployment.worker():
            wait_until(lambda: endpoint.received() > received, seconds=120, what="the first push")
            first = time.monotonic() - began
            publisher, waits = Publisher(deployment.http_port, 1), []
            sampled, began = endpoint.received(), time.monotonic()
            while time.monotonic() - began < DRAIN_SECONDS:
                sent = time.monotonic()
                publisher.publish()
                waits.append((time.monotonic() - sent) * 1000)
                time.sleep(0.05)
            rate = (endpoint.received() - sampled) / (time.monotonic() - began)
        return {
            "PostgreSQL, GB": round(size / 1e9, 2),
            "inserted in, s": round(filled),
            **{f"console, {name}, ms": round(ms) for name, ms in pages.items()},
            "first push after, s": round(first, 1),
            "drained, messages/s": round(rate),
            "all of it, minutes": round(count / rate / 60, 1),
            "publish p99 meanwhile, ms": round(quantiles(waits, n=100)[98], 1),
            "redis, MB": round(deployment.redis.info("memory")["used_memory"] / 1e6, 1),
            "beyond": "no limit but the disk: while it is full, publishes are UNAVAILABLE",
        }


def streams(count: int) -> Figures:
    """Hold streams open on ten subscriptions, and send a message to each stream."""
    with running(0, workers=0, PUSHHUB_GRPC_STREAMS=str(count)) as (deployment, _, _), deployment.grpc() as server:
        for number in range(STREAM_SUBSCRIPTIONS):
            deployment.subscribe("", name=f"stream-{number}")
        figures = asyncio.run(_hold_streams(deployment, server.pid, count))
        return figures | {"grpc server, MB": round(rss_mb(*family(server.pid)))}


async def _hold_streams(deployment: Stand, pid: int, count: int) -> Figures:
    from bench.pulling import Request, Response
    from bench.stand import subscription

    pulled = asyncio.Queue[int]()
    redis_pid = deployment.redis_pid

    async def pull(channel: grpc.aio.Channel, number: int) -> None:
        call = channel.stream_stream(
            "/google.pubsub.v1.Subscriber/StreamingPull",
            request_serializer=Request.SerializeToString,
            response_deserializer=Response.FromString,
        )()
        name = subscription(f"stream-{number % STREAM_SUBSCRIPTIONS}")
        await call.write(Request(subscription=name, stream_ack_deadline_seconds=60, max_outstanding_messages=10))
        async for response in call:
            await call.write(Request(ack_ids=[message.ack_id for message in response.received_messages]))
            pulled.put_nowait(len(response.received_messages))

    messages = count // STREAM_SUBSCRIPTIONS
    async with AsyncExitStack() as stack:
        address = f"127.0.0.1:{deployment.grpc_port}"
        options = [("grpc.use_local_subchannel_pool", 1)]
        channels = [
            await stack.enter_async_context(grpc.aio.insecure_channel(address, options=options)) for _ in range(10)
        ]
        tasks = [asyncio.create_task(pull(channels[number % 10], number)) for number in range(count)]
        stack.push_async_callback(_cancel, tasks)
        await asyncio.sleep(QUIET_SECONDS)
        spent, spent_of_redis = used_seconds(*family(pid)), used_seconds(redis_pid)
        await asyncio.sleep(IDLE_SECONDS)
        idle, idle_redis = used_seconds(*family(pid)) - spent, used_seconds(redis_pid) - spent_of_redis
        refused = "not refused"
        try:
            await pull(channels[0], count)
        except grpc.aio.AioRpcError as error:
            refused = f"{error.code().name}: {error.details()}"
        began, received = time.monotonic(), 0
        await asyncio.to_thread(deployment.publish, messages)
        while received < messages * STREAM_SUBSCRIPTIONS:
            received += await asyncio.wait_for(pulled.get(), 60)
        await asyncio.to_thread(wait_until, lambda: not deployment.left(), seconds=60, what="the last ack")
        took = time.monotonic() - began
        ended = sum(task.done() for task in tasks)
    return {
        "open": count - ended,
        "a core, when idle": round(idle / IDLE_SECONDS, 3),
        "a core of Redis, when idle": round(idle_redis / IDLE_SECONDS, 3),
        "messages/s": round(received / took),
        "beyond": f"{refused} The limit is 5,000 by default.",
    }


async def _cancel(tasks: Iterable[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _clone_subscriptions(count: int, *, topic: str) -> None:
    """Add subscriptions like the first one to a topic, of the topic's project, with their lanes."""
    from deliveries.receivers import on_created
    from subscriptions.models import Subscription
    from subscriptions.selectors import get_topic

    first, row = Subscription.objects.earliest("pk"), get_topic(name=topic)
    values = {field.attname: getattr(first, field.attname) for field in first._meta.concrete_fields}
    values |= {"id": None, "topic_id": row.pk, "project_id": row.project_id}
    clones = (Subscription(**values | {"subscription_id": f"clone-{number}"}) for number in range(count))
    for clone in Subscription.objects.bulk_create(clones, batch_size=2000):
        on_created(None, subscription_id=clone.pk)


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
    parser.add_argument("row", choices=LIMITS)
    parser.add_argument("--count", type=int, help="how many, to try the harness")
    arguments = parser.parse_args()
    raise_file_limit()
    if arguments.count:
        fork_modules()
    limit, at = LIMITS[arguments.row], machine.moment()["at"]
    with postgresql() as url, tempfile.TemporaryDirectory(prefix="pushhub-bench-") as folder:
        os.environ["PUSHHUB_DATABASE_URL"] = url
        prepare_django(folder, on_postgresql=True)
        figures = limit.measure(arguments.count or limit.count)
    print(json.dumps(figures, indent=1))
    if not arguments.count:
        results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
        results[arguments.row] = {"at": at, "figures": figures}
        RESULTS.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
