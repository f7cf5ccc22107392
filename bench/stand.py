"""A stand: Redis, a database and PushHub's processes for one row, on loopback and UNIX sockets."""

from __future__ import annotations

import http.client
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import redis
from django.conf import settings
from django.core.management import call_command
from django.db import connection

from bench.message import ATTRIBUTES, HELLO, TOPIC
from bench.processes import Started, answers, clean_environment, process, wait_until
from deliveries.backlog.connection import client_of
from deliveries.backlog.default import default_backlog
from deliveries.backlog.lanes import configure_lanes, lane_configuration
from deliveries.backlog.reconcile import settings_of
from deliveries.backlog.records import Lane
from deliveries.models import Delivery
from deliveries.publish.service import publish_message
from deliveries.rules.payload import NewMessage
from subscriptions.identity.tokens import mint_id_token
from subscriptions.models import ServiceAccount, Subscription, Topic
from subscriptions.selectors import get_topic
from subscriptions.services.service_accounts import create_service_account
from subscriptions.services.subscriptions import create_subscription, modify_push_config
from subscriptions.services.topics import create_topic
from tests.lanes import lane_fields
from tests.ports import free_port
from tests.redisclusters import redis_cluster
from tests.redisserver import RedisServer

Row = dict[str, Any]
PUSHER = "pusher@bench.iam.gserviceaccount.com"
#: All subscriptions have one audience, and so one cached token.
AUDIENCE = "https://bench.example.com/push"


class Stand:
    """Redis, the database and the environment of one row. Django in this process uses them too."""

    def __init__(self, folder: Path, server: RedisServer, nodes: Sequence[RedisServer] = ()) -> None:
        """`nodes` are those of a Redis Cluster that holds the cells, if there is one."""
        self.folder = folder
        self.http_port, self.grpc_port = free_port(), free_port()
        self.redis = redis.Redis.from_url(server.url)
        self.redis_pid = server.pid
        self.node_pids = [node.pid for node in nodes]
        addresses = {
            "PUSHHUB_HTTP": f"127.0.0.1:{self.http_port}",
            "PUSHHUB_GRPC": f"127.0.0.1:{self.grpc_port}",
        }
        self.env = _environment(folder) | addresses

    @contextmanager
    def worker(self, name: str = "bench", **more: str) -> Iterator[Started]:
        """Run a push worker as `make up` does, and wait until it is ready."""
        options = ["-Q", "deliveries.local", "-P", "solo", "-n", f"{name}@bench", "--events"]
        with process(
            _celery("worker", *options, "--without-gossip", "--without-mingle"), env=self.env | more
        ) as worker:
            yield worker

    @contextmanager
    def maintenance(self) -> Iterator[Started]:
        options = ["-Q", "maintenance", "-P", "solo", "-n", "maintenance@bench", "--events"]
        schedule = ["--without-gossip", "--without-mingle", "-B", "-s", str(self.folder / "beat")]
        with process(_celery("worker", *options, *schedule), env=self.env) as worker:
            yield worker

    @contextmanager
    def web(self) -> Iterator[Started]:
        """Run the REST server as `make up` does."""
        with process([sys.executable, "-m", "pushhub.runtime.webserver"], env=self.env) as server:
            wait_until(self._is_healthy, seconds=60, what="the web server")
            yield server

    @contextmanager
    def grpc(self) -> Iterator[Started]:
        """Run the gRPC server as `make up` does."""
        with process([sys.executable, "-m", "pushhub.runtime.grpcserver"], env=self.env) as server:
            wait_until(lambda: answers(self.grpc_port), seconds=60, what="the gRPC server")
            yield server

    def _is_healthy(self) -> bool:
        try:
            asking = http.client.HTTPConnection("127.0.0.1", self.http_port, timeout=5)
            asking.request("GET", "/healthz")
            return asking.getresponse().status == 200
        except OSError:
            return False

    def left(self) -> int:
        """Return the number of deliveries that aren't settled yet. It counts rows, so don't poll it while many wait."""
        return int(Delivery.objects.count())

    def publish(self, count: int, *, topic: str = TOPIC) -> None:
        row = get_topic(name=topic)
        messages = [NewMessage(HELLO, ATTRIBUTES)] * 1000
        for start in range(0, count, 1000):
            publish_message(topic=row, messages=messages[: min(1000, count - start)])

    def make_topic(self, name: str = TOPIC) -> None:
        """Create the topic, if it isn't there."""
        if not Topic.objects.filter(topic_id=name.rpartition("/")[2]).exists():
            create_topic(name=name, topic={})

    def subscribe(
        self, url: str, *, name: str = "bench", topic: str = TOPIC, push: Row | None = None, **more: Any
    ) -> int:
        """Create a push subscription with a token, or a pull one without a URL. Returns its primary key.

        `push` has more fields for its push config.
        """
        self.make_topic(topic)
        if not ServiceAccount.objects.exists():
            create_service_account(project="bench", request={"accountId": "pusher"})
        row = create_subscription(
            name=subscription(name),
            subscription={"topic": topic, "pushConfig": {**push_config(url), **(push or {})}, **more},
        )
        return int(row.pk)

    def clone_subscriptions(self, count: int, *, topic: str = TOPIC) -> None:
        """Add subscriptions like the first one to a topic, of the topic's project, with their lanes."""
        first, row = Subscription.objects.earliest("pk"), get_topic(name=topic)
        values = {field.attname: getattr(first, field.attname) for field in first._meta.concrete_fields}
        values |= {"id": None, "topic_id": row.pk, "project_id": row.project_id}
        clones = (Subscription(**values | {"subscription_id": f"clone-{number}"}) for number in range(count))
        created = Subscription.objects.bulk_create(clones, batch_size=2000)
        default_backlog().configure_all(
            lane_configuration(Lane(pk, "local"), settings, action="new")
            for pk, settings in settings_of(clone.pk for clone in created).items()
        )

    def push_to(self, url: str, *, name: str = "bench") -> None:
        """Make a subscription push to another URL, or turn it into a pull subscription."""
        modify_push_config(name=subscription(name), request={"pushConfig": push_config(url)})

    def token(self) -> str:
        """Return a token like those that the worker sends."""
        return mint_id_token(email=PUSHER, audience=AUDIENCE).token

    def open_window(self, subscription_id: int, size: int) -> None:
        """Set the size of the push window of a lane that pushes already, because it would take minutes to grow."""
        self.redis.hset(Lane(subscription_id, "local").state_key, mapping=lane_fields(window=size, round_peak=size))
        # The settings that the lane has already: it is pumped, and keeps its window.
        configure_lanes(subscription_id, action="known")


