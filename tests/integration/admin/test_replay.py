"""The console's page of replays: who may start one, what is refused, and what it shows."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client

from deliveries.admin import publishjobs
from deliveries.models import PipelineRun, PublishJob, PublishPart
from deliveries.pipeline.publishing.publishjobs import begin_job
from deliveries.telemetry.runs import Kind, running
from pushhub.common.clock import utcnow
from pushhub.common.errors import InvalidArgument
from tests.restapi import Api

pytestmark = pytest.mark.django_db(transaction=True)

PAGE = "/admin/deliveries/publishjob/"
FORM = {
    "name": "projects/shop/topics/orders",
    "since": "2026-11-20 00:00:00",
    "until": "2026-11-21 00:00:00",
    "filter": 'attributes.kind = "order"',
    "rate": "50",
}


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """The replays that the console starts, recorded in place of a run, on a machine that seems to have Spark."""
    started: list[tuple[str, int]] = []
    monkeypatch.setattr(publishjobs, "start", lambda job, rate: started.append((job.job_id, rate)))
    monkeypatch.setattr(publishjobs.needs, "missing", lambda: "")
    return started


@pytest.fixture
def api(redis_url: str) -> Api:
    api = Api()
    api.put("topics/orders")
    return api


def signed_in(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


@pytest.fixture
def admin(api: Api) -> Client:
    return signed_in(User.objects.create_superuser("admin", "admin@example.com", "a password of some length"))


def test_a_replay_is_started_and_its_progress_shown(admin: Client, started: list[tuple[str, int]]) -> None:
    assert admin.get(f"{PAGE}replay/").status_code == 200
    assert admin.post(f"{PAGE}replay/", FORM | {"job_id": "friday"}).status_code == 302
    assert started == [("friday", 50)]
    job = PublishJob.objects.get()
    assert job.spec == {
        "topic": "projects/shop/topics/orders",
        "subscription": "",
        "from": "2026-11-20T00:00:00+00:00",
        "to": "2026-11-21T00:00:00+00:00",
        "filter": 'attributes.kind = "order"',
    }
    for number in range(2):
        PublishPart.objects.create(job=job, number=number, published=1700 + number, rejected=number)
    PublishJob.objects.update(total=5000)
    page = admin.get(PAGE).content.decode()
    assert "3401" in page and "5000" in page
    assert "deliveries/reload.js" in page, "the page updates itself while a job runs"
    assert "http-equiv" not in page, "a page that reloads as a whole loses the reader's place"
    assert "3401" in page.partition("data-reload")[2]
    PublishJob.objects.update(finished_at="2026-11-21T00:00:00Z")
    assert "deliveries/reload.js" not in admin.get(PAGE).content.decode()


@pytest.mark.any_database
@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"filter": "attributes.kind = order"}, "character 19"),
        ({"until": "2026-11-19 00:00:00"}, "ends before it begins"),
        ({"name": "projects/shop/topics/none"}, "not found"),
        ({"name": "projects/shop/subscriptions/none"}, "not found"),
        ({"name": "nonsense"}, "Invalid resource name"),
        ({"rate": "0"}, "greater than or equal to 1"),
        ({"since": "yesterday"}, "Enter a valid date"),
        ({"job_id": "--pythonpath=/tmp"}, "Begin with a letter or a digit."),
    ],
)
def test_an_invalid_replay_is_refused_and_no_job_begins(
    admin: Client, started: list[tuple[str, int]], fields: dict[str, Any], error: str
) -> None:
    page = admin.post(f"{PAGE}replay/", FORM | fields)
    assert page.status_code == 200
    [field] = fields
    assert error in page.context["form"].errors[field][0]
    assert (started, PublishJob.objects.count()) == ([], 0)


def test_a_replay_that_was_killed_is_not_shown_as_one_that_runs(admin: Client, started: list[tuple[str, int]]) -> None:
    admin.post(f"{PAGE}replay/", FORM | {"job_id": "friday"})
    assert "No run is recorded." in admin.get(PAGE).content.decode()
    run = PipelineRun.objects.create(kind=Kind.REPLAY, job_id="friday", started_at=utcnow(), reported_at=utcnow())
    assert "It runs." in admin.get(PAGE).content.decode()
    PipelineRun.objects.filter(pk=run.pk).update(reported_at=utcnow() - timedelta(minutes=5))
    assert "It gave no sign of life after" in admin.get(PAGE).content.decode()


def test_a_replay_that_runs_is_not_started_again(admin: Client, started: list[tuple[str, int]]) -> None:
    with running(Kind.REPLAY, job_id="friday"):
        page = admin.post(f"{PAGE}replay/", FORM | {"job_id": "friday"}).content.decode()
        assert "The replay friday runs already." in page
        assert started == []
    assert admin.post(f"{PAGE}replay/", FORM | {"job_id": "friday"}).status_code == 302
    assert started == [("friday", 50)]


def test_the_id_is_a_word_that_is_no_option(
    admin: Client, tmp_path: Path, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.DATA_DIR = tmp_path
    commands: list[list[str]] = []
    monkeypatch.setattr(publishjobs.subprocess, "Popen", lambda command, **_: commands.append(command) or Mock())
    publishjobs.start(PublishJob(job_id="--pythonpath=/tmp"), rate=5)
    assert commands[0][1:] == ["-m", "django", "pipeline", "replay", "--resume=--pythonpath=/tmp", "--rate=5"]


@pytest.mark.any_database
@pytest.mark.parametrize("job_id", ["", "-x", "--settings=evil", " x", "_x", "x" * 101])
def test_a_job_takes_no_id_that_a_command_reads_as_an_option(job_id: str) -> None:
    with pytest.raises(InvalidArgument, match="--id"):
        begin_job(job_id=job_id, kind="replay", spec={})
    assert begin_job(job_id="replay orders 1", kind="replay", spec={}).pk


def test_a_replay_needs_the_permission_to_publish(api: Api, started: list[tuple[str, int]]) -> None:
    user = User.objects.create_user("ada", "ada@example.com", "a password of some length", is_staff=True)
    client = signed_in(user)
    assert client.get(f"{PAGE}replay/").status_code == 403
    for name in ("change_topic", "view_publishjob"):
        user.user_permissions.add(Permission.objects.get(codename=name))
    page = client.post(f"{PAGE}replay/", FORM).content.decode()
    assert "You need the permission pubsub.topics.publish" in page
    assert started == []
    assert Client().get(f"{PAGE}replay/").status_code == 302


def test_the_page_says_what_a_machine_without_spark_lacks(admin: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publishjobs.needs, "missing", lambda: "no Java found: install it")
    page = admin.get(f"{PAGE}replay/").content.decode()
    assert "no Java found: install it" in page
    assert 'name="since"' not in page
