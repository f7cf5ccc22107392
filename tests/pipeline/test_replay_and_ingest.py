"""Replay and ingest: which messages they choose, and that they publish each once."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from django.conf import settings
from django.core.management import CommandError, call_command

from deliveries.admin.publishjobs import start
from deliveries.models import Message, PipelineRun, PublishJob, PublishPart
from deliveries.pipeline.archiving.archive import Archiver
from deliveries.pipeline.jobs import replay, spans
from deliveries.pipeline.jobs.filters import filter_column
from deliveries.pipeline.jobs.replay import ReplaySpec, begin_replay
from deliveries.pipeline.publishing import parts, publishjobs
from deliveries.publish.service import publish_message
from deliveries.pull.leasing import pull_messages
from deliveries.rules.payload import NewMessage
from pushhub.common.errors import FailedPrecondition, InvalidArgument
from subscriptions.selectors import get_subscription, get_topic
from subscriptions.services.subscriptions import create_subscription, delete_subscription
from subscriptions.services.topics import create_topic
from tests.pipeline.conftest import Run
from tests.ports import wait_for
from tests.workers import ROOT, command_environment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("spark")]

TOPIC = "projects/shop/topics/orders"
WORKER = "projects/shop/subscriptions/worker"
OTHER = "projects/shop/subscriptions/other"
BEGIN = datetime.now(UTC) - timedelta(hours=1)
END = BEGIN + timedelta(days=2)
EVER = ["--from", BEGIN.isoformat(), "--to", END.isoformat()]
ALL = ReplaySpec(TOPIC, "", BEGIN, END, "")


def archive_messages(spark: SparkSession, messages: Sequence[NewMessage]) -> None:
    """Leave messages of the topic in the archive and none in the database."""
    publish_message(topic=get_topic(name=TOPIC), messages=messages)
    Archiver(settings.ARCHIVE, session=spark).run()
    Message.objects.all().delete()


@pytest.fixture
def topic(spark: SparkSession, redis_url: str, tmp_path: Path, settings: Any) -> str:
    """A topic, and an archive without messages."""
    settings.ARCHIVE = str(tmp_path / "archive")
    settings.SPARK_MASTER = "local[2]"
    create_topic(name=TOPIC, topic={})
    return TOPIC


@pytest.fixture
def archived(spark: SparkSession, topic: str) -> None:
    """Leave 60 messages in the archive and none in the database, and then create two subscriptions."""
    messages = [
        NewMessage(
            json.dumps({"n": number, "customer": {"name": f"ada {number % 3}"}}).encode(),
            {"kind": "order" if number % 2 else "return"},
        )
        for number in range(60)
    ]
    archive_messages(spark, messages)
    for name in (WORKER, OTHER):
        create_subscription(name=name, subscription={"topic": TOPIC})


def environment(redis_url: str) -> dict[str, str]:
    """Return the environment in which another process uses this test's database, Redis and archive."""
    return command_environment(PUSHHUB_REDIS_URL=redis_url, PUSHHUB_ARCHIVE=settings.ARCHIVE)


def numbers(name: str = WORKER) -> list[int]:
    received = pull_messages(subscription=get_subscription(name=name), max_messages=1000)
    return [json.loads(base64.b64decode(pulled.message["data"]))["n"] for pulled in received]


def test_a_replay_to_a_topic_publishes_each_message_once_in_order(archived: None, run: Run) -> None:
    assert "published 60 messages" in run("replay", "--topic", TOPIC, *EVER, "--id", "again")
    assert numbers() == list(range(60))
    assert numbers(OTHER) == list(range(60))
    output = run("replay", "--topic", TOPIC, *EVER, "--id", "again")
    assert re.fullmatch(
        r"again was finished at .* UTC, so nothing is published now: it had published 60 messages and rejected 0\n",
        output,
    )
    assert Message.objects.count() == 60
    run("replay", "--topic", TOPIC, *EVER, "--id", "once more")
    assert Message.objects.count() == 120


