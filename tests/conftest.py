"""Fixtures that every tier shares: a real Redis, a scriptable receiver, markers by folder, and no skipping in CI."""

from __future__ import annotations

import gc
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Iterator
from typing import Any

import hypothesis
import pytest
import redis
from cryptography.hazmat.primitives.asymmetric import rsa
from django.db import connection
from pytest_django.live_server_helper import LiveServer

from pushhub.runtime import embedded
from subscriptions.transforms.sandboxes import close_sandboxes
from tests import emptying, leftovers, liveservers, preloaded
from tests.flowers import flower_running
from tests.grpcservers import GrpcServer
from tests.ports import wait_for
from tests.privatekeys import PrivateKeys
from tests.programs import IN_CI
from tests.receiver import Receiver
from tests.scheduling import GroupScheduling, ordered

TIERS = ("unit", "integration", "security", "endtoend", "compatibility", "browser", "chaos")
#: Fixtures that lead to the database. Only tests with one of them, or with the marker django_db, run on PostgreSQL.
DATABASE_FIXTURES = frozenset({"db", "transactional_db", "django_db_setup", "live_server"})
#: PushHub's environment variables, which no test may change for those after it.
VARIABLES = leftovers.variables()
#: How long a test's last threads and processes may take to end.
LEFTOVERS_SECONDS = 10.0
#: How long to wait before garbage is collected, which takes half a second and is rarely needed.
GARBAGE_SECONDS = 1.0


def pytest_configure() -> None:
    """Handle SIGINT, set up the database's emptying and live servers, and collect garbage less often.

    A shell makes its background jobs ignore SIGINT, and the processes that tests start would inherit that. The
    collector takes a twentieth of the tests' time by default. Outside of CI, Hypothesis would choose other examples in
    each run and fail those that take long.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    emptying.replace_flush()
    liveservers.learn_clients()
    gc.set_threshold(50_000, 20, 100)
    hypothesis.settings.load_profile("ci")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect tests without the garbage collector, which otherwise takes a third of that time; they are all kept."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_unconfigure() -> None:
    """Leave what is still there to the system, once pytest has looked for garbage: it would look a second time.

    But let the interpreter free everything if DuckDB, which complains about what is left, was imported: it takes 2.5 s.
    """
    if "duckdb" in sys.modules:
        gc.unfreeze()
    else:
        gc.freeze()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark each test with its tier, choose those for this database, and let the longest begin first."""
    for item in items:
        tier = item.nodeid.split("/")[1]
        if tier in TIERS:
            item.add_marker(getattr(pytest.mark, tier))
        elif tier == "pipeline":
            item.add_marker(pytest.mark.spark)
    if connection.vendor != "sqlite":
        without = [item for item in items if not _touches_database(item)]
        config.hook.pytest_deselected(items=without)
        items[:] = [item for item in items if _touches_database(item)]
    if hasattr(config, "workerinput"):
        items[:] = ordered(items)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """Replace the scheduler of pytest-xdist, which no longer groups tests with this version of pytest."""
    return GroupScheduling(config, log)


def _touches_database(item: pytest.Item) -> bool:
    """Return whether a test depends on the database, which its fixtures tell unless a marker says otherwise."""
    if item.get_closest_marker("any_database") is not None:
        return False
    fixtures = getattr(item, "fixturenames", ())
    return item.get_closest_marker("django_db") is not None or not DATABASE_FIXTURES.isdisjoint(fixtures)


@pytest.fixture(autouse=True)
def leaves_nothing_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that leaves a process, a thread, an open file, a port, a temporary file or a Redis key behind.

    Fixtures of the session and the module are set up before this one, so what they hold doesn't count.
    """
    url = request.getfixturevalue("redis_server") if "redis_server" in request.fixturenames else ""
    before = leftovers.holdings()
    yield
    close_sandboxes()
    remaining = leftovers.since(before, redis_url=url)
    ended = time.monotonic()
    while remaining and time.monotonic() < ended + LEFTOVERS_SECONDS:
        if "grpc_process" in request.fixturenames:
            # The server outlives the test, and may still have worked on a call that the test broke off.
            leftovers.redis_client(url).flushall()
        time.sleep(0.05)
        if time.monotonic() > ended + GARBAGE_SECONDS:
            # What only garbage holds is not left behind.
            gc.collect()
        remaining = leftovers.since(before, redis_url=url)
    assert not remaining, "the test left behind: " + "; ".join(remaining)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Generator[None, None, None]:
    """Fail a test that changes a variable of PushHub, once its monkeypatch is undone: later processes inherit it."""
    yield
    changed = leftovers.restore_variables(VARIABLES)
    assert not changed, f"the test changed the environment: {', '.join(changed)}"


@pytest.fixture(scope="session")
def private_keys() -> Iterator[PrivateKeys]:
    """The RSA keys that the tests of this process share."""
    with pytest.MonkeyPatch.context() as patch:
        keys = PrivateKeys(rsa.generate_private_key)
        patch.setattr(rsa, "generate_private_key", keys)
        yield keys


@pytest.fixture(autouse=True)
def private_keys_again(private_keys: PrivateKeys) -> None:
    """Start each test at the first of the shared RSA keys."""
    private_keys.begin_again()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turn skipped tests into failed ones in CI. On a developer's machine, a test may be skipped."""
    report = yield
    if IN_CI and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped, which CI does not allow: {report.longrepr}"
    return report


def _answers(client: redis.Redis) -> bool:
    try:
        return bool(client.ping())
    except redis.ConnectionError:
        return False


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a real redis-server that only this test run uses."""
    preloaded.start()
    folder = tmp_path_factory.mktemp("redis")
    socket = folder / "redis.sock"
    process = subprocess.Popen(embedded.command(socket=socket, folder=folder))
    try:
        with redis.Redis(unix_socket_path=str(socket)) as client:
            wait_for(lambda: process.poll() is not None or _answers(client), what="Redis")
        assert process.poll() is None, (folder / "redis.log").read_text()
        yield f"unix://{socket}"
    finally:
        leftovers.redis_client(f"unix://{socket}").close()
        process.terminate()
        process.wait(timeout=10)


@pytest.fixture
def redis_url(redis_server: str, settings: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of an empty Redis, which `settings.REDIS_URL` and the processes that a test starts use."""
    settings.REDIS_URL = redis_server
    monkeypatch.setenv("PUSHHUB_REDIS_URL", redis_server)
    yield redis_server
    leftovers.redis_client(redis_server).flushall()


@pytest.fixture
def flower(redis_url: str) -> Iterator[str]:
    """The address of Flower, which asks for flowers.LOGIN."""
    with flower_running(redis_url) as address:
        yield address


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """A push endpoint on 127.0.0.1 that records what it gets and answers as the test scripts it."""
    with Receiver() as receiver:
        yield receiver


@pytest.fixture(scope="session")
def grpc_process(django_db_setup: None, redis_server: str, live_server: LiveServer) -> Iterator[GrpcServer]:
    """A gRPC server whose port serves REST as well. It caches nothing of a test for longer than a second."""
    with GrpcServer(redis_server, rest=live_server.url) as server:
        yield server


@pytest.fixture
def server(
    transactional_db: None, redis_url: str, grpc_process: GrpcServer, monkeypatch: pytest.MonkeyPatch
) -> GrpcServer:
    """The server, with an empty database. Clients find it by the variable PUBSUB_EMULATOR_HOST."""
    monkeypatch.setenv("PUBSUB_EMULATOR_HOST", grpc_process.address)
    return grpc_process
