"""Runs of the pipeline: what is stored of each, on the console's page and in `/metrics`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from django.test import Client

from deliveries.models import CountingLease, PipelineRun, PublishJob
from deliveries.telemetry import runs
from deliveries.telemetry.counting.embedded import EmbeddedCounter
from deliveries.telemetry.runs import Kind, Run, running
from pushhub.common.errors import FailedPrecondition
from tests.integration.telemetry.conftest import Scrape

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.any_database]

PAGE = "/admin/deliveries/pipelinerun/"


class Clock:
    """A clock that tests set."""

    def __init__(self) -> None:
        self.now = datetime.now(UTC)

    def __call__(self) -> datetime:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


def test_a_run_has_its_rows_its_lag_and_its_end() -> None:
    with running(Kind.ARCHIVE, lag=lambda: 61.5) as run:
        [row] = PipelineRun.objects.all()
        assert (row.kind, row.finished_at, row.lag_seconds) == ("archive", None, 61)
        run.add(3)
        run.add(4)
    [row] = PipelineRun.objects.all()
    assert (row.rows, row.failure) == (7, "")
    assert row.finished_at is not None


def test_a_run_that_fails_keeps_the_sentence() -> None:
    with pytest.raises(FailedPrecondition), running(Kind.COMPACTION):
        raise FailedPrecondition("The disk is full.")
    [row] = PipelineRun.objects.all()
    assert row.failure == "The disk is full."
    assert row.finished_at is not None


def test_a_kind_keeps_its_newest_runs_and_those_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "KEPT", 2)
    for kind in (Kind.BACKFILL, Kind.ARCHIVE, Kind.ARCHIVE, Kind.ARCHIVE):
        with running(kind):
            pass
    kinds = PipelineRun.objects.order_by("pk").values_list("kind", flat=True)
    assert list(kinds) == ["backfill", "archive", "archive"]


def test_workers_that_take_turns_share_a_run_of_the_embedded_counter(tmp_path: Path) -> None:
    clock = Clock()
    workers = [EmbeddedCounter(tmp_path, clock=clock) for _ in range(2)]
    for worker in workers * 2:
        worker.turn()
        clock.advance(20)
    [row] = PipelineRun.objects.all()
    assert (row.kind, row.finished_at) == ("embedded", None)
    assert row.reported_at == clock.now - timedelta(seconds=20)
    CountingLease.objects.update(counter="spark", until=clock.now + timedelta(hours=1))
    workers[0].turn()
    row.refresh_from_db()
    assert row.finished_at == clock.now


def test_a_turn_of_the_embedded_counter_that_fails_is_a_run_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counter = EmbeddedCounter(tmp_path)
    monkeypatch.setattr(counter, "_turn", lambda seconds: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        counter.turn()
    [row] = PipelineRun.objects.all()
    assert row.failure == "ZeroDivisionError: division by zero"


def test_the_page_says_how_each_program_stands(admin_client: Client) -> None:
    now = datetime.now(UTC)
    job = PublishJob.objects.create(job_id="july", kind="replay", spec={}, total=5, parts=1)
    job.divided.create(number=0, published=2)
    rows = {
        "rollup": {"reported_at": now - timedelta(minutes=5)},
        "archive": {"failure": "The disk is full.", "finished_at": now},
        "replay": {"job_id": "july"},
    }
    for kind, fields in rows.items():
        PipelineRun.objects.create(
            **{"kind": kind, "started_at": now - timedelta(minutes=9), "reported_at": now, **fields}
        )
    page = admin_client.get(PAGE).content.decode()
    programs = {
        row.split("</th>")[0]: row.partition("</th>")[2].split("</tr>")[0] for row in page.split('<th scope="row">')[1:]
    }
    assert "It gave no sign of life after" in programs["Counting, by Spark"]
    assert "It failed: The disk is full." in programs["Archive"]
    assert "It runs." in programs["Replay"]
    assert "2 of 5" in programs["Replay"]
    assert "No run is recorded." in programs["Ingest"]


def test_metrics_have_the_age_and_the_failure_of_the_last_run(scrape: Scrape) -> None:
    now = datetime.now(UTC)
    for kind, failure, ago in (("archive", "", 7200), ("archive", "The disk is full.", 3600), ("ingest", "", 0)):
        at = now - timedelta(seconds=ago)
        PipelineRun.objects.create(kind=kind, started_at=at, reported_at=at, finished_at=at, failure=failure)
    values = scrape()
    assert values['pushhub_pipeline_run_failed{kind="archive"}'] == 1
    assert values['pushhub_pipeline_run_failed{kind="ingest"}'] == 0
    assert 3600 <= values['pushhub_pipeline_run_age_seconds{kind="archive"}'] < 7200


def test_metrics_have_the_figures_of_the_last_run(scrape: Scrape) -> None:
    now = datetime.now(UTC)
    times = {"started_at": now - timedelta(seconds=40), "reported_at": now, "finished_at": now}
    PipelineRun.objects.create(kind="archive", rows=7, lag_seconds=61, **times)
    PipelineRun.objects.create(kind="ingest", rows=3, **times)
    values = scrape()
    kinds = {'{kind="archive"}': (7, 61), '{kind="ingest"}': (3, None)}
    for kind, (rows, lag) in kinds.items():
        assert values[f"pushhub_pipeline_run_rows{kind}"] == rows
        assert values[f"pushhub_pipeline_run_duration_seconds{kind}"] == 40
        assert values.get(f"pushhub_pipeline_run_lag_seconds{kind}") == lag


def test_a_run_that_the_database_misses_does_not_hide_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(Kind.INGEST)
    monkeypatch.setattr(Run, "report", lambda self: 1 / 0)
    run.end("the cause")
    assert not PipelineRun.objects.exists()
