"""Publishing over REST: how fast it is accepted, and how fast it goes all the way."""

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
#: Messages a second offered to the sustained rows: a fifth more than what they must reach.
OFFERED = 6000
GRACE_SECONDS = 30


def publish(quick: bool) -> Row:
    """Accepted durably, 1,000 a request, with one push subscription and no worker."""
    seconds = 3 if quick else 15
    with stand() as made, made.web():
        made.subscribe("http://127.0.0.1:1024/")
        done = [0] * PUBLISHERS
        began = time.monotonic()

        def work(number: int) -> None:
            publisher = Publisher(made.http_port, 1000)
            while time.monotonic() < began + seconds:
                publisher.publish()
                done[number] += 1000

        _in_threads(work)
        rate = sum(done) / (time.monotonic() - began)
        if made.left() != sum(done):
            raise BenchError(f"{sum(done)} messages were accepted, and {made.left()} are there")
    say(f"  publish: {rate:,.0f} messages/s")
    return {"publish_per_second": round(rate)}


def sustained(quick: bool) -> Row:
    """From publish, 100 a request, to acked: offered at a steady rate; nothing may be left over."""
    seconds = 10 if quick else 60
    total = OFFERED * seconds
    with ExitStack() as stack:
        endpoint = stack.enter_context(nginx(free_port()))
        made = stack.enter_context(stand())
        stack.enter_context(made.web())
        stack.enter_context(made.maintenance())
        stack.enter_context(made.worker())
        made.subscribe(endpoint.url)
        made.publish(100)
        wait_until(lambda: not made.left(), seconds=60, what="the warm-up")
        warm = endpoint.received()
        began = time.monotonic()

        def work(number: int) -> None:
            publisher = Publisher(made.http_port, 100)
            for turn in range(number, total // 100, PUBLISHERS):
                time.sleep(max(began + turn * 100 / OFFERED - time.monotonic(), 0))
                publisher.publish()

        _in_threads(work)
        accepted = time.monotonic() - began
        with contextlib.suppress(BenchError):
            wait_until(lambda: not made.left(), seconds=GRACE_SECONDS, what="the last ack")
        acked, left = time.monotonic() - began, made.left()
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
    """Run `work` in each publisher's thread; the first error is raised here."""
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
