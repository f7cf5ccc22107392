"""Real outages of the database and of Redis, and servers that answer meanwhile and need no restart afterwards."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
import requests
from django.db import connection
from google.pubsub_v1.types import pubsub

from deliveries.publish.service import publish_message
from deliveries.pull.leasing import pull_messages
from deliveries.rules.payload import NewMessage
from pushhub.common.outages import Cause
from subscriptions.selectors import get_topic, read_subscription
from subscriptions.services.projects import create_project
from subscriptions.services.subscriptions import create_subscription
from subscriptions.services.topics import create_topic
from tests.grpcservers import GrpcServer
from tests.ports import wait_for
from tests.redisoutages import CAUSES, Outage, full
from tests.redisserver import RedisServer
from tests.webservers import WebServer

pytestmark = pytest.mark.django_db(transaction=True)

SHOP = "projects/shop"
ORDERS, PULLED = f"{SHOP}/topics/orders", f"{SHOP}/subscriptions/pulled"
DATA = b"x" * 10_000
#: Root may write to every file, which this takes from a process (capabilities(7): CAP_DAC_OVERRIDE).
BOUND_BY_MODES = """
import ctypes, os
if os.geteuid() == 0:
    libc, header = ctypes.CDLL(None, use_errno=True), (ctypes.c_uint32 * 2)(0x20080522, 0)
    sets = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable; then the higher halves of the three
    assert libc.capget(header, sets) == 0
    sets[0], sets[1] = sets[0] & ~6, sets[1] & ~6
    assert libc.capset(header, sets) == 0
"""


class Hub:
    """A web and a gRPC server."""

    def __init__(self, redis_url: str, ack_id: str, *, first: str = "") -> None:
        self.web = WebServer(redis_url, first=first)
        self.grpc = GrpcServer(redis_url, rest=self.web.url, first=first)
        self._ack_id = ack_id
        self._number = 0

    def __enter__(self) -> Hub:
        with ExitStack() as stack:
            stack.enter_context(self.web)
            stack.enter_context(self.grpc)
            self._channel = stack.enter_context(grpc.insecure_channel(self.grpc.address))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)

    def statuses(self) -> dict[str, str]:
        """Return how each call is answered: OK or the canonical code."""
        self._number += 1
        names = [f"{SHOP}/topics/{surface}{self._number}" for surface in ("rest", "grpc")]
        publish = pubsub.PublishRequest(topic=ORDERS, messages=[{"data": DATA}])
        pull = pubsub.PullRequest(subscription=PULLED, max_messages=1, return_immediately=True)
        ack = pubsub.AcknowledgeRequest(subscription=PULLED, ack_ids=[self._ack_id])
        return {
            "REST publish": self.rest("POST", f"{ORDERS}:publish", {"messages": [{"data": "eHh4" * 3000}]}),
            "REST pull": self.rest("POST", f"{PULLED}:pull", {"maxMessages": 1, "returnImmediately": True}),
            "REST acknowledge": self.rest("POST", f"{PULLED}:acknowledge", {"ackIds": [self._ack_id]}),
            "REST create": self.rest("PUT", names[0], {}),
            "REST get": self.rest("GET", ORDERS, None),
            "gRPC publish": self.rpc("Publisher/Publish", publish),
            "gRPC pull": self.rpc("Subscriber/Pull", pull),
            "gRPC acknowledge": self.rpc("Subscriber/Acknowledge", ack),
            "gRPC create": self.rpc("Publisher/CreateTopic", pubsub.Topic(name=names[1])),
            "gRPC get": self.rpc("Publisher/GetTopic", pubsub.GetTopicRequest(topic=ORDERS)),
        }

    def rest(self, method: str, name: str, body: Any) -> str:
        response = requests.request(method, f"{self.web.url}/v1/{name}", json=body, timeout=120)
        content = response.json()
        return "OK" if response.status_code == 200 else str(content["error"]["status"])

    def rpc(self, method: str, request: Any) -> str:
        call = self._channel.unary_unary(f"/google.pubsub.v1.{method}", type(request).serialize)
        try:
            call(request, timeout=120)
        except grpc.RpcError as error:
            assert error.details()
            return str(error.code().name)
        return "OK"

    def component(self, name: str) -> dict[str, Any]:
        components: dict[str, dict[str, Any]] = requests.get(f"{self.web.url}/readyz", timeout=30).json()["components"]
        return components[name]

    def is_ready(self) -> bool:
        return all(self.component(name)["status"] == "ok" for name in ("database", "redis"))

    @property
    def logs(self) -> list[str]:
        return [self.web.log, self.grpc.log]


def check_outage(hub: Hub, component: str, causes: set[Cause], *, ok: set[str], refused: set[str]) -> None:
    """Check the answers, the log and the readiness while an outage lasts: `ok` and `refused` are words of calls."""
    for _ in range(3):
        statuses = hub.statuses()
        assert set(statuses.values()) <= {"OK", "UNAVAILABLE"}, statuses
        by_word = {word: {statuses[f"{surface} {word}"] for surface in ("REST", "gRPC")} for word in ok | refused}
        assert by_word == {word: {"OK" if word in ok else "UNAVAILABLE"} for word in ok | refused}
    shown = hub.component(component)
    assert (shown["status"], shown["reason"] in causes) == ("unavailable", True), shown
    for log in hub.logs:
        assert "Traceback" not in log
        for cause in causes:
            # The machine may be so busy that these few calls take more than a minute.
            assert log.count(f"WARNING {cause}: ") <= 3


def check_end(hub: Hub) -> None:
    """Check that the servers go on by themselves once the outage is over."""
    wait_for(hub.is_ready, what="readiness")
    wait_for(lambda: set(hub.statuses().values()) == {"OK"}, what="every call's success")
    assert all("Traceback" not in log for log in hub.logs)


@pytest.fixture
def own_redis(redis_url: str, tmp_path: Path) -> Iterator[RedisServer]:
    with RedisServer(tmp_path) as server:
        yield server


@pytest.fixture
def ack_id(own_redis: RedisServer, settings: Any) -> str:
    """Return a lease of the subscription."""
    settings.REDIS_URL = own_redis.url
    create_project(project_id="shop")
    create_topic(name=ORDERS, topic={})
    create_subscription(name=PULLED, subscription={"topic": ORDERS})
    publish_message(topic=get_topic(name=ORDERS), messages=[NewMessage(b"x", {})])
    [received] = pull_messages(subscription=read_subscription(name=PULLED), max_messages=1)
    return received.ack_id


#: Without it, each call waits for a hanging Redis for ten seconds.
IMPATIENT = "import deliveries.backlog.connection as module; module.SOCKET_TIMEOUT_SECONDS = 0.5"


@pytest.mark.any_database
@pytest.mark.parametrize(
    ("outage", "refused"),
    # A full one refuses nothing that makes room.
    [(full, set()), *((outage, {"pull", "acknowledge"}) for outage in CAUSES if outage is not full)],
    ids=lambda it: it.__name__ if callable(it) else "",
)
def test_without_redis_messages_are_published_and_pulls_are_unavailable(
    ack_id: str, own_redis: RedisServer, outage: Outage, refused: set[str]
) -> None:
    with Hub(own_redis.url, ack_id, first=IMPATIENT) as hub:
        with outage(own_redis):
            check_outage(hub, "redis", {CAUSES[outage]}, ok={"publish", "create", "get"}, refused=refused)
        check_end(hub)


def files_of(database: str) -> list[Path]:
    return [path for path in map(Path, (database, f"{database}-wal", f"{database}-shm")) if path.exists()]


@contextmanager
def read_only_database() -> Iterator[None]:
    """Make the test's database read-only for new connections, and end those of PostgreSQL."""
    name = str(connection.settings_dict["NAME"])
    if connection.vendor == "sqlite":
        modes = {path: path.stat().st_mode for path in files_of(name)}
        for path in modes:
            path.chmod(0o444)
        try:
            yield
        finally:
            for path, mode in modes.items():
                path.chmod(mode)
        return
    with connection.cursor() as cursor:
        cursor.execute(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')
        cursor.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s AND pid <> pg_backend_pid()",
            [name],
        )
        try:
            yield
        finally:
            cursor.execute(f'ALTER DATABASE "{name}" RESET default_transaction_read_only')


