"""Google's own Python client: publishing with its default batching, and StreamingPull with it and without it."""

from __future__ import annotations

import os
import subprocess
import sys

from bench.processes import ROOT, BenchError, say
from bench.stand import Row, stand

SECONDS = 300


def client_publish(quick: bool) -> Row:
    """Publish 20,000 messages, each with its own call."""
    count = 300 if quick else 20_000
    with stand() as stood, stood.grpc():
        stood.make_topic()
        rate = count / _seconds("publish", count, port=stood.grpc_port)
    say(f"  the official client publishes {rate:,.0f} messages/s")
    return {"client_publish_per_second": round(rate)}


def streaming_pull(quick: bool) -> Row:
    """Pull and acknowledge waiting messages over one stream."""
    count = 500 if quick else 40_000
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
    command = [sys.executable, "-W", "ignore", "-m", "bench.officialclient", how, str(count)]
    env = os.environ | {"PUBSUB_EMULATOR_HOST": f"127.0.0.1:{port}"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=SECONDS, check=False)
    if done.returncode:
        raise BenchError(f"the client failed: {done.stderr[-500:]}")
    return float(done.stdout)
