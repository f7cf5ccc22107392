"""`/readyz`: what it says of each component, and that it answers in time when one of them hangs."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Iterator
from typing import Any
from unittest.mock import ANY

import psycopg.errors
import pytest
import redis
from django.db import OperationalError
from django.test import Client

from deliveries.backlog import timed
from deliveries.backlog.connection import impatient_client_of
from deliveries.backlog.default import default_backlog, impatient_backlog
from deliveries.backlog.regions import audit_regions
from deliveries.models import Message
from deliveries.publish.storing import Request, commit_requests
from deliveries.rules.payload import NewMessage
from deliveries.store import statements, trial
from deliveries.store.statements import insert_messages
from deliveries.telemetry.counting.lease import Counter, Lease
from deliveries.telemetry.export.readiness import CHECKS, DEADLINE_SECONDS
from subscriptions.models import Topic
from tests.drivererrors import as_django_raises
from tests.ports import wait_for
from tests.workers import Worker

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.any_database]


@pytest.fixture
def hanging_redis(settings: Any) -> Iterator[None]:
    """Yield the URL of a Redis that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        settings.REDIS_URL = f"redis://127.0.0.1:{server.getsockname()[1]}/0"
        yield


def readyz(query: str = "") -> tuple[int, Any]:
    response = Client().get(f"/readyz{query}")
    return response.status_code, response.json()


def test_without_a_push_worker_pushhub_is_not_ready(redis_url: str) -> None:
    status, body = readyz()
    assert (status, body["status"]) == (503, "unavailable")
    assert body["components"]["push_workers"]["reason"] == "no push worker gives a sign of life"
    assert body["components"]["database"]["status"] == body["components"]["redis"]["status"] == "ok"


def test_a_check_can_be_left_out(redis_url: str) -> None:
    status, body = readyz("?exclude=push_workers")
    assert (status, body["status"]) == (200, "degraded")
    assert body["components"].keys() == CHECKS.keys() - {"push_workers"}


def test_an_unknown_check_cannot_be_left_out() -> None:
    status, body = readyz("?exclude=workers")
    assert status == 400
    assert "exclude='workers'" in body["reason"]


def test_with_a_push_worker_and_an_audit_everything_is_ok(redis_url: str) -> None:
    with Worker(redis_url):
        wait_for(lambda: readyz()[0] == 200, what="a ready PushHub")
        audit_regions()
        status, body = readyz()
    assert (status, body["status"]) == (200, "ok"), body
    assert body["components"]["push_workers"]["workers"] == 1
    assert body["components"]["maintenance"]["last_sign_of_life_seconds"] < 90


@pytest.mark.parametrize(("age", "status"), [(0, "ok"), (95, "degraded")])
def test_a_timed_task_that_is_not_done_degrades_the_maintenance(
    redis_url: str, settings: Any, age: int, status: str
) -> None:
    settings.METRICS = True
    audit_regions()
    client = default_backlog().client
    # Given a task that was sent again and again while it failed, or waited
    for name in ("deliveries.backlog_audit.3", "deliveries.gauges_take", "deliveries.backlog_audit.3"):
        timed.note_sent(client, name)
    client.zincrby(timed.KEY, -age, "deliveries.backlog_audit.3")
    component = readyz()[1]["components"]["maintenance"]
    assert component["status"] == status
    assert component["oldest_job_seconds"] >= age
    metric = re.search(
        r"^pushhub_maintenance_oldest_job_seconds ([\d.]+)$", Client().get("/metrics").content.decode(), re.M
    )
    assert metric and float(metric[1]) >= age
    if status == "ok":
        return
    assert re.fullmatch(r"deliveries\.backlog_audit\.3 was not done for \d+ s", component["reason"])
    # Then one success ends that
    timed.note_done(client, "deliveries.backlog_audit.3")
    assert timed.oldest_sent(client) == ("deliveries.gauges_take", ANY)
    assert readyz()[1]["components"]["maintenance"]["status"] == "ok"


def test_a_worker_that_stopped_giving_signs_of_life_does_not_count(redis_url: str) -> None:
    default_backlog().client.zadd("ph:workers", {"dead": 1})
    assert readyz()[1]["components"]["push_workers"]["status"] == "unavailable"


