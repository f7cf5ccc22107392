"""Every job of the pipeline uses all executors, and the driver gets little from each task."""

from __future__ import annotations

from pathlib import Path

import pytest

from deliveries.models import Message, MetricMinute
from deliveries.pipeline import needs
from tests.pipeline.ground import QUICK_JAVA, archived_by_duckdb, counted_by_duckdb, metrics_of, segments_make
from tests.pipeline.spread import JOBS, spread
from tests.workers import database_url

pytestmark = pytest.mark.django_db(transaction=True)

EXECUTORS = 4
MESSAGES = 1600
#: A task of the rollup returns sums; of the other jobs, what it wrote.
MOST_RESULT_BYTES = {"rollup": 1_000_000}


def test_every_job_uses_all_executors(redis_url: str, tmp_path: Path) -> None:
    """Given four executors of one core, when each job runs, then by Spark's event log each of them has finished tasks
    of it, and what DuckDB counts in the archive and in the segments is what was published and counted.
    """
    if missing := needs.missing():
        pytest.skip(missing)
    segments = segments_make(tmp_path / "segments", range(4 * EXECUTORS), seed=3, count=5)
    environment = {"PUSHHUB_DATABASE_URL": database_url(), "PUSHHUB_REDIS_URL": redis_url}

    done = spread(tmp_path, executors=EXECUTORS, messages=MESSAGES, environment=environment, java=QUICK_JAVA)

    assert {job: len(done.works[job].tasks) for job in JOBS} == dict.fromkeys(JOBS, EXECUTORS)
    for job in JOBS:
        assert done.works[job].result_bytes < MOST_RESULT_BYTES.get(job, 20_000), job
    topics = {f"projects/p{number}/topics/orders": MESSAGES // 4 for number in range(4)}
    assert archived_by_duckdb(tmp_path / "archive") == topics
    # All of them, one topic's again, and two ingests of as many rows.
    assert Message.objects.count() == MESSAGES + 3 * MESSAGES // 4
    assert metrics_of(MetricMinute) == counted_by_duckdb(segments, seconds=60)
