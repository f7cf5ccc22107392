"""Message transforms: messages that a function changes, per second."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from bench.message import ATTRIBUTES, TOPIC
from bench.processes import say
from bench.stand import Row, stand
from deliveries.publish.service import publish_message
from deliveries.rules.ids import EPOCH_MS, TIME_SHIFT
from deliveries.rules.payload import NewMessage, wire_message
from deliveries.transforming import transform_wire_messages
from subscriptions.selectors import get_topic
from subscriptions.services.topics import update_topic
from subscriptions.transforms.functions import Function
from subscriptions.transforms.sandboxes import close_sandboxes

#: Parses the data, drops a field, adds one, and sets an attribute.
CODE = """
function shape(message, metadata) {
  const order = JSON.parse(message.data);
  order.total = order.price * order.count;
  delete order.card;
  message.data = JSON.stringify(order);
  message.attributes.currency = order.currency;
  return message;
}
"""
DATA = b'{"id":12345,"card":"4111 1111 1111 1111","currency":"EUR","price":3.5,"count":4,"name":"Ada Lovelace"}'
GROUP = 200


def transforms(quick: bool) -> Row:
    """Transform messages in groups of 200, in the sandbox as a push worker does, and at a publish to a topic."""
    seconds = 0.3 if quick else 10.0
    try:
        before = _cpu_seconds()
        through, count = _through_the_sandbox(seconds)
        close_sandboxes()
        cpu_us = (_cpu_seconds() - before) / count * 1e6
        published, _ = _published(seconds)
    finally:
        close_sandboxes()
    say(f"  transforms: {through:,.0f} messages/s through the sandbox, {published:,.0f} published")
    return {
        "transformed_per_second": round(through),
        "transformed_cpu_us_a_message": round(cpu_us, 1),
        "transformed_published_per_second": round(published),
    }


def _cpu_seconds() -> float:
    """Return the CPU time of this process and of those that it has waited for."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _through_the_sandbox(seconds: float) -> tuple[float, int]:
    first_id = (time.time_ns() // 1_000_000 - EPOCH_MS) << TIME_SHIFT
    messages = [wire_message(first_id + number, DATA, ATTRIBUTES, "") for number in range(GROUP)]
    functions = [Function("shape", CODE)]

    def step() -> None:
        transform_wire_messages(project="bench", functions=functions, messages=messages, seconds=60)

    return _rate(step, seconds)


def _published(seconds: float) -> tuple[float, int]:
    with stand() as prepared:
        prepared.subscribe("")
        transform = {"javascriptUdf": {"functionName": "shape", "code": CODE}}
        update_topic(
            name=TOPIC, request={"topic": {"messageTransforms": [transform]}, "updateMask": "messageTransforms"}
        )
        topic = get_topic(name=TOPIC)
        messages = [NewMessage(DATA, ATTRIBUTES) for _ in range(GROUP)]
        return _rate(lambda: publish_message(topic=topic, messages=messages), seconds)


def _rate(step: Callable[[], object], seconds: float) -> tuple[float, int]:
    """Repeat a step for this time after a first, untimed one. Return the messages per second and their number."""
    step()
    began, steps = time.monotonic(), 0
    while time.monotonic() - began < seconds:
        step()
        steps += 1
    return steps * GROUP / (time.monotonic() - began), (steps + 1) * GROUP
