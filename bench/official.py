"""Google's own Python client: publishing with its default batching, and StreamingPull with it and without it.

`python -m bench.official publish|pull|raw COUNT` uses the server of PUBSUB_EMULATOR_HOST and prints the seconds.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import grpc
from google.cloud import pubsub_v1
from google.pubsub_v1.types import pubsub

from bench.message import ATTRIBUTES, HELLO, TOPIC
from bench.processes import ROOT, BenchError, say
from bench.stand import Row, stand, subscription

SECONDS = 300


def client_publish(quick: bool) -> Row:
    """20,000 messages, each published by a call of its own."""
    count = 2_000 if quick else 20_000
    with stand() as stood, stood.grpc():
        stood.make_topic()
        rate = count / _seconds("publish", count, port=stood.grpc_port)
    say(f"  the official client publishes {rate:,.0f} messages/s")
    return {"client_publish_per_second": round(rate)}


def streaming_pull(quick: bool) -> Row:
    """Messages that wait, pulled and acknowledged over one stream."""
    count = 4_000 if quick else 40_000
    with stand() as stood, stood.grpc():
        rates = {}
        for how in ("pull", "raw"):
            stood.subscribe("", name=how)
            stood.publish(count)
            rates[how] = count / _seconds(how, count, port=stood.grpc_port)
    say(f"  streaming pull: {rates['pull']:,.0f} messages/s with the official client, {rates['raw']:,.0f} without")
    return {
        "streaming_pull_per_second": round(rates["pull"]),
        "streaming_pull_raw_per_second": round(rates["raw"]),
    }


def _seconds(how: str, count: int, *, port: int) -> float:
    command = [sys.executable, "-W", "ignore", "-m", "bench.official", how, str(count)]
    env = os.environ | {"PUBSUB_EMULATOR_HOST": f"127.0.0.1:{port}"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=SECONDS, check=False)
    if done.returncode:
        raise BenchError(f"the client failed: {done.stderr[-500:]}")
    return float(done.stdout)


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
        stream = client.subscribe(subscription("pull"), receive)
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
        yield request(subscription=subscription("raw"), stream_ack_deadline_seconds=60).SerializeToString()
        while True:
            arrived.acquire()
            yield request(ack_ids=acknowledged.pop(0)).SerializeToString()

    with grpc.insecure_channel(os.environ["PUBSUB_EMULATOR_HOST"]) as channel:
        method = channel.stream_stream("/google.pubsub.v1.Subscriber/StreamingPull")
        began, seen = time.monotonic(), set[str]()
        stream = method(requests(), timeout=SECONDS)
        for data in stream:
            received = response.FromString(data).received_messages
            seen.update(one.message.message_id for one in received)
            acknowledged.append([one.ack_id for one in received])
            arrived.release()
            if len(seen) >= count:
                break
        seconds = time.monotonic() - began
        stream.cancel()
    return seconds


if __name__ == "__main__":
    print({"publish": _publish, "pull": _pull, "raw": _raw}[sys.argv[1]](int(sys.argv[2])))
