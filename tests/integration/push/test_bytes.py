"""Large messages in a push worker: their bytes are bounded, fairly between subscriptions, and memory comes back."""

from __future__ import annotations

import socket
from base64 import b64decode
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest

from deliveries.backlog.default import default_backlog
from deliveries.backlog.paging import render_rows
from deliveries.backlog.records import Lane
from deliveries.models import Delivery
from deliveries.publish.service import publish_message
from deliveries.rules.payload import INLINE_BYTES, NewMessage
from deliveries.rules.taskmessage import parse_body
from deliveries.store import statements
from subscriptions.selectors import get_topic
from subscriptions.services.subscriptions import create_subscription, modify_push_config
from subscriptions.services.topics import create_topic
from tests.lanes import lane_change, lane_state
from tests.ports import wait_for
from tests.receiver import Receiver
from tests.workers import Worker

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.any_database]

LARGE, SMALL = "projects/shop/topics/large", "projects/shop/topics/small"
HANGING = "projects/shop/subscriptions/hanging"
COUNT, SIZE = 30, 6_000_000
#: Code for a worker whose first query of payload sizes fails.
FAILS_ONCE = """
from deliveries.store import statements
real = statements.payload_sizes
def payload_sizes(message_ids):
    statements.payload_sizes = real
    raise RuntimeError("unforeseen")
statements.payload_sizes = payload_sizes
"""


@pytest.fixture
def deaf() -> Iterator[socket.socket]:
    """Yield an endpoint that accepts connections and never reads."""
    with socket.create_server(("127.0.0.1", 0), backlog=256) as listener:
        yield listener


def rss_mb(pid: int) -> float:
    [line] = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS")]
    return int(line.split()[1]) / 1024


def hang(listener: socket.socket) -> int:
    """Subscribe the endpoint to large messages, with a push window for all of them at once."""
    create_topic(name=LARGE, topic={})
    row = create_subscription(name=HANGING, subscription={"topic": LARGE, "ackDeadlineSeconds": 600})
    for _ in range(COUNT):
        publish_message(topic=get_topic(name=LARGE), messages=[NewMessage(bytes(SIZE), {})])
    url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
    point(url)
    open_window(row.pk, COUNT)
    # The same endpoint again: the lane is pumped, and keeps its window.
    point(url)
    return row.pk


def open_window(pk: int, size: int) -> None:
    lane_change(default_backlog(), Lane(pk, "local"), window=size, round_peak=size)


def outstanding(pk: int) -> int:
    return lane_state(default_backlog(), Lane(pk, "local")).outstanding


def point(url: str) -> None:
    modify_push_config(name=HANGING, request={"pushConfig": {"pushEndpoint": url}})


def test_large_messages_to_a_hanging_endpoint_take_bounded_memory_and_starve_nobody(
    redis_url: str, deaf: socket.socket, receiver: Receiver
) -> None:
    create_topic(name=SMALL, topic={})
    create_subscription(
        name="projects/shop/subscriptions/healthy",
        subscription={"topic": SMALL, "pushConfig": {"pushEndpoint": receiver.url}},
    )
    with Worker(redis_url, PUSHHUB_WORKER_OUTSTANDING_MB="64") as worker:
        idle_mb = rss_mb(worker.process.pid)
        pk = hang(deaf)
        wait_for(lambda: outstanding(pk) == COUNT, what="the large messages")
        peak_mb, sent = 0.0, 0
        while sent < 60:
            publish_message(topic=get_topic(name=SMALL), messages=[NewMessage(bytes(200_000), {})])
            sent += 1
            receiver.wait(sent)
            peak_mb = max(peak_mb, rss_mb(worker.process.pid))
        # Together they would take 480 MB, as each is held as base64 text and as the body.
        assert peak_mb - idle_mb < 250
        deaf.close()
        wait_for(lambda: outstanding(pk) == 0, what="the pushes to the closed endpoint")
        wait_for(lambda: rss_mb(worker.process.pid) - idle_mb < 150, what="the memory")


def test_an_unexpected_error_while_sizes_are_read_loses_no_message(redis_url: str, receiver: Receiver) -> None:
    create_topic(name=LARGE, topic={})
    create_subscription(name=HANGING, subscription={"topic": LARGE, "pushConfig": {"pushEndpoint": receiver.url}})
    publish_message(topic=get_topic(name=LARGE), messages=[NewMessage(bytes(INLINE_BYTES + 1), {})])
    with Worker(redis_url, first=FAILS_ONCE):
        wait_for(lambda: not Delivery.objects.exists(), what="the message")
    assert len(receiver.requests) == 1


def test_a_page_of_a_backlog_is_read_without_its_large_payloads(redis_url: str) -> None:
    """500 rows of 10 MB would fill any memory, although references need no payload."""
    create_topic(name=LARGE, topic={})
    row = create_subscription(name=HANGING, subscription={"topic": LARGE})
    for size in (INLINE_BYTES, INLINE_BYTES + 1):
        publish_message(topic=get_topic(name=LARGE), messages=[NewMessage(bytes(size), {})])
    [page] = statements.read_pages([statements.PageRange(row.pk, "local", 0, 10, INLINE_BYTES)])
    assert [None if owed.data is None else len(owed.data) for owed in page] == [INLINE_BYTES, None]
    texts = [text for _, text in render_rows(Lane(row.pk, "local"), page, generation="")]
    assert [parse_body(orjson.loads(text)["body"]).is_reference for text in texts] == [False, True]


def test_payloads_that_came_in_the_task_are_bounded_as_well(redis_url: str, receiver: Receiver) -> None:
    """Payloads that do not fit are dropped, and read from the database when their turn comes."""
    create_topic(name=LARGE, topic={})
    row = create_subscription(name=HANGING, subscription={"topic": LARGE, "pushConfig": {"pushEndpoint": receiver.url}})
    texts = [str(number).encode().rjust(60_000) for number in range(600)]
    for start in range(0, 600, 100):
        messages = [NewMessage(text, {}) for text in texts[start : start + 100]]
        publish_message(topic=get_topic(name=LARGE), messages=messages)
    open_window(row.pk, 600)
    with Worker(redis_url, PUSHHUB_WORKER_OUTSTANDING_MB="16"):
        wait_for(lambda: not Delivery.objects.exists(), what="the messages")
    received = {b64decode(request.json["message"]["data"]) for request in receiver.requests}
    assert received == set(texts)