def test_a_replay_to_a_subscription_reaches_no_other(archived: None, run: Run) -> None:
    words = ["--filter", 'attributes.kind = "order" AND NOT hasPrefix(json.customer.name, "ada 1")']
    run("replay", "--subscription", WORKER, *EVER, *words)
    assert numbers() == [n for n in range(60) if n % 2 and n % 3 != 1]
    assert numbers(OTHER) == []


def test_a_dry_run_shows_the_plan_and_publishes_nothing(archived: None, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    call_command("pipeline", "replay", "--topic", TOPIC, *EVER, "--dry-run")
    assert "plan: 60 messages" in capsys.readouterr().err
    call_command("pipeline", "replay", "--topic", TOPIC, *EVER, "--dry-run", "--filter", "attributes:none")
    assert capsys.readouterr().err == (
        "plan: no archived message of that time passes the filter, so nothing is published\n"
    )
    assert (Message.objects.count(), PublishJob.objects.count()) == (0, 0)


def test_a_killed_replay_resumes_where_it_was(archived: None, redis_url: str, run: Run, settings: Any) -> None:
    """The driver is killed. Its task may live a moment longer, at the same time as the one that replaces it."""
    words = ["replay", "--topic", TOPIC, *EVER, "--id", "killed"]
    env = os.environ | environment(redis_url)
    command = [sys.executable, "manage.py", "pipeline", *words, "--rate", "10"]
    process = subprocess.Popen(command, cwd=ROOT, env=env, start_new_session=True, stderr=subprocess.DEVNULL)
    try:
        wait_for(lambda: Message.objects.count() >= 20, what="a third of the replay")
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert Message.objects.count() < 60
    assert PublishJob.objects.get().finished_at is None
    done = Message.objects.count()
    run("replay", "--resume", "killed", "--dry-run")
    assert Message.objects.count() == done
    run("replay", "--resume", "killed")
    assert sorted(numbers()) == list(range(60))
    assert PublishJob.objects.get().finished_at is not None


def test_parts_are_published_at_the_same_time_and_each_message_once(
    archived: None, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "PART_ROWS", 10)
    assert "published 60 messages" in run("replay", "--topic", TOPIC, *EVER)
    assert PublishPart.objects.filter(finished=True).count() == PublishJob.objects.get().parts
    assert PublishPart.objects.count() > 1
    assert sorted(numbers()) == list(range(60))


def test_a_replay_reads_only_what_it_must(archived: None, spark: SparkSession, settings: Any) -> None:
    """Given an archive, then topic and time are options of the read, and it can skip row groups by their statistics.

    tests/unit/pipeline/test_archive_reader.py says which files and row groups are read.
    """
    chosen = replay.chosen(spark, ALL, root=settings.ARCHIVE)
    spark.conf.set("spark.sql.maxMetadataStringLength", "2000")
    plan = chosen._jdf.queryExecution().toString()
    spark.conf.unset("spark.sql.maxMetadataStringLength")
    assert "BatchScan pushhub" in plan
    [path] = Path(settings.ARCHIVE).rglob("*.parquet")
    times = pq.read_metadata(path).row_group(0).column(pq.read_schema(path).get_field_index("publish_time"))
    assert str(pq.read_schema(path).field("publish_time").type) == "timestamp[us, tz=UTC]"
    assert times.statistics.has_min_max
    assert chosen.count() == 60
    with pytest.raises(FailedPrecondition, match="no messages of that time"):
        earlier = replace(ALL, since=BEGIN - timedelta(days=9), until=BEGIN)
        replay.chosen(spark, earlier, root=settings.ARCHIVE)


def test_a_replay_is_one_job_with_a_task_per_part(archived: None, spark: SparkSession, settings: Any) -> None:
    """Given a job of which one part is finished and one half done, then a single frame has the rows that are left."""
    chosen = replay.chosen(spark, ALL, root=settings.ARCHIVE)
    ids = sorted(row.id for row in chosen.select("id").collect())
    job = publishjobs.begin_job(job_id="parts", kind="replay", spec={})
    publishjobs.divide_job(job, list(pairwise([0, *ids[14:59:15], replay.LAST_ID])), total=60)
    PublishPart.objects.filter(number=1).update(finished=True)
    PublishPart.objects.filter(number=2).update(position=ids[33])

    frame, ordered = (replay.frame_of(chosen, job, in_order=in_order) for in_order in (False, True))

    assert frame is not None and ordered is not None
    left = [*ids[:15], *ids[34:]]
    rows = frame.selectExpr("spark_partition_id() AS task", "part", "position").collect()
    assert {(row.task, row.part) for row in rows} == {(part, part) for part in (0, 2, 3)}
    assert [row.position for row in rows] == left
    rows = ordered.selectExpr("spark_partition_id() AS task", "part", "position").collect()
    assert {row.task for row in rows} == {0}
    assert [row.position for row in rows] == left


@pytest.mark.parametrize("is_old", [False, True])
def test_messages_of_an_ordering_key_stay_in_order_while_keys_are_spread(
    spark: SparkSession, topic: str, settings: Any, run: Run, monkeypatch: pytest.MonkeyPatch, is_old: bool
) -> None:
    """Given messages with and without keys, when a replay in several parts is killed in each of them and resumed, then
    those of a key come in their order, and each message once. A job of an older version has spans of ids as parts.
    """
    monkeypatch.setattr(parts, "PART_ROWS", 50)
    keys = [f"k{n * 7 % 11}" if n % 5 else "" for n in range(200)]
    archive_messages(spark, [NewMessage(b"%d" % n, {}, key) for n, key in enumerate(keys)])
    chosen = replay.chosen(spark, ALL, root=settings.ARCHIVE)
    ids = sorted(row.id for row in chosen.select("id").collect())
    job = begin_replay(ALL, job_id="keys")
    spans_of_ids = list(pairwise([0, *ids[39:199:40], replay.LAST_ID]))
    publishjobs.divide_job(job, spans_of_ids if is_old else replay.divided(chosen, replay.plan(chosen)), total=200)
    frame = replay.frame_of(chosen, job, in_order=is_old)
    assert frame is not None
    placed = frame.selectExpr("spark_partition_id() AS task", "ordering_key", "position").collect()
    tasks: dict[str, set[int]] = defaultdict(set)
    for row in placed:
        tasks[row.ordering_key].add(row.task)
    assert all(len(tasks[key]) == 1 for key in tasks if key)
    assert len(set.union(*tasks.values())) == (1 if is_old else 5)
    # Each part has published up to a position: the killed run is done by hand.
    done = [row for row in placed if row.position <= ids[79]]
    for part in PublishPart.objects.all():
        last = max((row.position for row in done if is_old or row.task == part.number), default=0)
        PublishPart.objects.filter(pk=part.pk).update(position=max(part.position, min(last, part.until or last)))

    output = run("replay", "--resume", "keys")

    by_key: dict[str, list[int]] = defaultdict(list)
    for message in Message.objects.order_by("pk"):
        by_key[message.ordering_key].append(int(bytes(message.data)))
    left = range(80, 200)
    assert f"published {len(left)} messages" in output
    assert sorted(by_key.pop("")) == [n for n in left if not keys[n]]
    assert by_key == {key: [n for n in left if keys[n] == key] for key in by_key}
    assert len(by_key) == 11


def test_a_filter_may_name_the_ordering_key(spark: SparkSession, topic: str, run: Run) -> None:
    archive_messages(spark, [NewMessage(key.encode() or b"none", {}, key) for key in ("a1", "a2", "b1", "")])

    words = ["--filter", 'hasPrefix(orderingKey, "a") AND orderingKey != "a2"']
    run("replay", "--topic", TOPIC, *EVER, *words)

    assert [bytes(row.data) for row in Message.objects.all()] == [b"a1"]
    with pytest.raises(InvalidArgument, match="= or != is expected at character 12"):
        filter_column("orderingKey:a")


def test_large_messages_are_handed_over_a_few_at_a_time(spark: SparkSession, topic: str, settings: Any) -> None:
    """Given messages of 3 MB, when they are archived and read, then each row group and each Arrow batch has a few."""
    for _ in range(16):
        publish_message(topic=get_topic(name=TOPIC), messages=[NewMessage(os.urandom(3 * 2**20), {})])
    Archiver(Path(settings.ARCHIVE), session=spark).run()
    chosen = replay.chosen(spark, ALL, root=settings.ARCHIVE)

    def rows_of(batches: Any) -> Any:
        for batch in batches:
            yield pa.RecordBatch.from_pydict({"rows": pa.array([batch.num_rows], pa.int64())})

    batches = [row.rows for row in chosen.coalesce(1).mapInArrow(rows_of, "rows long").collect()]

    groups = [
        footer.row_group(number).num_rows
        for footer in map(pq.read_metadata, Path(settings.ARCHIVE).rglob("*.parquet"))
        for number in range(footer.num_row_groups)
    ]
    assert (sum(groups), sum(batches)) == (16, 16)
    assert max(groups) <= 12, "32 MiB hold ten of them"
    assert max(batches) <= 6, "16 MiB hold five of them"


def test_the_later_of_two_attempts_of_a_task_fails(archived: None, run: Run) -> None:
    """Spark may give up an executor that is merely slow. Then two attempts have read the same position."""
    run("replay", "--topic", TOPIC, *EVER)
    part = PublishPart.objects.get()
    part.position = 0
    with pytest.raises(RuntimeError, match="another attempt"):
        parts._publish(part, [(1, NewMessage(b"x", {}))], topic=get_topic(name=TOPIC), only=None)
    assert Message.objects.count() == 60


@pytest.mark.parametrize(
    ("done", "total", "line"),
    [
        (0, 0, "[##############################] 100%  0 of 0"),
        (0, 50, "[..............................]   0%  0 of 50"),
        (1500, 3000, "[###############...............]  50%  1,500 of 3,000"),
        (4000, 3000, "[##############################] 100%  4,000 of 3,000"),
    ],
)
def test_progress_is_a_bar(done: int, total: int, line: str) -> None:
    assert publishjobs.bar(done, total) == line


def test_an_id_cannot_be_used_for_another_replay(archived: None, run: Run) -> None:
    run("replay", "--topic", TOPIC, *EVER, "--id", "one")
    with pytest.raises(CommandError, match="was asked for something else"):
        run("replay", "--subscription", WORKER, *EVER, "--id", "one")


@pytest.mark.parametrize(
    ("text", "where"),
    [("attributes.kind = order", "character 19"), ("json.a", "character 7"), ("data = 1", "character 1")],
)
def test_the_error_of_a_malformed_filter_says_where(spark: SparkSession, text: str, where: str) -> None:
    with pytest.raises(InvalidArgument, match=where):
        filter_column(text)
    with pytest.raises(InvalidArgument, match="cannot be"):
        filter_column('json."a\'] , b[\'" = "x"')
    with pytest.raises(InvalidArgument, match="1000 are the most"):
        filter_column("x" * 1001)


@pytest.mark.parametrize("form", ["parquet", "avro", "csv", "json"])
def test_rows_of_files_become_messages(topic: str, tmp_path: Path, form: str, run: Run) -> None:
    rows = [{"body": f"語 {number}", "kind": "k" if number else None, "key": "o"} for number in range(5)]
    rows.append({"body": None, "kind": None, "key": "o"})
    source = tmp_path / f"rows.{form}"
    if form == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), source)
    elif form == "avro":
        fields = [{"name": name, "type": ["null", "string"]} for name in rows[0]]
        with source.open("wb") as file:
            fastavro.writer(file, {"type": "record", "name": "row", "fields": fields}, rows)
    elif form == "json":
        source.write_text("\n".join(json.dumps(row) for row in rows))
    else:
        source.write_text("body,kind,key\n" + "\n".join(",".join(row[c] or "" for c in row) for row in rows))
    words = ["--data-column", "body", "--attributes", "kind", "--ordering-key-column", "key", "--format", form]

    output = run("ingest", str(source), "--topic", TOPIC, *words)

    assert "published 5 messages, rejected 1" in output
    stored = list(Message.objects.order_by("pk"))
    assert [bytes(row.data).decode() for row in stored] == [f"語 {number}" for number in range(5)]
    assert [row.attributes for row in stored] == ["", *['{"kind":"k"}'] * 4]
    assert {row.ordering_key for row in stored} == {"o"}
    (line,) = (tmp_path / f"rows.{form}.rejected").read_text().splitlines()
    assert json.loads(line)["row"] == 6
    assert "is empty" in json.loads(line)["reason"]
    output = run("ingest", str(source), "--topic", TOPIC, *words)
    assert "nothing is published now: it had published 5 messages and rejected 1" in output
    assert Message.objects.count() == 5, "under one id no row is published twice"
    assert [(row.job_id, row.rows) for row in PipelineRun.objects.order_by("pk")] == [
        (PublishJob.objects.get().job_id, rows) for rows in (5, 0)
    ]


