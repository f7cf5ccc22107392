"""Publishing over REST: the rate of accepted messages, and the rate from publish to ack."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack

from django.db import connection

from bench.message import Publisher
from bench.processes import BenchError, nginx, say, wait_until
from bench.stand import Row, stand
from tests.ports import free_port

PUBLISHERS = 2
#: Messages per second offered to the sustained rows: a fifth more than their goal.
OFFERED = 6000
GRACE_SECONDS = 30


def publish(quick: bool) -> Row:
    """Publish 1,000 messages per request, durably, with one push subscription and no worker."""
    seconds = 0.5 if quick else 15
    with stand() as deployment, deployment.web():
        deployment.subscribe("http://127.0.0.1:1024/")
        done = [0] * PUBLISHERS
        began = time.monotonic()

        def work(number: int) -> None:
            publisher = Publisher(deployment.http_port, 1000)
            while time.monotonic() < began + seconds:
                publisher.publish()
                done[number] += 1000

        _in_threads(work)
        rate = sum(done) / (time.monotonic() - began)
        if deployment.left() != sum(done):
            raise BenchError(f"{sum(done)} messages were accepted, and {deployment.left()} are there")
    say(f"  publish: {rate:,.0f} messages/s")
    return {"publish_per_second": round(rate)}


def sustained(quick: bool) -> Row:
    """Publish 100 messages per request at a steady rate, and wait until all are acked."""
    seconds = 1 if quick else 60
    total = OFFERED * seconds
    with ExitStack() as stack:
        endpoint = stack.enter_context(nginx(free_port()))
        deployment = stack.enter_context(stand())
        stack.enter_context(deployment.web())
        stack.enter_context(deployment.maintenance())
        stack.enter_context(deployment.worker())
        deployment.subscribe(endpoint.url)
        deployment.publish(100)
        wait_until(lambda: not deployment.left(), seconds=60, what="the warm-up")
        warm = endpoint.received()
        began = time.monotonic()

        def work(number: int) -> None:
            publisher = Publisher(deployment.http_port, 100)
            for turn in range(number, total // 100, PUBLISHERS):
                time.sleep(max(began + turn * 100 / OFFERED - time.monotonic(), 0))
                publisher.publish()

        _in_threads(work)
        accepted = time.monotonic() - began
        with contextlib.suppress(BenchError):
            wait_until(lambda: not deployment.left(), seconds=GRACE_SECONDS, what="the last ack")
        acked, left = time.monotonic() - began, deployment.left()
        repeats = endpoint.received() - warm - (total - left)
    name = f"sustained_per_second_{connection.vendor}"
    say(f"  {name}: {total:,} accepted in {accepted:.1f} s and acked in {acked:.1f} s, {left} left over")
    return {
        name: round((total - left) / acked),
        f"{name}_accepted": round(total / accepted),
        f"{name}_left_over": left,
        f"{name}_repeats": repeats,
    }


def _in_threads(work: Callable[[int], None]) -> None:
    """Run `work` in a thread per publisher. Raises the first error of a thread."""
    errors: list[BaseException] = []

    def guarded(number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(number,), daemon=True) for number in range(PUBLISHERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=300)
    if errors:
        raise errors[0]
