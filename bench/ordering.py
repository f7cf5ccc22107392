"""Draining the backlog of an ordered push subscription, beside that of a plain one."""

from __future__ import annotations

import http.client
import statistics
import time
from urllib.parse import urlsplit

from bench.drain import middle_rate
from bench.message import ATTRIBUTES, HELLO, TOPIC, publish_body
from bench.processes import Nginx, cpu_seconds, nginx, say, wait_until
from bench.stand import Row, stand
from deliveries.publish.service import publish_message
from deliveries.rules.payload import NewMessage
from subscriptions.selectors import get_topic
from tests.ports import free_port

#: The numbers of ordering keys; 0 stands for the plain subscription.
KEYS = (0, 10_000, 100, 1)


def ordered_push(quick: bool) -> Row:
    """Drain as many messages without keys, of many keys and of few keys; fewer of one key, as that takes longer."""
    count, rounds = (2_000, 1) if quick else (50_000, 3)
    rates: dict[int, list[float]] = {keys: [] for keys in KEYS}
    with nginx(free_port()) as endpoint:
        for _ in range(rounds):
            for keys in KEYS:
                rates[keys].append(_drain(endpoint, count // 10 if keys == 1 else count, keys))
        alone = _one_at_a_time(endpoint, seconds=0.5 if quick else 3)
    medians = {keys: statistics.median(measured) for keys, measured in rates.items()}
    say(f"  one request at a time by itself: {alone:,.0f}/s")
    return {
        "ordered_push_plain_per_second": round(medians[0]),
        "ordered_push_10000_keys_per_second": round(medians[10_000]),
        "ordered_push_100_keys_per_second": round(medians[100]),
        "ordered_push_one_key_per_second": round(medians[1]),
        "ordered_push_10000_keys_ratio": round(medians[10_000] / medians[0], 2),
        "ordered_push_100_keys_ratio": round(medians[100] / medians[0], 2),
        "one_request_at_a_time_per_second": round(alone),
    }


def _drain(endpoint: Nginx, count: int, keys: int) -> float:
    with stand() as deployment:
        deployment.subscribe(endpoint.url, enableMessageOrdering=bool(keys))
        _publish(count, keys)
        from_ = endpoint.received()
        with deployment.worker() as worker:
            rate = middle_rate(endpoint, from_, count, what=f"the drain of {keys} keys")
            wait_until(lambda: not deployment.left(), seconds=60, what="the last ack")
            spent = cpu_seconds(worker.pid, deployment.redis_pid)
    say(f"  {keys:,} keys: {rate:,.0f} messages/s, {spent / count * 1e6:.0f} µs CPU of worker and Redis a message")
    return rate


def _publish(count: int, keys: int) -> None:
    topic = get_topic(name=TOPIC)
    for start in range(0, count, 1000):
        numbers = range(start, min(start + 1000, count))
        names = [f"key-{number % keys}" if keys else "" for number in numbers]
        publish_message(topic=topic, messages=[NewMessage(HELLO, ATTRIBUTES, name) for name in names])


def _one_at_a_time(endpoint: Nginx, *, seconds: float) -> float:
    """Return how many requests a second the endpoint answers on one connection, one after the other."""
    connection = http.client.HTTPConnection(urlsplit(endpoint.url).netloc, timeout=10)
    body, count, began = publish_body(1), 0, time.monotonic()
    while time.monotonic() - began < seconds:
        connection.request("POST", "/push", body)
        connection.getresponse().read()
        count += 1
    connection.close()
    return count / (time.monotonic() - began)