def published() -> list[str]:
    return [bytes(row.data).decode() for row in Message.objects.order_by("pk")]


@pytest.mark.parametrize("key", [["--in-order"], ["--ordering-key-column", "key"]])
def test_files_are_published_in_the_order_of_their_names(topic: str, tmp_path: Path, run: Run, key: list[str]) -> None:
    """Given a folder with a small file a and a large file b, then the rows of a come before those of b."""
    folder = tmp_path / "rows"
    folder.mkdir()
    for name, count in (("b.csv", 300), ("a.csv", 2), ("c.csv", 30)):
        lines = "".join(f"{name} {number},k\n" for number in range(count))
        (folder / name).write_text(f"body,key\n{lines}")
    run("ingest", str(folder), "--topic", topic, "--format", "csv", "--data-column", "body", *key)
    assert published() == [
        f"{name} {number}" for name, count in (("a.csv", 2), ("b.csv", 300), ("c.csv", 30)) for number in range(count)
    ]


def test_every_malformed_row_is_in_the_rejects_with_its_reason(topic: str, tmp_path: Path, run: Run) -> None:
    """Given CSV with a quoted newline, a surplus column and a row without one, and JSON with a line cut short."""
    table = tmp_path / "rows.csv"
    table.write_text('body,kind\n"one\nmessage",k\nsurplus,k,more\nlacking\n,\nlast,\n')
    output = run("ingest", str(table), "--topic", topic, "--format", "csv", "--data-column", "body")
    assert "published 2 messages, rejected 3" in output
    assert published() == ["one\nmessage", "last"]
    rejects = [json.loads(line) for line in (tmp_path / "rows.csv.rejected").read_text().splitlines()]
    assert [(row["file"], row["row"], row["line"]) for row in rejects] == [
        ("rows.csv", number, number + 2) for number in (2, 3, 4)
    ]
    assert rejects[0]["reason"] == "line 4: it has 3 columns, and the header has 2"
    assert rejects[0]["text"] == "surplus,k,more\n"
    assert "is empty" in rejects[2]["reason"]

    lines = tmp_path / "rows.json"
    lines.write_text('{"a": 1}\n{"a": 2\n{"a": 3}\n')
    assert "published 2 messages, rejected 1" in run("ingest", str(lines), "--topic", topic, "--format", "json")
    assert published()[2:] == ['{"a": 1}', '{"a": 3}']
    assert "line 2: it is not JSON" in (tmp_path / "rows.json.rejected").read_text()


