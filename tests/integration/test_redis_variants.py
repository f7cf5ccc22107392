"""A Redis with TLS and users, and servers that are refused."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from queue import Queue
from typing import Any

import pytest
import redis
import requests
from google.cloud.pubsub_v1 import SubscriberClient

from deliveries.backlog.connection import client_of
from deliveries.backlog.regions import KEY as AUDIT_KEY
from deliveries.models import Delivery
from pushhub.common.redisclient import connect_to_redis
from tests.certificates import Authority
from tests.flowers import flower_running
from tests.grpcservers import GrpcServer
from tests.integration.push.test_flower import search
from tests.ports import free_port, wait_for
from tests.receiver import Receiver
from tests.redisserver import RedisServer
from tests.restapi import Api
from tests.sentinels import sentinel
from tests.webservers import WebServer
from tests.workers import ROOT, Worker

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.any_database]

TOPIC, PULL = "projects/shop/topics/orders", "projects/shop/subscriptions/pull"
#: The first byte of a connection that uses TLS.
TLS_HANDSHAKE = b"\x16"
#: The rights that docs/settings.md tells operators to give.
RIGHTS = "~* &* +@all -@dangerous +info"


def test_rights_of_the_documentation() -> None:
    assert f"`{RIGHTS}`" in (ROOT / "docs" / "settings.md").read_text()


def test_scripts_call_no_command_beyond_these_rights(tmp_path: Path) -> None:
    scripts = [path for layer in ("deliveries", "pushhub") for path in (ROOT / layer).rglob("*.lua")]
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
def closing_at_once(writer: asyncio.StreamWriter) -> Iterator[None]:
    """Close a connection without a word of TLS, which might not come before the loop ends."""
    try:
        yield
    finally:
        writer.transport.abort()


@contextmanager
def with_tls(target: str, authority: Authority) -> Iterator[int]:
    """Yield a port that relays to a server's socket or port, as the embedded Redis is built without TLS.

    It takes TLS and plain connections: a Sentinel names the port by which it reaches Redis, and has no TLS either.
    """
    started: Queue[tuple[int, Callable[[], object]]] = Queue()
    context = authority.server_context("127.0.0.1")

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        opened = (
            asyncio.open_connection("127.0.0.1", target) if target.isdigit() else asyncio.open_unix_connection(target)
        )
        with closing_at_once(writer), suppress(asyncio.CancelledError):
            own_reader, own_writer = await opened
            with closing_at_once(own_writer):
                await asyncio.gather(copy(reader, own_writer), copy(own_reader, writer))

    async def greet(connection: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        first = None
        while first is None:
            with suppress(BlockingIOError):
                first = connection.recv(1, socket.MSG_PEEK)
            await asyncio.sleep(0.001)
        tls = context if first == TLS_HANDSHAKE else None
        protocol = asyncio.StreamReaderProtocol(asyncio.StreamReader(), relay)
        with suppress(OSError):
            await loop.connect_accepted_socket(lambda: protocol, connection, ssl=tls)

    async def serve() -> None:
        loop, tasks = asyncio.get_running_loop(), set()
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.setblocking(False)
            main = asyncio.current_task()
            assert main is not None
            started.put((listener.getsockname()[1], partial(loop.call_soon_threadsafe, main.cancel)))
            with suppress(asyncio.CancelledError):
                while True:
                    connection, _ = await loop.sock_accept(listener)
                    connection.setblocking(False)
                    connections.append(connection)
                    tasks.add(loop.create_task(greet(connection)))

    def run() -> None:
        asyncio.run(serve())
        # The end of a loop leaves the sockets of some transports open.
        for connection in connections:
            connection.close()

    connections: list[socket.socket] = []
    thread = threading.Thread(target=run)
    thread.start()
    port, stop = started.get(timeout=60)
    try:
        yield port
    finally:
        stop()
        thread.join()


def component(web: WebServer, name: str) -> str:
    """Return the status of a component of /readyz."""
    return str(requests.get(f"{web.url}/readyz", timeout=60).json()["components"][name]["status"])


def test_every_process_uses_a_redis_with_tls_users_and_sentinels(
    redis_url: str, receiver: Receiver, settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given a user with few rights and Sentinels with a password, all behind TLS, then each process does its work. One
    of them has the address of Redis itself.
    """
    authority, password = Authority(tmp_path), tmp_path / "password"
    password.write_text("a/b@c\n")
    with ExitStack() as stack:
        server = stack.enter_context(RedisServer(tmp_path, "--user", "pushhub", "on", ">a/b@c", *RIGHTS.split()))
        admin = stack.enter_context(redis.Redis.from_url(server.url))
        port = stack.enter_context(with_tls(server.url.removeprefix("unix://"), authority))
        watched, watcher = f"sentinel monitor main 127.0.0.1 {port} 1", free_port()
        stack.enter_context(sentinel(tmp_path, watcher, watched, password="guard"))
        sentinels = stack.enter_context(with_tls(f"{watcher}", authority))
        url = f"sentinels://pushhub@127.0.0.1:{sentinels}/0?master=main&sentinel_password=guard"
        url += f"&ssl_ca_certs={authority.ca_file}"
        address = f"127.0.0.1:{port}/0?ssl_ca_certs={authority.ca_file}"
        settings.REDIS_URL = f"rediss://pushhub:a%2Fb%40c@{address}"
        stack.callback(client_of(settings.REDIS_URL).close)

        api, own = Api(), {"PUSHHUB_REDIS_PASSWORD_FILE": str(password)}
        api.create("topics/orders")
        api.create("subscriptions/push", {"topic": TOPIC, "pushConfig": {"pushEndpoint": receiver.url}})
        api.create("subscriptions/pull", {"topic": TOPIC})
        node = f"push@{socket.gethostname()}"
        push = stack.enter_context(Worker(url, options=["--without-gossip", "-n", node], **own))
        maintenance: dict[str, Any] = {"name": "maintenance", "queue": "maintenance", "beat": True}
        stack.enter_context(Worker(f"rediss://pushhub@{address}", **maintenance, options=["--without-gossip"], **own))
        web = stack.enter_context(WebServer(url, **own))
        grpc = stack.enter_context(GrpcServer(url, rest=web.url, **own))
        flower = stack.enter_context(flower_running(url, **own))
        monkeypatch.setenv("PUBSUB_EMULATOR_HOST", grpc.address)
        with SubscriberClient() as client, ThreadPoolExecutor() as pool:
            pulling = pool.submit(client.pull, subscription=PULL, max_messages=1, timeout=120)
            body = {"messages": [{"data": "eA=="}]}
            answer = requests.post(f"{web.url}/v1/{TOPIC}:publish", json=body, timeout=60)
            assert answer.status_code == 200, answer.text
            [pulled] = pulling.result(timeout=150).received_messages
            client.acknowledge(subscription=PULL, ack_ids=[pulled.ack_id])
        [message_id] = answer.json()["messageIds"]
        assert pulled.message.message_id == message_id
        wait_for(lambda: not Delivery.objects.exists(), what="the acks")

        def is_seen() -> bool:
            # Flower does not get what was sent before it listened.
            sent = requests.post(f"{web.url}/v1/{TOPIC}:publish", json=body, timeout=60).json()["messageIds"]
            message_ids.extend(sent)
            return any(search(flower, each) for each in message_ids[-20:])

        message_ids = [message_id]
        wait_for(is_seen, what="the push in Flower")
        wait_for(lambda: admin.exists(AUDIT_KEY), what="an audit")
        # On a busy machine the answers may take longer than either gives them.
        wait_for(lambda: component(web, "redis") == "ok", what="/readyz")
        check = [sys.executable, "-m", "pushhub.runtime.processes", "push", "--check"]
        wait_for(lambda: subprocess.run(check, cwd=ROOT, env=push._env, check=False).returncode == 0, what="--check")
        assert admin.acl_log() == []


