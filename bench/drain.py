"""Draining a backlog: PushHub, stock Celery and wrk, in turns, to the same nginx with the same bytes."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import redis

from bench import stock
from bench.message import ATTRIBUTES, HELLO
from bench.processes import (
    BenchError,
    Nginx,
    clean_environment,
    cpu_seconds,
    family,
    needed,
    nginx,
    process,
    rss_mb,
    say,
    wait_until,
)
from bench.stand import Row, stand, subscription
from deliveries.rules.envelope import push_body
from deliveries.rules.payload import publish_time_text, wire_message
from tests.ports import free_port
from tests.redisserver import RedisServer

#: A message id with as many digits as current ids have.
MESSAGE_ID = 911_742_875_595_837_440


@dataclass(frozen=True, slots=True)
class Round:
    """The result of one drain; `rate` is messages per second between 5 and 95 % received."""

    rate: float
    cpu_us: float
    cpu_seconds: float
    rss_mb: float
    repeats: int = 0


@dataclass(frozen=True, slots=True)
class Request:
    """The request that each program sends."""

    body: str
    authorization: str


def drain(quick: bool) -> Row:
    count, stock_count, rounds, wrk_seconds = (4_000, 60, 1, 1) if quick else (100_000, 5_000, 3, 5)
    ours, rival, wrk = [], [], []
    with nginx(free_port()) as endpoint:
        request = _request()
        for _ in range(rounds):
            rival.append(_stock_round(endpoint, stock_count, request))
            ours.append(our_round(endpoint, count))
            wrk.append(_wrk_round(endpoint, request, seconds=wrk_seconds))
    ours_rate = statistics.median(result.rate for result in ours)
    stock_rate = statistics.median(result.rate for result in rival)
    wrk_rate = statistics.median(wrk)
    return {
        "drain_ratio_vs_stock_celery": round(ours_rate / stock_rate, 1),
        "drain_ratio_vs_wrk": round(ours_rate / wrk_rate, 3),
        "drain_per_second": round(ours_rate),
        "drain_cpu_us_a_message": round(statistics.median(result.cpu_us for result in ours), 1),
        "drain_cpu_seconds": round(statistics.median(result.cpu_seconds for result in ours), 2),
        "drain_worker_rss_mb": round(max(result.rss_mb for result in ours)),
        "drain_repeats": max(result.repeats for result in ours),
        "stock_celery_per_second": round(stock_rate),
        "stock_celery_cpu_us_a_message": round(statistics.median(result.cpu_us for result in rival), 1),
        "stock_celery_rss_mb": round(max(result.rss_mb for result in rival)),
        "wrk_per_second": round(wrk_rate),
    }


def _request() -> Request:
    """Return the body and the token of a push as PushHub's worker sends them."""
    text = publish_time_text(MESSAGE_ID)
    message = wire_message(MESSAGE_ID, HELLO, ATTRIBUTES, "", publish_time=text)
    with stand() as deployment:
        deployment.subscribe("http://127.0.0.1:1024/")
        return Request(push_body(message, subscription=subscription("bench")).decode(), f"Bearer {deployment.token()}")


def middle_rate(endpoint: Nginx, from_: int, count: int, *, what: str) -> float:
    """Return the messages per second between 5 % and 95 % received, without the start-up and the end."""
    wait_until(lambda: endpoint.received() - from_ >= 0.05 * count, seconds=120, what=f"the start of {what}")
    first, began = endpoint.received(), time.monotonic()
    wait_until(lambda: endpoint.received() - from_ >= 0.95 * count, seconds=180, what=what)
    return (endpoint.received() - first) / (time.monotonic() - began)


def our_round(endpoint: Nginx, count: int, **settings: str) -> Round:
    with stand() as deployment:
        deployment.subscribe(endpoint.url)
        deployment.publish(count)
        from_ = endpoint.received()
        with deployment.worker(**settings) as worker:
            rate = middle_rate(endpoint, from_, count, what="our drain")
            wait_until(lambda: not deployment.left(), seconds=60, what="the last ack of our drain")
            spent, rss = cpu_seconds(worker.pid), rss_mb(worker.pid)
        repeats = endpoint.received() - from_ - count
    say(f"  PushHub: {rate:,.0f} messages/s, {spent / count * 1e6:.0f} µs CPU a message ({spent:.1f} s), {rss:.0f} MB")
    return Round(rate, spent / count * 1e6, spent, rss, repeats)


def _stock_round(endpoint: Nginx, count: int, request: Request) -> Round:
    """Drain with stock Celery on two prefork processes, with default settings."""
    with tempfile.TemporaryDirectory() as name, RedisServer(Path(name)) as server:
        broker = server.url.replace("unix://", "redis+socket://")
        stock.app.conf.broker_url = broker
        with stock.app.connection_for_write() as connection, stock.app.amqp.Producer(connection) as producer:
            for _ in range(count):
                stock.push.apply_async((endpoint.url, request.body, request.authorization), producer=producer)
        if redis.Redis.from_url(server.url).llen("celery") != count:
            raise BenchError("the stock tasks are not in their queue")
        env = clean_environment() | {"BENCH_STOCK_BROKER": broker, "PYTHONWARNINGS": "ignore"}
        from_ = endpoint.received()
        with process([sys.executable, "-m", "celery", "-A", "bench.stock", "worker", "-c", "2"], env=env) as worker:
            rate = middle_rate(endpoint, from_, count, what="the stock drain")
            wait_until(lambda: endpoint.received() - from_ >= count, seconds=60, what="the stock tail")
            pids = family(worker.pid)
            spent, rss = cpu_seconds(*pids), rss_mb(*pids)
    say(f"  stock Celery and requests: {rate:,.0f} messages/s, {spent / count * 1e6:.0f} µs CPU a message")
    return Round(rate, spent / count * 1e6, spent, rss)


def _wrk_round(endpoint: Nginx, request: Request, *, seconds: int) -> float:
    """Return the requests per second of wrk at the same endpoint."""
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as script:
        script.write(
            'wrk.method = "POST"\n'
            f"wrk.body = {json.dumps(request.body)}\n"
            'wrk.headers["Content-Type"] = "application/json"\n'
            f"wrk.headers['Authorization'] = {json.dumps(request.authorization)}\n"
        )
        script.flush()
        command = [needed("wrk"), "-t1", "-c64", f"-d{seconds}s", "-s", script.name, endpoint.url]
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + 30, check=True)
    rate = float(done.stdout.partition("Requests/sec:")[2].split()[0])
    say(f"  wrk: {rate:,.0f} requests/s")
    return rate