def test_a_row_group_of_large_messages_takes_little_memory(topic: str, tmp_path: Path, run: Run) -> None:
    """Given one row group with 360 MB of messages, when it is ingested at the default heap, then all are published."""
    source = tmp_path / "rows.parquet"
    rows = pa.table({"data": [number.to_bytes(1, "big") * 9_000_000 for number in range(40)]})
    pq.write_table(rows, source, row_group_size=40, use_dictionary=False)
    del rows
    assert pq.read_metadata(source).row_group(0).total_byte_size > 360_000_000

    output = run("ingest", str(source), "--topic", topic, "--data-column", "data")

    assert "published 40 messages, rejected 0" in output
    first = [bytes(data[:1]) for data in Message.objects.order_by("pk").values_list("data", flat=True).iterator()]
    assert first == [number.to_bytes(1, "big") for number in range(40)]


def test_a_dialect_reaches_the_tasks(topic: str, tmp_path: Path, run: Run) -> None:
    """Given CSV with semicolons and a malformed row, when malformed rows stop the job, then nothing is published and
    one line says why; otherwise the good rows are published.
    """
    source = tmp_path / "rows.csv"
    source.write_bytes("body;kind\nä;NULL\nb\nc;k\n".encode("latin-1"))
    words = ["--format", "csv", "--data-column", "body", "--attributes", "kind", "--delimiter", ";", "--null", "NULL"]
    words = ["ingest", str(source), "--topic", topic, *words, "--encoding", "latin-1"]

    with pytest.raises(
        CommandError, match=r"rows\.csv, line 3: it has 1 columns.*; nothing was published\."
    ) as refused:
        run(*words, "--malformed", "stop", "--id", "strict")
    assert "\n" not in str(refused.value)
    assert not Message.objects.exists()
    assert "published 2 messages, rejected 1" in run(*words)

    assert [bytes(row.data).decode() for row in Message.objects.order_by("pk")] == ["ä", "c"]
    assert [row.attributes for row in Message.objects.order_by("pk")] == ["", '{"kind":"k"}']