@pytest.mark.parametrize("by", ["port", "socket"])
def test_what_a_restarted_redis_had_saved_is_dropped(tmp_path: Path, by: str) -> None:
    """It lacks the last writes: an ordered lane as it was would send messages behind later ones of their key."""
    port = free_port()
    with (
        RedisServer(tmp_path, "--port", str(port), "--bind", "127.0.0.1") as server,
        connect_to_redis(f"redis://127.0.0.1:{port}/0" if by == "port" else server.url, seconds=10) as client,
    ):
        client.mset({"ph:lane": 1, "deliveries.local": 1, "of others": 1})
        client.save()
        client.set("ph:lane", 2)
        server.stop()
        server.start()
        assert set(client.scan_iter()) == {b"of others", b"ph:primary"}
        client.set("ph:lane", 3)
        client.connection_pool.disconnect()
        assert client.get("ph:lane") == b"3", "a connection that is lost changes nothing"


def test_the_save_of_the_embedded_redis_is_kept(tmp_path: Path, settings: Any) -> None:
    """It is that of a clean stop, and it is removed at the start."""
    with RedisServer(tmp_path) as server:
        settings.EMBEDDED_REDIS_URL = server.url
        with connect_to_redis(server.url, seconds=10) as client:
            client.set("ph:lane", 1)
            client.save()
            server.stop()
            server.start()
            assert set(client.scan_iter()) == {b"ph:lane"}


def cluster_node(folder: Path, port: int) -> AbstractContextManager[Any]:
    bus = str(free_port())  # left to the server, it is a port that may be in use
    options = ("--bind", "127.0.0.1", "--cluster-enabled", "yes", "--cluster-port", bus)
    return RedisServer(folder, "--port", str(port), *options)


@pytest.mark.parametrize(
    ("server", "words"),
    [
        (cluster_node, "PUSHHUB_REDIS_URL names a Cluster: give redis+cluster://host:port,host2:port"),
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