def subscription(name: str) -> str:
    return f"projects/bench/subscriptions/{name}"


def push_config(url: str) -> Row:
    if not url:
        return {}
    return {"pushEndpoint": url, "oidcToken": {"serviceAccountEmail": PUSHER, "audience": AUDIENCE}}


@contextmanager
def stand(*, cells: int = 1, primaries: int = 0) -> Iterator[Stand]:
    """Yield a new stand. It replaces the current one, if there is one, until the end of the block.

    A Redis Cluster of so many primaries, if any, holds the cells.
    """
    outer = settings.REDIS_URL, settings.BROKER_URL, settings.CELLS, connection.settings_dict["NAME"]
    with ExitStack() as stack:
        stack.callback(_restore, *outer)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pushhub-bench-")))
        server = stack.enter_context(RedisServer(folder))
        settings.REDIS_URL, settings.BROKER_URL, settings.CELLS = server.url, "", cells
        nodes: list[RedisServer] = []
        if primaries:
            cluster = stack.enter_context(redis_cluster(folder, primaries=primaries, has_replicas=False))
            settings.REDIS_URL, settings.BROKER_URL = cluster.url, server.url
            stack.callback(client_of(cluster.url).close)
            nodes = [node.server for node in cluster.nodes]
        settings.JOURNAL = ""  # this process' settings; the other processes have theirs in the folder
        connection.close()
        if connection.vendor == "sqlite":
            connection.settings_dict["NAME"] = str(shutil.copy(_empty_database(), folder / "pushhub.sqlite3"))
        else:
            _migrate()
            call_command("flush", verbosity=0, interactive=False)
        stack.callback(connection.close)
        yield Stand(folder, server, nodes)


@cache
def _empty_database() -> Path:
    """Return a file of SQLite with all tables, to be copied."""
    path: Path = settings.DATA_DIR / "empty.sqlite3"
    connection.settings_dict["NAME"] = str(path)
    _migrate()
    connection.close()
    return path


@cache
def _migrate() -> None:
    call_command("migrate", verbosity=0)


def _restore(redis_url: str, broker_url: str, cells: int, database: str) -> None:
    settings.REDIS_URL, settings.BROKER_URL, settings.CELLS = redis_url, broker_url, cells
    connection.settings_dict["NAME"] = database


def _celery(*words: str) -> list[str]:
    return [sys.executable, "-m", "celery", "--app=pushhub", "--quiet", *words, "--loglevel=WARNING"]


def _environment(folder: Path) -> dict[str, str]:
    """Return the environment of PushHub's processes, with the Redis of the settings."""
    database_url = os.environ.get("PUSHHUB_DATABASE_URL", "")
    return clean_environment() | {
        "PUSHHUB_DATA": str(folder),
        "PUSHHUB_DEVELOPMENT": "1",
        "PUSHHUB_ALLOW_HTTP": "1",
        "PUSHHUB_ALLOW_PRIVATE": "1",
        "PUSHHUB_ANONYMOUS": "user:developer@localhost",
        "PUSHHUB_REDIS_URL": settings.REDIS_URL,
        "PUSHHUB_BROKER_URL": settings.BROKER_URL,
        "PUSHHUB_CELLS": str(settings.CELLS),
        "PUSHHUB_LOG_LEVEL": "WARNING",
        "DJANGO_SETTINGS_MODULE": "pushhub.settings",
        "PYTHONWARNINGS": "ignore",
        **({"PUSHHUB_DATABASE_URL": database_url} if database_url else {}),
    }