@pytest.mark.parametrize(("age", "status"), [(60, "ok"), (61, "degraded")])
def test_a_worker_whose_jobs_wait_is_not_ok(redis_url: str, settings: Any, age: float, status: str) -> None:
    settings.METRICS = True
    default_backlog().beat("quick", oldest_job_seconds=0.1)
    default_backlog().beat("stuck", oldest_job_seconds=age)
    component = readyz()[1]["components"]["push_workers"]
    assert (component["status"], component["oldest_job_seconds"]) == (status, age)
    assert f"pushhub_push_oldest_job_seconds {age}\n" in Client().get("/metrics").content.decode()
    # A worker that has left has no jobs.
    default_backlog().leave("stuck")
    assert readyz()[1]["components"]["push_workers"]["oldest_job_seconds"] == 0.1


def test_the_pipeline_reports_how_far_the_metrics_are(redis_url: str, settings: Any) -> None:
    settings.JOURNAL = "/nowhere"
    assert readyz()[1]["components"]["pipeline"] == {"status": "ok", "state": "nothing has been counted yet"}

    lease = Lease(Counter.EMBEDDED)
    lease.renew([])
    pipeline = readyz()[1]["components"]["pipeline"]
    assert (pipeline["status"], pipeline["segments_waiting"]) == ("ok", 0)
    assert re.fullmatch(r"counted up to \d\d:\d\d, 0 segments waiting, by the embedded counter", pipeline["state"])

    lease.release()
    pipeline = readyz()[1]["components"]["pipeline"]
    assert (pipeline["status"], pipeline["reason"]) == ("degraded", "nobody counts")
    assert pipeline["state"].endswith("by the embedded counter, which has stopped")


def test_a_redis_that_hangs_is_named_before_the_deadline(hanging_redis: None) -> None:
    began = time.monotonic()
    status, body = readyz()
    seconds = time.monotonic() - began
    assert (status, body["status"]) == (503, "unavailable")
    assert body["components"]["redis"] == {"status": "unavailable", "reason": "Redis does not answer"}
    assert body["components"]["database"]["status"] == "ok"
    # The deadline is one second. The machine may be busy; without a deadline this takes more than 10 seconds.
    assert seconds < 5 * DEADLINE_SECONDS


def test_a_page_that_gave_up_a_moment_ago_makes_no_check_fail(redis_url: str, monkeypatch: Any) -> None:
    retry = impatient_client_of(redis_url, "page").get_retry()
    monkeypatch.setattr(retry, "_not_before", time.monotonic() + 3600)
    with pytest.raises(redis.TimeoutError):
        impatient_backlog().shared.ping()
    assert readyz()[1]["components"]["redis"]["status"] == "ok"


def test_a_message_that_could_not_be_stored_makes_pushhub_unready(redis_url: str, monkeypatch: Any) -> None:
    """A full disk may still have room for the small message that the check stores."""
    request = Request(Topic(pk=1), [NewMessage(b"x", {})], "local", [])

    def fail(*_: Any) -> None:
        raise as_django_raises(psycopg.errors.DiskFull("no space left on device"))

    with monkeypatch.context() as full:
        full.setattr(statements, "insert_messages_with", fail)
        with pytest.raises(OperationalError):
            commit_requests([request])
    database = readyz()[1]["components"]["database"]
    assert database == {"status": "unavailable", "reason": "the database has no disk space"}

    commit_requests([request])
    assert readyz()[1]["components"]["database"]["status"] == "ok"


def test_the_check_of_the_database_leaves_no_message_behind(redis_url: str, monkeypatch: Any) -> None:
    monkeypatch.setattr(trial, "TRIED_SECONDS", -1.0)
    stored = []
    monkeypatch.setattr(statements, "insert_messages", lambda rows: stored.extend(rows) or insert_messages(rows))

    for _ in range(2):
        assert readyz()[1]["components"]["database"]["status"] == "ok"

    assert len(stored) == 2
    assert not Message.objects.exists()


def test_anybody_may_ask_but_the_database_is_written_to_once_a_second(redis_url: str, monkeypatch: Any) -> None:
    readyz()
    monkeypatch.setattr(trial, "TRIED_SECONDS", 3600.0)
    monkeypatch.setattr(statements, "insert_messages", None)

    assert readyz()[1]["components"]["database"]["status"] == "ok"