def test_options_of_another_format_are_refused(topic: str, tmp_path: Path, run: Run) -> None:
    (tmp_path / "rows.json").write_text("{}")
    words = ["ingest", str(tmp_path / "rows.json"), "--topic", topic]
    with pytest.raises(CommandError, match="--delimiter goes with --format csv only"):
        run(*words, "--format", "json", "--delimiter", ";")
    with pytest.raises(CommandError, match="--encoding and --malformed go with CSV and JSON only"):
        run(*words, "--malformed", "stop")
    with pytest.raises(CommandError, match="there is no encoding 'klingon'"):
        run(*words, "--format", "json", "--encoding", "klingon")


@pytest.mark.parametrize(
    ("words", "failure"),
    [
        (["ingest", "rows.parquet", "--topic", TOPIC], r"rows\.parquet cannot be read as parquet: "),
        (["replay", "--topic", TOPIC, *EVER], "The archive has no messages of that time"),
    ],
)
def test_a_job_that_fails_while_it_is_planned_leaves_its_row(
    topic: str, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch, words: list[str], failure: str
) -> None:
    """Given a file that is not Parquet, and an archive without messages, then the run has the sentence of the error."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.parquet").write_text("body\n")

    with pytest.raises(CommandError, match=failure) as refused:
        run(*words)

    [row] = PipelineRun.objects.all()
    assert (row.kind, row.failure) == (words[0], str(refused.value))
    assert row.finished_at is not None


def test_a_file_that_is_cut_short_is_refused_in_one_line(topic: str, tmp_path: Path, run: Run) -> None:
    """Given Avro whose first block is whole and whose last one is not, then nothing is published."""
    source = tmp_path / "rows.avro"
    with source.open("wb") as file:
        schema = {"type": "record", "name": "row", "fields": [{"name": "body", "type": "string"}]}
        fastavro.writer(file, schema, [{"body": "x" * 100}] * 50, sync_interval=500)
    source.write_bytes(source.read_bytes()[:-30])

    with pytest.raises(CommandError, match=r"rows\.avro: .*nothing was published") as refused:
        run("ingest", str(source), "--topic", topic, "--format", "avro")

    assert "\n" not in str(refused.value)
    assert not Message.objects.exists()
    assert PipelineRun.objects.get().failure == str(refused.value)


def test_a_replaced_file_is_ingested_again(topic: str, tmp_path: Path, run: Run) -> None:
    source = tmp_path / "rows.json"
    words = ["ingest", str(source), "--topic", topic, "--format", "json"]
    source.write_text('{"a":1}\n')
    run(*words)
    run(*words)
    run(*words, "--id", "mine")
    assert published() == ['{"a":1}'] * 2

    source.write_text('{"a":2}\n')
    assert "published 1 messages" in run(*words)
    assert published()[2:] == ['{"a":2}']
    with pytest.raises(CommandError, match="asked for something else"):
        run(*words, "--id", "mine")


def test_files_are_published_at_the_same_time_and_each_row_once(topic: str, tmp_path: Path, run: Run) -> None:
    folder = tmp_path / "rows"
    for day in (1, 2):
        (folder / f"day={day}").mkdir(parents=True)
        pq.write_table(pa.table({"a": [10 * day, 10 * day + 1]}), folder / f"day={day}" / "part.parquet")
    assert "published 4 messages" in run("ingest", str(folder), "--topic", topic)
    assert sorted(published()) == [f'{{"a":{number},"day":{number // 10}}}' for number in (10, 11, 20, 21)]
    assert PublishPart.objects.count() == 2


def test_an_archive_is_ingested_as_it_was(archived: None, tmp_path: Path, run: Run, settings: Any) -> None:
    """Given an archive with a file that compaction has replaced, then the files of its manifest are published."""
    [file] = Path(settings.ARCHIVE).rglob("*.parquet")
    shutil.copy(file, file.with_name(f"0-{file.name}"))
    words = ["--data-column", "data", "--attributes", "attributes,dt", "--ordering-key-column", "ordering_key"]

    assert "published 60 messages" in run("ingest", settings.ARCHIVE, "--topic", TOPIC, *words)

    assert sorted(numbers()) == list(range(60))
    day = file.parent.name.removeprefix("dt=")
    assert Counter(json.loads(row.attributes)["kind"] for row in Message.objects.all()) == {"order": 30, "return": 30}
    assert {json.loads(row.attributes)["dt"] for row in Message.objects.all()} == {day}


def test_rows_of_an_ordering_key_stay_in_order_while_keys_are_spread(
    topic: str, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given files of rows with and without keys, and one that is rejected, when they are published in several parts,
    then the rows of a key come in the order of the files, and each row once, also if a part has to begin again.
    """
    monkeypatch.setattr(parts, "PART_ROWS", 100)
    monkeypatch.setattr(spans, "PART_BYTES", 2000)
    monkeypatch.setattr(spans, "CHUNK_BYTES", 500)
    folder = tmp_path / "rows"
    folder.mkdir()
    rows = [{"n": n, "key": f"k{n * 7 % 11}" if n % 5 else ""} for n in range(400)]
    for number in range(4):
        lines = [json.dumps(row) for row in rows[100 * number : 100 * (number + 1)]]
        (folder / f"{number}.json").write_text("\n".join([*lines, *(["nonsense"] if number == 2 else [])]))
    words = ["ingest", str(folder), "--topic", topic, "--format", "json", "--ordering-key-column", "key", "--id", "one"]
    real = publishjobs.run_job

    def run_half(job: PublishJob, frame: Any, **options: Any) -> None:
        real(job, frame.where("part < 2"), **options)
        PublishPart.objects.filter(number__gte=2).update(finished=False)
        PublishJob.objects.update(finished_at=None)
        raise FailedPrecondition("half of it")

    with monkeypatch.context() as patch, pytest.raises(CommandError, match="half of it"):
        patch.setattr("deliveries.pipeline.cli.ingest.run_job", run_half)
        run(*words)
    first = Message.objects.count()
    assert 0 < first < 400
    assert "published 400 messages, rejected 1" in run(*words)

    assert PublishPart.objects.filter(published__gt=0).count() == PublishJob.objects.get().parts == 5
    by_key: dict[str, list[int]] = defaultdict(list)
    for row in Message.objects.order_by("pk"):
        by_key[row.ordering_key].append(json.loads(bytes(row.data))["n"])
    assert sorted(by_key.pop("")) == [n for n in range(400) if n % 5 == 0]
    assert by_key == {key: [row["n"] for row in rows if row["key"] == key] for key in by_key}
    assert len(by_key) == 11


