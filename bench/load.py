"""Load generators that cost little themselves: wrk for REST, h2load (nghttp2) for gRPC, on one thread each."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from google.pubsub_v1.types import pubsub

from bench.message import ATTRIBUTES, HELLO, TOPIC, publish_body
from bench.processes import BenchError, needed

#: The number of outstanding publishes.
CONNECTIONS = 32
GRPC_CONNECTIONS = 4


def publish_over_rest(port: int, *, seconds: int, folder: Path) -> int:
    """Publish single messages for this time. Return how many were accepted."""
    script = folder / "publish.lua"
    body = publish_body(1).decode()
    script.write_text(f'wrk.method = "POST"\nwrk.headers["Content-Type"] = "application/json"\nwrk.body = {body!r}\n')
    url = f"http://127.0.0.1:{port}/v1/{TOPIC}:publish"
    options = ["-t1", f"-c{CONNECTIONS}", f"-d{seconds}s", "-s", str(script)]
    printed = _printed([needed("wrk"), *options, url], seconds=seconds)
    if "Non-2xx" in printed or "Socket errors" in printed:
        raise BenchError(f"publishes failed: {printed}")
    return _number(r"(\d+) requests in", printed)


def publish_over_grpc(port: int, *, seconds: int, folder: Path) -> int:
    """Publish single messages for this time. Return the number of calls; the caller counts the stored messages."""
    message = {"data": HELLO, "attributes": ATTRIBUTES}
    data = pubsub.PublishRequest.serialize(pubsub.PublishRequest(topic=TOPIC, messages=[message]))
    request = folder / "request.bin"
    request.write_bytes(b"\0" + len(data).to_bytes(4, "big") + data)
    options = [
        *(f"--clients={GRPC_CONNECTIONS}", f"--max-concurrent-streams={CONNECTIONS // GRPC_CONNECTIONS}"),
        *(f"--duration={seconds}", "--threads=1", f"--data={request}"),
        *("--header=content-type: application/grpc", "--header=te: trailers"),
    ]
    url = f"http://127.0.0.1:{port}/google.pubsub.v1.Publisher/Publish"
    printed = _printed([needed("h2load"), *options, url], seconds=seconds)
    return _number(r"(\d+) succeeded", printed)


def _printed(command: list[str], *, seconds: int) -> str:
    return subprocess.run(command, capture_output=True, text=True, timeout=seconds + 60, check=True).stdout


def _number(pattern: str, printed: str) -> int:
    match = re.search(pattern, printed)
    if match is None:
        raise BenchError(f"the load generator printed no result: {printed}")
    return int(match[1])
