"""Stock Celery with requests: a task for each push, on prefork processes or on gevent."""

from __future__ import annotations

import os
import sys

from celery import Celery

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

POOL = os.environ.get("PEER_POOL", "prefork")
app = Celery("peer", broker=f"redis+socket://{REDIS}")
# A task is lost with its worker unless it is acknowledged late, for which each greenlet needs a connection. Short tasks
# should be fetched many at a time.
app.conf.update(
    task_ignore_result=True,
    task_acks_late=True,
    worker_prefetch_multiplier=64 if POOL == "prefork" else 4,
    broker_transport_options={"max_connections": CONCURRENCY + 10},
)
_session = None


def make_session():
    """Return a session for the requests of this process. Its pool has a connection for each outstanding request."""
    import requests

    session = requests.Session()
    session.mount("http://", requests.adapters.HTTPAdapter(pool_maxsize=CONCURRENCY))
    return session


@app.task(name="push", autoretry_for=(OSError,), retry_backoff=True, max_retries=None)
def push(url: str, body: str) -> None:
    global _session
    _session = _session or make_session()
    # requests' errors are OSErrors.
    _session.post(url, data=body, headers=HEADERS, timeout=TIMEOUT_SECONDS).raise_for_status()


def start() -> None:
    size = os.cpu_count() if POOL == "prefork" else CONCURRENCY
    options = ["-P", POOL, "-c", str(size), "--without-gossip", "--without-mingle", "--without-heartbeat"]
    replace_process("celery", "-A", "bench.peers.programs.celery_requests", "worker", *options, "--loglevel=WARNING")


def publish() -> None:
    with app.connection_for_write() as connection, app.amqp.Producer(connection) as producer:
        serve(lambda numbers: [push.apply_async((URL, body_of(number)), producer=producer) for number in numbers])


if __name__ == "__main__":
    {"start": start, "publish": publish}[sys.argv[1]]()
