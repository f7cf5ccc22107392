"""A publisher or puller with Google's Python client, in a process of its own.

`python -m bench.officialclient publish|pull|raw COUNT` uses the server of PUBSUB_EMULATOR_HOST and prints the seconds.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator

import grpc
from google.cloud import pubsub_v1
from google.pubsub_v1.types import pubsub

from bench.message import ATTRIBUTES, HELLO, TOPIC

#: Each kind of puller has its own subscription, which has its name.
SUBSCRIPTION = "projects/bench/subscriptions/{}"
SECONDS = 240


def _publish(count: int) -> float:
    client = pubsub_v1.PublisherClient()
    client.publish(TOPIC, HELLO, **ATTRIBUTES).result(timeout=60)
    began = time.monotonic()
    futures = [client.publish(TOPIC, HELLO, **ATTRIBUTES) for _ in range(count)]
    for future in futures:
        future.result(timeout=SECONDS)
    return time.monotonic() - began


def _pull(count: int) -> float:
    seen: set[str] = set()
    is_complete = threading.Event()

    def receive(message: pubsub_v1.subscriber.message.Message) -> None:
        message.ack()
        seen.add(message.message_id)
        if len(seen) >= count:
            is_complete.set()

    with pubsub_v1.SubscriberClient() as client:
        began = time.monotonic()
        stream = client.subscribe(SUBSCRIPTION.format("pull"), receive)
        if not is_complete.wait(SECONDS):
            raise SystemExit(f"{len(seen)} of {count} messages came")
        seconds = time.monotonic() - began
        stream.cancel()
        stream.result(timeout=30)
    return seconds


def _raw(count: int) -> float:
    request, response = pubsub.StreamingPullRequest.pb(), pubsub.StreamingPullResponse.pb()
    acknowledged: list[list[str]] = []
    arrived = threading.Semaphore(0)

    def requests() -> Iterator[bytes]:
        yield request(subscription=SUBSCRIPTION.format("raw"), stream_ack_deadline_seconds=60).SerializeToString()
        while True:
            arrived.acquire()
            yield request(ack_ids=acknowledged.pop(0)).SerializeToString()

    with grpc.insecure_channel(os.environ["PUBSUB_EMULATOR_HOST"]) as channel:
        method = channel.stream_stream("/google.pubsub.v1.Subscriber/StreamingPull")
        began, seen = time.monotonic(), set[str]()
        stream = method(requests(), timeout=SECONDS)
        for data in stream:
            received = response.FromString(data).received_messages
            seen.update(entry.message.message_id for entry in received)
            acknowledged.append([entry.ack_id for entry in received])
            arrived.release()
            if len(seen) >= count:
                break
        seconds = time.monotonic() - began
        stream.cancel()
    return seconds


if __name__ == "__main__":
    print({"publish": _publish, "pull": _pull, "raw": _raw}[sys.argv[1]](int(sys.argv[2])))