def test_bad_sources_are_refused_in_one_line(topic: str, tmp_path: Path, run: Run) -> None:
    with pytest.raises(CommandError, match="cannot be read as parquet"):
        run("ingest", str(tmp_path / "none"), "--topic", TOPIC)
    source = tmp_path / "rows.parquet"
    pq.write_table(pa.Table.from_pylist([{"a": 1}]), source)
    with pytest.raises(CommandError, match="no column 'b'. It has: a"):
        run("ingest", str(source), "--topic", TOPIC, "--data-column", "b")
    with pytest.raises(CommandError, match="Resource not found"):
        run("ingest", str(source), "--topic", TOPIC + "-none")
    assert not PublishJob.objects.exists()


def test_an_error_in_a_task_is_one_line_and_the_job_goes_on_later(
    archived: None, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_topic(service: Any, job: int, topic: int, only: int | None, rate: float) -> parts.Task:
        return parts.Task(service, job, -1, only, rate)

    words = ["replay", "--topic", TOPIC, *EVER, "--id", "one"]
    monkeypatch.setattr(publishjobs, "Task", without_topic)
    with pytest.raises(CommandError, match="Topic matching query does not exist.*it goes on from there") as refused:
        run(*words)
    assert "\n" not in str(refused.value)
    assert "does not exist" in PublishJob.objects.get().failure
    monkeypatch.undo()
    assert "published 60" in run(*words)
    assert PublishJob.objects.get().failure == ""


def test_the_console_starts_a_replay_in_a_process_of_its_own(
    archived: None, redis_url: str, monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    for name, value in environment(redis_url).items():
        monkeypatch.setenv(name, value)
    failing_job = begin_replay(ReplaySpec("", OTHER, BEGIN, END, ""))
    delete_subscription(name=OTHER)
    job = begin_replay(ReplaySpec("", WORKER, BEGIN, END, 'attributes.kind = "order"'))
    start(job, rate=0)
    start(failing_job, rate=0)
    wait_for(lambda: PublishJob.objects.exclude(finished_at=None).exists(), what="the replay")
    wait_for(lambda: PublishJob.objects.exclude(failure="").exists(), what="the other's failure")
    assert sorted(numbers()) == [number for number in range(60) if number % 2]
    job.refresh_from_db()
    failing_job.refresh_from_db()
    assert (job.total, job.failure) == (30, "")
    assert failing_job.failure == "Resource not found (resource=other)."


def test_the_first_and_the_last_time_of_all_can_be_given(topic: str, tmp_path: Path) -> None:
    ever = replace(ALL, since=datetime.min.replace(tzinfo=UTC), until=datetime.max.replace(tzinfo=UTC))
    with pytest.raises(FailedPrecondition, match="The archive has no messages of that time"):
        replay.chosen(None, ever, root=tmp_path)  # type: ignore[arg-type]


def test_an_ingest_is_refused_where_it_would_pass_the_transforms_of_the_topic(
    spark: SparkSession, redis_url: str, tmp_path: Path, run: Run, settings: Any
) -> None:
    settings.SPARK_MASTER = "local[2]"
    function = {"functionName": "redact", "code": "function redact(message, metadata) { return null; }"}
    create_topic(name=TOPIC, topic={"messageTransforms": [{"javascriptUdf": function}]})
    source = tmp_path / "rows.json"
    source.write_text('{"card": "4111"}\n')

    with pytest.raises(CommandError, match="has message transforms, which an ingest does not apply"):
        run("ingest", str(source), "--format", "json", "--topic", TOPIC)
    assert not Message.objects.exists()
    with pytest.raises(CommandError, match="give a number of messages a second"):
        run("ingest", str(source), "--format", "json", "--topic", TOPIC, "--rate", "-1")
