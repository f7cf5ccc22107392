"""Archivers of three machines with one PostgreSQL and a bucket: the first is killed, the second frozen in mid-work."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from django.db import connection
from django.db.models import Sum

from deliveries.models import ArchiveFile, ArchiveLeftover
from deliveries.pipeline import needs
from deliveries.pipeline.archiving import files
from deliveries.publish.service import publish_message
from deliveries.rules.payload import NewMessage
from pushhub.common import stores
from pushhub.common.stores import Store
from subscriptions.selectors import get_topic
from subscriptions.services.topics import create_topic
from tests.objectstores import BUCKET, S3
from tests.pipeline.test_kills import start
from tests.ports import free_port, wait_for
from tests.workers import command_environment

pytestmark = pytest.mark.django_db(transaction=True)

ARCHIVE = f"s3://{BUCKET}/archive"
TOPIC = "projects/shop/topics/orders"
#: Twenty steps of tests.pipeline.killed.
COUNT = 800
#: How an archiver that was frozen ends: its lock is gone, or, if it froze in a transaction, its connection is.
ENDINGS = ("Another archiver has taken over; this one stops.", "idle-in-transaction timeout")
Machine = Callable[[], subprocess.Popen[bytes]]


@pytest.fixture(autouse=True)
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A bucket that all machines reach."""
    if connection.vendor != "postgresql":
        pytest.xfail("SQLite has one machine")
    if missing := needs.missing():
        pytest.skip(missing)
    port = free_port()
    for name, value in S3.environment(port).items():
        monkeypatch.setenv(name, value)
    stores._filesystem.cache_clear()
    logging.getLogger("werkzeug").setLevel(logging.WARNING)
    with S3.server(port):
        yield
    stores._filesystem.cache_clear()


@pytest.fixture
def machine(tmp_path: Path, redis_url: str) -> Iterator[Machine]:
    """Return a function that archives on a new machine, with a folder and a process group of its own."""
    environment = command_environment(PUSHHUB_REDIS_URL=redis_url, PUSHHUB_ARCHIVE=ARCHIVE)
    with ExitStack() as stack:
        log = stack.enter_context((tmp_path / "log").open("w"))

        def archive() -> subprocess.Popen[bytes]:
            folder = tmp_path / f"machine-{len(list(tmp_path.iterdir()))}"
            folder.mkdir()
            own = environment | {"PUSHHUB_DATA_DIR": str(folder)}
            process = start(["tests.pipeline.killed", "archive", "--compact"], own, log)
            stack.callback(end, process)
            return process

        yield archive


def end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def count_in_manifest() -> int:
    return int(ArchiveFile.objects.aggregate(rows=Sum("rows"))["rows"] or 0)


def works_on(process: subprocess.Popen[bytes], *, after: int) -> None:
    """Wait until a machine has archived some messages, and has others before it."""
    wait_for(lambda: count_in_manifest() > after or process.poll() is not None, what="a step of the archive")
    assert after < count_in_manifest() < COUNT


def is_frozen_in_a_write(process: subprocess.Popen[bytes]) -> bool:
    """Freeze a machine, unless it is between two writes: there it would find nothing to do later, and end well."""
    os.killpg(process.pid, signal.SIGSTOP)
    if ArchiveLeftover.objects.filter(replaced_at=None).exclude(token="").exists():
        return True
    os.killpg(process.pid, signal.SIGCONT)
    return False


def archives(machine: Machine) -> bool:
    """Archive on a new machine; return whether it was let in."""
    return machine().wait(timeout=600) == 0


def archived() -> Counter[str]:
    """Count the messages of the archive by their data, as whoever reads its list of files finds them."""
    store = Store(ARCHIVE)
    found: Counter[str] = Counter()
    for row in store.read_text("files.csv").splitlines()[1:]:
        with store.open(row.split(",")[0]) as file:
            found.update(data.decode() for data in pq.read_table(file, columns=["data"])["data"].to_pylist())
    return found


def test_another_machine_goes_on_and_a_frozen_one_adds_nothing(machine: Machine, tmp_path: Path) -> None:
    create_topic(name=TOPIC, topic={})
    published = [f"{number}" for number in range(COUNT)]
    publish_message(topic=get_topic(name=TOPIC), messages=[NewMessage(data.encode(), {}, "") for data in published])

    first = machine()
    works_on(first, after=0)
    os.killpg(first.pid, signal.SIGKILL)
    second = machine()
    works_on(second, after=count_in_manifest())
    wait_for(lambda: is_frozen_in_a_write(second), what="a write under way")
    assert count_in_manifest() < COUNT
    wait_for(lambda: archives(machine), what="the end of the frozen machine's lock")
    assert archived() == Counter(published)

    os.killpg(second.pid, signal.SIGCONT)
    assert second.wait(timeout=600) == 1
    log = (tmp_path / "log").read_text()
    assert any(ending in log for ending in ENDINGS), log[-2000:]
    assert archives(machine)
    assert archived() == Counter(published)
    verified = files.verify(ARCHIVE)
    assert (verified.messages, verified.missing, verified.damaged, verified.unknown) == (COUNT, [], [], [])
