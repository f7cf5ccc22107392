"""Publishes of one message: their rate over REST and gRPC, their delivery, and the CPU per message."""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import ExitStack
from subprocess import Popen
from typing import Any

from django.db import connection

from bench.load import CONNECTIONS, publish_over_grpc, publish_over_rest
from bench.processes import ROOT, BenchError, cpu_seconds, family, nginx, say, wait_until
from bench.stand import Row, Stand, stand
from deliveries.models import Message
from tests.ports import free_port

WARM_SECONDS = 2
#: Messages per second of the row that measures the push worker under little load.
LOW_RATE = 200


def single(quick: bool) -> Row:
    """Publish over REST, first without subscriptions, then with a push subscription whose pushes have tokens."""
    seconds, warm_seconds = (1, 1) if quick else (15, WARM_SECONDS)
    accepted = _accepted_over_rest(seconds, warm_seconds)
    with ExitStack() as stack:
        endpoint = stack.enter_context(nginx(free_port()))
        stood = stack.enter_context(stand())
        web = stack.enter_context(stood.web())
        worker = stack.enter_context(stood.worker())
        stack.enter_context(stood.maintenance())
        stood.subscribe(endpoint.url)
        publish_over_rest(stood.http_port, seconds=warm_seconds, folder=stood.folder)
        wait_until(lambda: not stood.left(), seconds=120, what="the warm-up")
        pids = [*family(web.pid), *family(worker.pid), stood.redis_pid]
        before, spent, began = endpoint.received(), cpu_seconds(*pids), time.monotonic()
        count = publish_over_rest(stood.http_port, seconds=seconds, folder=stood.folder)
        wait_until(lambda: endpoint.received() - before >= count, seconds=300, what="the last push")
        delivered = count / (time.monotonic() - began)
        wait_until(lambda: not stood.left(), seconds=60, what="the last ack")
        cost = (cpu_seconds(*pids) - spent) / count * 1e6
    row = {
        f"single_rest_per_second_{connection.vendor}": round(delivered),
        f"single_rest_accepted_per_second_{connection.vendor}": round(accepted),
    }
    if connection.vendor == "sqlite":
        row["single_cpu_us_a_message"] = round(cost)
    say(f"  single publishes at {CONNECTIONS} connections: {row}")
    return row


def _accepted_over_rest(seconds: int, warm_seconds: int) -> float:
    with stand() as stood, stood.web():
        stood.make_topic()
        publish_over_rest(stood.http_port, seconds=warm_seconds, folder=stood.folder)
        began = time.monotonic()
        return publish_over_rest(stood.http_port, seconds=seconds, folder=stood.folder) / (time.monotonic() - began)


def single_grpc(quick: bool) -> Row:
    """Publish over gRPC, without subscriptions."""
    seconds, warm_seconds = (1, 1) if quick else (15, WARM_SECONDS)
    with stand() as stood, stood.grpc():
        stood.make_topic()
        publish_over_grpc(stood.grpc_port, seconds=warm_seconds, folder=stood.folder)
        stored, began = Message.objects.count(), time.monotonic()
        publish_over_grpc(stood.grpc_port, seconds=seconds, folder=stood.folder)
        rate = (Message.objects.count() - stored) / (time.monotonic() - began)
    say(f"  single publishes over gRPC: {rate:,.0f} messages/s")
    return {"single_grpc_per_second": round(rate)}


def worker_at_low_rate(quick: bool) -> Row:
    """Measure the CPU of the push worker per message, at a steady rate of single publishes."""
    seconds = 1 if quick else 20
    with ExitStack() as stack:
        endpoint = stack.enter_context(nginx(free_port()))
        stood = stack.enter_context(stand())
        stack.enter_context(stood.web())
        worker = stack.enter_context(stood.worker())
        stood.subscribe(endpoint.url)
        stood.publish(100)
        wait_until(lambda: not stood.left(), seconds=60, what="the warm-up")
        spent = cpu_seconds(worker.pid)
        _publish_steadily(stood, seconds)
        wait_until(lambda: not stood.left(), seconds=60, what="the last ack")
        cost = (cpu_seconds(worker.pid) - spent) / (LOW_RATE * seconds) * 1e6
    say(f"  push worker at {LOW_RATE} messages/s: {cost:.0f} µs CPU a message")
    return {"worker_us_at_200": round(cost)}


def _publish_steadily(stood: Stand, seconds: int) -> None:
    words = map(str, (stood.http_port, LOW_RATE, seconds, 8, stood.folder / "published"))
    publisher: Popen[Any] = subprocess.Popen([sys.executable, "-m", "bench.publisher", *words], cwd=ROOT)
    if publisher.wait(timeout=seconds + 60):
        raise BenchError("the publisher failed")
