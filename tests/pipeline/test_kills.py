"""What each job did after kills at random moments is what DuckDB counts in its source."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import duckdb
import psutil
import pytest
from django.core.management import call_command
from django.db.models import Sum

from deliveries.models import ArchiveFile, Delivery, Message, MetricDay, MetricHour, MetricMinute, PublishJob, Segment
from deliveries.publish.service import publish_message
from deliveries.rules.payload import NewMessage
from deliveries.telemetry.counting.rollup import Rollup
from subscriptions.selectors import get_topic
from subscriptions.services.subscriptions import create_subscription
from subscriptions.services.topics import create_topic
from tests.grpcservers import GrpcServer
from tests.lanes import end_leases
from tests.ownprocess import is_alive
from tests.pipeline.ground import TRIALS, archived_by_duckdb, counted_by_duckdb, make_segments, metrics_of
from tests.pipeline.killed_stream import write_messages
from tests.pipeline.quickjava import QUICK_JAVA, QUICK_SPARK, QUICK_SUBMIT
from tests.ports import wait_for
from tests.workers import ROOT, command_environment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("spark")]

WORKER = "projects/p0/subscriptions/worker"
TOPICS = [f"projects/p{number}/topics/orders" for number in range(3)]
#: Messages of each topic.
COUNT = 200
Kill = Callable[[int, int], None]
#: Python's half of a driver is killed, after which Java and the tasks live a moment longer, or both halves. Jobs take
#: turns; with TRIALS=2 each of them is killed in both ways.
HALF_FIRST: tuple[Kill, ...] = (os.kill, os.killpg)
WHOLE_FIRST = HALF_FIRST[::-1]


@pytest.fixture
def killed(spark: SparkSession, redis_url: str, tmp_path: Path, settings: Any) -> Callable[..., None]:
    """Return a function that runs a command, kills it at a random moment of its progress, and at last runs it here.

    A rollup is then run with the session of all tests, which the command would end.
    """
    settings.ARCHIVE, settings.SPARK_MASTER = str(tmp_path / "archive"), "local[2]"
    for topic in TOPICS:
        create_topic(name=topic, topic={})
        rows = [NewMessage(b'{"n": %d}' % n, {"kind": "ab"[n % 2]}, f"k{n % 7}" if n % 3 else "") for n in range(COUNT)]
        publish_message(topic=get_topic(name=topic), messages=rows)
    environment = command_environment(
        PUSHHUB_REDIS_URL=redis_url,
        PUSHHUB_ARCHIVE=settings.ARCHIVE,
        PUSHHUB_JOURNAL=str(tmp_path / "segments"),
        PUSHHUB_SPARK_CONF=QUICK_SPARK.replace(QUICK_JAVA, f"{QUICK_JAVA} -Djava.io.tmpdir={tmp_path}"),
    )

    def run(*words: str, progress: Callable[[], int], total: int, seed: int, kills: Sequence[Kill]) -> None:
        kills = kills[:TRIALS]
        moments = sorted(random.Random(seed).sample(range(1, total), len(kills)))
        for kill, moment in zip(kills, moments, strict=True):
            with (tmp_path / "killed.log").open("a") as log:
                process = start(["tests.pipeline.killed", *words], environment, log)
                kill_when(lambda at=moment: progress() >= at, process, kill)  # type: ignore[misc]
        if words[0] == "rollup":
            Rollup(tmp_path / "segments", session=spark).once()
        else:
            call_command("pipeline", *words)

    return run


def start(words: Sequence[str], environment: Mapping[str, str], log: IO[str]) -> subprocess.Popen[bytes]:
    """Start a module with arguments, in a process group of its own."""
    command = [sys.executable, "-W", "ignore", "-m", *words]
    return subprocess.Popen(
        command, cwd=ROOT, env=os.environ | environment, start_new_session=True, stdout=log, stderr=log
    )


def kill_when(is_due: Callable[[], bool], process: subprocess.Popen[bytes], kill: Kill) -> None:
    """Kill a driver when it is due, unless it ends before. Return when nothing is left of it."""
    family: list[psutil.Process] = []
    try:
        wait_for(lambda: is_due() or process.poll() is not None, what=f"progress of {process.args}")
    finally:
        if process.poll() is None:
            family = psutil.Process(process.pid).children(recursive=True)
            kill(process.pid, signal.SIGKILL)
        process.wait()
    wait_for(lambda: not any(map(is_alive, family)), what="the end of what a driver started")


def count_archived() -> int:
    return int(ArchiveFile.objects.aggregate(rows=Sum("rows"))["rows"] or 0)


def test_an_archive_has_each_message_once(killed: Callable[..., None], tmp_path: Path) -> None:
    killed("archive", "--compact", progress=count_archived, total=3 * COUNT, seed=2, kills=HALF_FIRST)
    assert archived_by_duckdb(tmp_path / "archive") == dict.fromkeys(TOPICS, COUNT)


def test_a_replay_publishes_what_duckdb_finds_in_the_archive(killed: Callable[..., None], tmp_path: Path) -> None:
    """Given messages with and without ordering keys and a filter, then those of each key are published in order."""
    call_command("pipeline", "archive")
    Message.objects.all().delete()
    now = datetime.now(UTC)
    span = ["--from", (now - timedelta(hours=1)).isoformat(), "--to", (now + timedelta(hours=1)).isoformat()]
    words = ["replay", "--topic", TOPICS[0], *span, "--filter", 'attributes.kind = "a"', "--rate", "60", "--id", "one"]

    killed(*words, progress=Message.objects.count, total=COUNT // 2, seed=3, kills=WHOLE_FIRST)

    query = """
        SELECT ordering_key, decode(data) FROM read_parquet($1)
        WHERE topic = $2 AND attributes['kind'] = 'a' ORDER BY message_id::BIGINT
    """
    with duckdb.connect() as engine:
        files = [str(path) for path in (tmp_path / "archive").rglob("*.parquet")]
        expected = engine.execute(query, [files, TOPICS[0]]).fetchall()
    assert_published(expected, by_key=True)


@pytest.mark.parametrize("key", [[], ["--ordering-key-column", "key"]], ids=["split", "key"])
def test_an_ingest_publishes_what_duckdb_finds_in_the_files(
    killed: Callable[..., None], tmp_path: Path, key: list[str]
) -> None:
    Message.objects.all().delete()
    folder = tmp_path / "rows"
    folder.mkdir()
    for number in range(4):
        lines = [f'{number * 100 + n},"k{n * 7 % 11}"' for n in range(100)]
        (folder / f"{number}.csv").write_text("\n".join(["n,key", *lines]))
    words = ["ingest", str(folder), "--format", "csv", "--topic", TOPICS[0], "--data-column", "n", *key, "--id", "one"]

    kills = WHOLE_FIRST if key else HALF_FIRST
    killed(*words, "--rate", "150", progress=Message.objects.count, total=400, seed=4, kills=kills)

    query = "SELECT key, n FROM read_csv($1, all_varchar = true, filename = true) ORDER BY filename, n::INT"
    with duckdb.connect() as engine:
        rows = engine.execute(query, [str(folder / "*.csv")]).fetchall()
    assert_published(rows if key else [("", n) for _, n in rows], by_key=bool(key))


def test_a_rollup_counts_what_duckdb_finds_in_the_segments(
    killed: Callable[..., None], tmp_path: Path, settings: Any
) -> None:
    settings.JOURNAL = str(tmp_path / "segments")
    paths = make_segments(tmp_path / "segments", range(16), seed=5)

    killed("rollup", "--once", progress=Segment.objects.count, total=16, seed=6, kills=HALF_FIRST)

    for model, seconds in ((MetricMinute, 60), (MetricHour, 3600), (MetricDay, 86400)):
        assert metrics_of(model) == counted_by_duckdb(paths, seconds=seconds), model.__name__


def test_a_stream_of_a_subscription_has_what_was_published(
    spark: SparkSession, server: GrpcServer, tmp_path: Path
) -> None:
    """Given a stream from a subscription to files, when its driver is killed at a random moment, and another runs to
    the end, then DuckDB finds each message in the files, and none is left.
    """
    create_topic(name=TOPICS[0], topic={})
    create_subscription(name=WORKER, subscription={"topic": TOPICS[0]})
    environment = {"PYSPARK_SUBMIT_ARGS": f"{QUICK_SUBMIT} --conf spark.local.dir={tmp_path} pyspark-shell"}
    words = ["tests.pipeline.killed_stream", server.address, WORKER, str(tmp_path)]
    dice = random.Random(7)
    ids: list[str] = []

    def acknowledged() -> int:
        return len(ids) - Delivery.objects.count()

    def written() -> int:
        return len(list((tmp_path / "out").glob("*.parquet")))

    for kill in WHOLE_FIRST[:TRIALS]:
        ids += publish_message(topic=get_topic(name=TOPICS[0]), messages=[NewMessage(b"x", {})] * 50)
        # Between two batches, or within one.
        count = dice.choice([acknowledged, written])
        moment = count() + dice.randrange(1, 12)
        with (tmp_path / "killed.log").open("a") as log:
            kill_when(lambda at=moment, of=count: of() >= at, start(words, environment, log), kill)  # type: ignore[misc]
        end_leases()
    write_messages(spark, server.address, WORKER, tmp_path, to_the_end=True)

    assert not Delivery.objects.exists()
    logs = (tmp_path / "out" / "_spark_metadata").glob("[0-9]*")
    lines = [line for log_file in logs for line in log_file.read_text().splitlines()[1:]]
    with duckdb.connect() as engine:
        paths = sorted({json.loads(line)["path"] for line in lines})
        found = engine.execute("SELECT DISTINCT message_id FROM read_parquet($1) ORDER BY 1", [paths]).fetchall()
    assert [message_id for (message_id,) in found] == sorted(ids)


def assert_published(expected: list[tuple[str, str]], *, by_key: bool) -> None:
    """Assert that each row was published once, and those of each ordering key in their order."""
    actual = [(row.ordering_key, bytes(row.data).decode()) for row in Message.objects.order_by("pk")]
    assert Counter(actual) == Counter(expected)
    for key in {key for key, _ in expected} - {""} if by_key else ():
        assert [row for row in actual if row[0] == key] == [row for row in expected if row[0] == key]
    job = PublishJob.objects.get()
    assert job.finished_at is not None
    assert job.divided.aggregate(done=Sum("published"))["done"] == len(expected), json.dumps(job.spec)
