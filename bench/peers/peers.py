"""The peers: what each is, what installs it, and what it does and doesn't do beside the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from bench.peers.install import Go, Node, Python, Recipe

HTTP = ("requests==2.34.2", "redis==8.1.0")
#: The properties that the table of the page has for each peer.
FACTS = ("batches", "token", "kept in", "after a failed push")
_MEMORY = "Redis' memory"
_LOOP = "one call after the other"
_HEADER = "a fixed header"


@dataclass(frozen=True, slots=True)
class Peer:
    """A peer is a program of `programs/`, which `start` makes the peer itself and `publish` its publisher."""

    title: str
    recipe: Recipe
    #: In the order of FACTS.
    facts: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    #: Whether it gets a Redis beside it.
    needs_redis: bool = True


PEERS = {
    "pushhub": Peer(
        "PushHub",
        Python("pushhub"),
        (
            "one request",
            "signs a JWT for the subscription",
            "SQLite, committed to the disk before the answer",
            "again after a backoff of message and subscription; messages of an ordering key wait for it",
        ),
        needs_redis=False,
    ),
    "celery-prefork": Peer(
        "Celery (prefork), requests",
        Python("celery_requests"),
        (_LOOP, _HEADER, _MEMORY, "again after a backoff, held in the worker's memory; no order"),
    ),
    "celery-gevent": Peer(
        "Celery (gevent), requests",
        Python("celery_requests", ("celery==5.7.0", "gevent==26.9.0", "packaging==26.3", *HTTP)),
        (_LOOP, _HEADER, _MEMORY, "again after a backoff, held in the worker's memory; no order"),
        {"PEER_POOL": "gevent"},
    ),
    "dramatiq": Peer(
        "dramatiq, requests",
        Python("dramatiq_requests", ("dramatiq[redis]==2.2.1", *HTTP)),
        (_LOOP, _HEADER, _MEMORY, "again after a backoff; no order"),
    ),
    "taskiq": Peer(
        "taskiq, aiohttp",
        Python("taskiq_aiohttp", ("taskiq==0.13.0", "taskiq-redis==1.2.4", "aiohttp==3.14.5", "redis==8.1.0")),
        ("all calls at once", _HEADER, _MEMORY, "again at once; no order"),
    ),
    "bullmq": Peer(
        "BullMQ, undici",
        Node("bullmq_undici.mjs", ("bullmq@6.7.0", "ioredis@5.11.1", "undici@7.16.0")),
        ("one call", _HEADER, _MEMORY, "again after a backoff; no order"),
    ),
    "asynq": Peer(
        "asynq, net/http",
        Go("asynq_http.go", ("github.com/hibiken/asynq@v0.26.0",)),
        (_LOOP, _HEADER, _MEMORY, "again after a backoff; no order"),
    ),
    "moto-sns": Peer(
        "moto's SNS",
        Python("moto_sns", ("moto[server]==5.2.5", "requests==2.34.2")),
        ("ten a request", "none", "nothing", "never: it is lost"),
        needs_redis=False,
    ),
}
