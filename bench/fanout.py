"""Fan-out: deliveries that a publish to many subscriptions makes, stored and offered per second."""

from __future__ import annotations

import time

from bench.message import ATTRIBUTES, Publisher
from bench.processes import BenchError, say
from bench.stand import Row, stand

FILTER = f'attributes.key = "{ATTRIBUTES["key"]}"'


def fanout(quick: bool) -> Row:
    """Publish one message to 1,000 subscriptions, and 1,000 messages to 100 filtered ones. The slower rate counts."""
    many, few, repeats = (100, 10, 1) if quick else (1000, 100, 5)
    wide = _deliveries_per_second(many, messages=1, repeats=repeats * 10)
    filtered = _deliveries_per_second(few, messages=1000, repeats=repeats, filter=FILTER)
    say(f"  fan-out: {wide:,.0f} and {filtered:,.0f} deliveries/s")
    return {
        "fanout_per_second": round(min(wide, filtered)),
        "fanout_1_to_1000_per_second": round(wide),
        "fanout_1000_to_100_per_second": round(filtered),
    }


def _deliveries_per_second(subscriptions: int, *, messages: int, repeats: int, **settings: str) -> float:
    with stand() as stood, stood.web():
        for number in range(subscriptions):
            stood.subscribe("http://127.0.0.1:1024/", name=f"wide-{number}", **settings)
        publisher = Publisher(stood.http_port, messages)
        publisher.publish()
        began = time.monotonic()
        for _ in range(repeats):
            publisher.publish()
        seconds = time.monotonic() - began
        expected = subscriptions * messages * (repeats + 1)
        if stood.left() != expected:
            raise BenchError(f"{expected:,} deliveries should be there, and {stood.left():,} are")
    return subscriptions * messages * repeats / seconds