def test_a_read_only_database_makes_writes_unavailable(ack_id: str, own_redis: RedisServer) -> None:
    with ExitStack() as stack:
        if connection.vendor == "sqlite":
            # A file that is open stays writable, and a file that was opened to be read is never written to.
            stack.enter_context(read_only_database())
            hub = stack.enter_context(Hub(own_redis.url, ack_id, first=BOUND_BY_MODES))
            check_outage(hub, "database", {Cause.DATABASE_READ_ONLY}, ok={"get"}, refused={"publish", "create"})
        else:
            hub = stack.enter_context(Hub(own_redis.url, ack_id))
            with read_only_database():
                check_outage(hub, "database", {Cause.DATABASE_READ_ONLY}, ok={"get"}, refused={"publish", "create"})
            check_end(hub)


@pytest.mark.any_database
def test_a_disk_without_space_makes_writes_unavailable(ack_id: str, own_redis: RedisServer) -> None:
    """The servers get no more space for their files. With PostgreSQL they have none."""
    with connection.cursor() as cursor:
        # Earlier tests may have left a long log, which would be overwritten without growing.
        cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    with Hub(own_redis.url, ack_id) as hub:
        pids = [hub.web.process.pid, hub.grpc.process.pid]
        most = Path(f"{connection.settings_dict['NAME']}-wal").stat().st_size
        for pid in pids:
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))
        wait_for(lambda: hub.statuses()["REST publish"] == "UNAVAILABLE", what="the end of the space")
        # What is small may still fit.
        causes = {Cause.DATABASE_FULL, Cause.DATABASE_FAILS}
        check_outage(hub, "database", causes, ok={"get"}, refused={"publish"})
        for pid in pids:
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        check_end(hub)
