"""dramatiq with requests: an actor for each push, on a process for each core with threads."""

from __future__ import annotations

import os
import sys
import threading

import dramatiq
import requests
from dramatiq.brokers.redis import RedisBroker

from bench.peers.programs.lines import (
    CONCURRENCY,
    HEADERS,
    REDIS,
    TIMEOUT_SECONDS,
    URL,
    body_of,
    replace_process,
    serve,
)

dramatiq.set_broker(RedisBroker(url=f"unix://{REDIS}"))
_local = threading.local()


@dramatiq.actor(max_retries=None)
def push(url: str, body: str) -> None:
    if not hasattr(_local, "session"):
        _local.session = requests.Session()
    _local.session.post(url, data=body, headers=HEADERS, timeout=TIMEOUT_SECONDS).raise_for_status()


def start() -> None:
    processes = os.cpu_count() or 1
    options = ["--processes", str(processes), "--threads", str(max(CONCURRENCY // processes, 1)), "--skip-logging"]
    replace_process("dramatiq", "bench.peers.programs.dramatiq_requests", *options)


def publish() -> None:
    serve(lambda numbers: [push.send(URL, body_of(number)) for number in numbers])


if __name__ == "__main__":
    {"start": start, "publish": publish}[sys.argv[1]]()
