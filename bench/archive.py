"""The archive, and what is published from it and from files: messages a second, with Java's start left out."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from bench.message import TOPIC
from bench.processes import BenchError, say
from bench.stand import Row, stand
from deliveries.models import Message
from deliveries.pipeline import needs
from deliveries.pipeline.archiving.archive import Archiver
from deliveries.pipeline.jobs import ingest, replay, sources
from deliveries.pipeline.jobs.messages import Columns
from deliveries.pipeline.jobs.reading import Reading, read_files
from deliveries.pipeline.jobs.rows import USUAL
from deliveries.pipeline.publishing.publishjobs import Target, begin_job, divide_job, progress_of, run_job
from deliveries.pipeline.session import spark_session
from deliveries.publish.service import publish_message
from deliveries.rules.payload import NewMessage
from subscriptions.selectors import get_topic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: As in the issue: messages of 1 KiB.
DATA = b'{"order": 12345, "text": "' + b"x" * 990 + b'"}'
WARM = 20_000


@contextmanager
def spark(*, quick: bool) -> Iterator[SparkSession]:
    """Start a session for one stand. The processes of its tasks keep the database that they began with.

    With small counts, all stands share one, as Java's start takes longest. Each task then has a process of its own.
    """
    if missing := needs.missing():
        raise BenchError(missing)
    extra = {"spark.python.worker.reuse": "false"} if quick else {}
    session = spark_session("bench", master="local[2]", memory="512m", extra=extra, short=quick)
    try:
        yield session
    finally:
        if not quick:
            session.stop()


def archive(quick: bool) -> Row:
    """Archive messages, replay them, and ingest some from a file; one subscription pulls."""
    with spark(quick=quick) as session:
        return _measured(session, *((1_000, 800, 1_000) if quick else (400_000, 100_000, WARM)))


def archive_sizes(quick: bool) -> Row:
    """The same at 1, 4 and 16 times the data."""
    figures: Row = {}
    for count in (1_000,) if quick else (50_000, 200_000, 800_000):
        with spark(quick=quick) as session:
            measured = _measured(session, count, count // 4, 1_000 if quick else WARM)
        rates = {name: rate for name, rate in measured.items() if name.endswith("_per_second")}
        figures |= {name.replace("_per", f"_{count // 1000}k_per"): rate for name, rate in rates.items()}
    return figures


def ingest_large(quick: bool) -> Row:
    """Ingest one row group of large messages with Java's default heap."""
    count, size = (4 if quick else 60), 6_000_000
    with (
        spark(quick=quick) as session,
        stand() as stood,
        tempfile.TemporaryDirectory(prefix="pushhub-archive-") as folder,
    ):
        stood.subscribe("")
        source = Path(folder) / "rows.parquet"
        rows = pa.table({"data": [os.urandom(1000) * (size // 1000) for _ in range(count)]})
        pq.write_table(rows, source, row_group_size=count, use_dictionary=False)
        del rows
        seconds = _ingested(session, source, count)
        # Of Java from its start, with what is outside of the heap.
        status = Path(f"/proc/{session.sparkContext._gateway.proc.pid}/status").read_text()
    java_mb = int(status.partition("VmHWM:")[2].split()[0]) // 1000
    say(f"  {count * size / 1e6 / seconds:,.1f} MB/s, Java {java_mb} MB at most")
    return {"ingest_large_mb_per_second": round(count * size / 1e6 / seconds, 1), "ingest_large_java_mb": java_mb}


def _ingested(session: SparkSession, source: Path, count: int) -> float:
    """Ingest the rows of a Parquet file; return for how many seconds."""
    job = begin_job(job_id="bench ingest", kind="ingest", spec={})
    began = time.monotonic()
    heads = sources.heads_of([source], form="parquet", dialect=USUAL)
    _, spans = sources.survey(session, [source], heads, form="parquet", multi_line=False)
    parts = ingest.parts_of([source], spans, in_order=False)
    frame = ingest.spans_frame(session, parts, in_order=False)
    read = partial(read_files, reading=Reading("parquet", Columns(data="data")))
    divide_job(job, [(0, None)] * len(parts), total=count)
    run_job(job, frame, session=session, target=Target(get_topic(name=TOPIC)), in_order=False, read=read)
    seconds = time.monotonic() - began
    if progress_of(job).published != count:
        raise BenchError(f"{progress_of(job).published} of {count} rows were published")
    return seconds


def _measured(session: SparkSession, count: int, bulk: int, warm: int) -> Row:
    """Archive and replay `count` messages, and ingest `bulk` rows, after `warm` messages with which Java compiles."""
    with stand() as stood, tempfile.TemporaryDirectory(prefix="pushhub-archive-") as folder:
        stood.subscribe("")
        topic = get_topic(name=TOPIC)
        archiver = Archiver(Path(folder), session=session)
        _publish(warm)
        archiver.run()
        _publish(count)
        began = time.monotonic()
        archiver.run()
        archive_rate = count / (time.monotonic() - began)
        size = sum(path.stat().st_size for path in Path(folder).rglob("*.parquet"))

        now = datetime.now(UTC)
        spec = replay.ReplaySpec(TOPIC, "", now - timedelta(hours=1), now + timedelta(hours=1), "")
        chosen = replay.chosen(session, spec, root=folder)
        job = begin_job(job_id="bench", kind="replay", spec={})
        began = time.monotonic()
        divide_job(job, replay.divided(chosen, replay.plan(chosen)), total=warm + count)
        frame = replay.frame_of(chosen, job, in_order=False)
        run_job(job, frame, session=session, target=Target(topic), in_order=False)
        replay_rate = progress_of(job).published / (time.monotonic() - began)

        source = Path(folder) / "rows.parquet"
        pq.write_table(pa.table({"data": [DATA] * bulk}), source, row_group_size=bulk // 8)
        ingest_rate = bulk / _ingested(session, source, bulk)
        if Message.objects.count() != 2 * (warm + count) + bulk:
            raise BenchError("some messages were published twice, or not at all")
    say(f"  archive {archive_rate:,.0f}/s, replay {replay_rate:,.0f}/s, ingest {ingest_rate:,.0f}/s")
    return {
        "archive_per_second": round(archive_rate),
        "archive_bytes_a_message": round(size / (warm + count), 1),
        "replay_per_second": round(replay_rate),
        "ingest_per_second": round(ingest_rate),
    }


def _publish(count: int) -> None:
    topic = get_topic(name=TOPIC)
    for _ in range(count // 1000):
        publish_message(topic=topic, messages=[NewMessage(DATA, {})] * 1000)
