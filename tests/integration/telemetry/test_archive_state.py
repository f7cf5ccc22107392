"""How the archive stands: in `/metrics` and on the console's page."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.test import Client

from deliveries.models import ArchiveFile, PipelineRun
from deliveries.rules.ids import first_id_at
from deliveries.store import messagerows, statements
from deliveries.telemetry.archive import archive_state
from subscriptions.models import Topic
from subscriptions.services.topics import create_topic
from tests.integration.telemetry.conftest import Scrape

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.any_database]

PAGE = "/admin/deliveries/pipelinerun/"
NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
DAY = timedelta(days=1)


def clock() -> datetime:
    return NOW


def published(*ages_seconds: float, now: datetime = NOW) -> list[int]:
    """Insert messages that were published so long ago; return their ids."""
    if not Topic.objects.exists():
        create_topic(name="projects/shop/topics/orders", topic={})
    pk = Topic.objects.get().pk
    ids = [first_id_at(int((now - timedelta(seconds=age)).timestamp() * 1000)) for age in ages_seconds]
    statements.insert_messages([(message_id, pk, "local", b"x", "", "") for message_id in ids])
    return ids


def archived_file(number: int, *, age: timedelta, now: datetime = NOW) -> None:
    first_id = first_id_at(int((now - age).timestamp() * 1000))
    ArchiveFile.objects.create(path=f"{number}.parquet", first_id=first_id, last_id=first_id, rows=number, bytes=1000)


def lag() -> float | None:
    return archive_state(clock=clock).lag_seconds


def run_of_the_archive(*, ago: float, lag: int | None, is_over: bool, failure: str = "") -> PipelineRun:
    began = NOW - timedelta(seconds=ago)
    finished_at = began + timedelta(seconds=5) if is_over else None
    return PipelineRun.objects.create(
        kind="archive", started_at=began, reported_at=began, finished_at=finished_at, lag_seconds=lag, failure=failure
    )


def test_the_state_is_that_of_the_manifest() -> None:
    archived_file(3, age=2 * DAY)
    archived_file(4, age=DAY)
    state = archive_state(clock=clock)
    assert (state.files, state.messages, state.bytes) == (2, 7, 2000)
    assert state.oldest_seconds == 2 * DAY.total_seconds()
    assert state.lag_seconds is None, "PUSHHUB_ARCHIVING is off"


def test_the_lag_is_the_age_of_the_oldest_message_that_is_not_archived(settings: Any) -> None:
    settings.ARCHIVING = True
    assert lag() == 0
    taken, _ = published(90, 60)
    assert lag() == 90
    messagerows.insert_archived(write_id=0, message_ids=[taken])
    assert lag() == 60


@pytest.mark.parametrize("failure", ["The disk is full.", ""], ids=["failed", "killed"])
def test_the_messages_of_a_run_that_did_not_end_well_wait_still(settings: Any, failure: str) -> None:
    """Given runs that claim all messages and then fail, or are killed, then the lag grows until one ends well."""
    settings.ARCHIVING = True
    messagerows.insert_archived(write_id=1, message_ids=published(500, 200))
    run_of_the_archive(ago=100, lag=400, is_over=bool(failure), failure=failure)
    assert lag() == 500
    run_of_the_archive(ago=50, lag=450, is_over=True)
    assert lag() == 0


def test_metrics_have_the_figures_of_an_archive(scrape: Scrape, settings: Any) -> None:
    assert "pushhub_archive_messages{}" not in scrape(), "there is no archive"
    settings.ARCHIVING = True
    now = datetime.now(UTC)
    archived_file(3, age=2 * DAY, now=now)
    published(3600, now=now)
    values = scrape()
    figures = {name: values[f"pushhub_archive_{name}{{}}"] for name in ("messages", "bytes", "files")}
    assert figures == {"messages": 3, "bytes": 1000, "files": 1}
    assert 3600 <= values["pushhub_archive_lag_seconds{}"] < 7200
    assert 172_800 <= values["pushhub_archive_oldest_message_age_seconds{}"] < 180_000


def test_the_page_says_what_the_archive_has_and_keeps(admin_client: Client, settings: Any) -> None:
    now = datetime.now(UTC)
    archived_file(3, age=2 * DAY + timedelta(hours=1), now=now)
    figures = cards(admin_client)
    assert figures["Archived messages"] == "3"
    assert figures["Oldest archived message"] == "2 d"
    assert figures["Oldest message that waits for the archive"] == "archiving is off"
    assert figures["The archive keeps messages"] == "for ever"
    settings.ARCHIVING, settings.ARCHIVE_DAYS = True, 30
    assert cards(admin_client)["Oldest message that waits for the archive"] == "-"
    published(7200 + 60, now=now)
    figures = cards(admin_client)
    assert figures["Oldest message that waits for the archive"] == "2 h"
    assert figures["The archive keeps messages"] == "30 d"


def cards(client: Client) -> dict[str, str]:
    page = client.get(PAGE).content.decode()
    parts = [part.partition("</dd>")[0].split("</dt><dd>") for part in page.split('<div class="card"><dt>')[1:]]
    return dict(parts)  # type: ignore[arg-type]
