"""A Redis with TLS and users, and servers that are refused."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from pathlib import Path
from queue import Queue
from typing import Any

import pytest
import redis

from deliveries.backlog.connection import client_of
from deliveries.backlog.regions import KEY as AUDIT_KEY
from deliveries.models import Delivery
from deliveries.publish.service import publish_message
from deliveries.rules.payload import NewMessage
from pushhub.runtime import embedded
from pushhub.runtime.processes import answers_redis
from subscriptions.selectors import get_topic
from tests.certificates import Authority
from tests.ports import free_port, wait_for
from tests.receiver import Receiver
from tests.redisserver import RedisServer
from tests.restapi import Api
from tests.workers import ROOT, Worker

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.any_database]

TOPIC = "projects/shop/topics/orders"
#: The rights that docs/settings.md tells operators to give.
RIGHTS = "~* &* +@all -@dangerous +info"


def test_rights_of_the_documentation() -> None:
    assert f"`{RIGHTS}`" in (ROOT / "docs" / "settings.md").read_text()


def test_scripts_call_no_command_beyond_these_rights(tmp_path: Path) -> None:
    scripts = (ROOT / "deliveries").rglob("*.lua")
    called = {name.lower() for file in scripts for name in re.findall(r"redis\.p?call\('(\w+)'", file.read_text())}
    assert {"zadd", "hset"} <= called
    with RedisServer(tmp_path) as server, redis.Redis.from_url(server.url) as admin:
        dangerous = {name.decode() for name in admin.execute_command("ACL", "CAT", "dangerous")}
    assert called & dangerous <= {word[1:] for word in RIGHTS.split() if word.startswith("+")}


async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    writer.close()


@contextmanager
def behind_tls(socket: str, authority: Authority) -> Iterator[int]:
    """Offer a server by TLS, as the redis-server of the tests is built without; yield the port."""
    started: Queue[tuple[int, Callable[[], object]]] = Queue()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        own_reader, own_writer = await asyncio.open_unix_connection(socket)
        await asyncio.gather(copy(reader, own_writer), copy(own_reader, writer))

    async def serve() -> None:
        stopping, loop = asyncio.Event(), asyncio.get_running_loop()
        server = await asyncio.start_server(relay, "127.0.0.1", 0, ssl=authority.server_context("127.0.0.1"))
        async with server:
            started.put((server.sockets[0].getsockname()[1], partial(loop.call_soon_threadsafe, stopping.set)))
            await stopping.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    port, stop = started.get(timeout=60)
    try:
        yield port
    finally:
        stop()
        thread.join()


def test_a_user_with_few_rights_by_tls(redis_url: str, receiver: Receiver, settings: Any, tmp_path: Path) -> None:
    authority, password = Authority(tmp_path), tmp_path / "password"
    password.write_text("a/b@c\n")
    own = {"PUSHHUB_REDIS_PASSWORD_FILE": str(password)}
    with (
        RedisServer(tmp_path, "--user", "pushhub", "on", ">a/b@c", *RIGHTS.split()) as server,
        redis.Redis.from_url(server.url) as admin,
        behind_tls(server.url.removeprefix("unix://"), authority) as port,
    ):
        address = f"127.0.0.1:{port}/0?ssl_ca_certs={authority.ca_file}"
        settings.REDIS_URL = f"rediss://pushhub:a%2Fb%40c@{address}"
        api = Api()
        api.create("topics/orders")
        api.create("subscriptions/push", {"topic": TOPIC, "pushConfig": {"pushEndpoint": receiver.url}})
        url, options = f"rediss://pushhub@{address}", ["--without-gossip"]
        with (
            Worker(url, options=options, **own),
            Worker(url, name="maintenance", queue="maintenance", beat=True, options=options, **own),
        ):
            publish_message(topic=get_topic(name=TOPIC), messages=[NewMessage(b"x", {})] * 3)
            wait_for(lambda: not Delivery.objects.exists(), what="the messages")
            wait_for(lambda: admin.exists(AUDIT_KEY), what="an audit")
        assert admin.acl_log() == []
        client_of(settings.REDIS_URL).close()


def cluster_node(folder: Path, port: int) -> AbstractContextManager[Any]:
    return RedisServer(folder, "--port", str(port), "--cluster-enabled", "yes")


@contextmanager
def sentinel(folder: Path, port: int) -> Iterator[None]:
    file = folder / "sentinel.conf"
    file.write_text(f"port {port}\ndir {folder}\nlogfile {folder}/sentinel.log\n")
    process = subprocess.Popen([str(embedded.binary()), str(file), "--sentinel"])
    try:
        wait_for(lambda: answers_redis(f"redis://127.0.0.1:{port}/0"), what="the Sentinel")
        yield
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize(
    ("server", "words"),
    [
        (cluster_node, "PUSHHUB_REDIS_URL names a Cluster: PushHub needs a single Redis"),
        (sentinel, "PUSHHUB_REDIS_URL names a Sentinel: give sentinel://host:port/0?master=name"),
    ],
    ids=["cluster", "sentinel"],
)
def test_a_server_of_another_kind_is_refused_by_name(
    tmp_path: Path, server: Callable[[Path, int], AbstractContextManager[Any]], words: str
) -> None:
    port = free_port()
    with server(tmp_path, port):
        environment = os.environ | {
            "DJANGO_SETTINGS_MODULE": "pushhub.settings",
            "PUSHHUB_REDIS_URL": f"redis://127.0.0.1:{port}/0",
        }
        command = [sys.executable, "-m", "pushhub.runtime.processes", "push"]
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=120
        )
    assert done.returncode == 1
    assert done.stderr.startswith(words)
