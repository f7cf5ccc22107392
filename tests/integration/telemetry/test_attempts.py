"""All attempts of a message are found in the journal, page by page, or it is said how many are missing and why."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from deliveries.inspection import attempts
from deliveries.inspection.messages import Place, Ways, message_ways, why_missing, why_waiting
from deliveries.models import Delivery, Message
from deliveries.rules.ids import first_id_at
from deliveries.telemetry.journal import files
from deliveries.telemetry.journal import journal as journals
from deliveries.telemetry.journal.columns import Rows, table_of
from deliveries.telemetry.journal.shipping import id_bounds
from subscriptions.cli import main as cli
from subscriptions.models import Subscription
from tests.ports import wait_for
from tests.receiver import Receiver
from tests.restapi import Api
from tests.workers import Worker

pytestmark = pytest.mark.django_db(transaction=True)

TOPIC = "projects/shop/topics/orders"
PUSH = "projects/shop/subscriptions/push"
#: When the message of the long outage was published, and how many attempts it has had since.
BEGAN = datetime.now(UTC) - timedelta(hours=4)
ATTEMPTS = 39
EVERY = timedelta(minutes=5)
MESSAGE = first_id_at(int(BEGAN.timestamp() * 1000))


@pytest.fixture
def folder(tmp_path: Path, settings: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The journal's folder, to which this process and the workers that it starts write."""
    settings.JOURNAL = str(tmp_path / "segments")
    monkeypatch.setenv("PUSHHUB_JOURNAL", settings.JOURNAL)
    yield Path(settings.JOURNAL)
    journal = journals.journal()
    assert journal is not None
    journal.close()
    journals._journal_of.cache_clear()


@pytest.fixture
def api(redis_url: str, folder: Path) -> Api:
    api = Api()
    api.create("topics/orders")
    return api


def segment(folder: Path, at: datetime, **fields: Any) -> Path:
    """Write a segment with one event of the message."""
    name = files.journal_name(opened_ms=int(at.timestamp() * 1000), number=1)
    path = files.segment_path(folder, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    shared = {"time": int(at.timestamp() * 1e6), **fields}
    pq.write_table(table_of([Rows(1, {"message_id": [str(MESSAGE)]}, shared)]), path)
    return path


@pytest.fixture
def paths(api: Api, folder: Path) -> list[Path]:
    """The segments of a message that one subscription has refused for hours, and still waits for."""
    api.create("subscriptions/push", {"topic": TOPIC, "pushConfig": {"pushEndpoint": "https://push.example.com/"}})
    subscription = Subscription.objects.get()
    Subscription.objects.update(created_at=BEGAN - timedelta(days=1))
    topic_id = subscription.topic_id
    assert topic_id is not None
    Message.objects.create(pk=MESSAGE, topic_id=topic_id, region="local", data=b"")
    last_at = BEGAN + ATTEMPTS * EVERY
    Delivery.objects.create(
        message_id=MESSAGE, subscription=subscription, region="local", attempts=ATTEMPTS, last_attempt_at=last_at
    )
    push = {"event": "push", "subscription": PUSH, "subscription_id": subscription.pk, "topic_id": topic_id}
    push |= {"outcome": "nack", "reason": "connect_failed"}
    segment(folder, BEGAN, event="publish", topic=TOPIC, topic_id=topic_id, outcome="accepted")
    return [segment(folder, BEGAN + n * EVERY, **push, attempt=n) for n in range(1, ATTEMPTS + 1)]


def read(token: str = "", **options: Any) -> Ways:
    return message_ways(MESSAGE, Subscription.objects.all(), token=token, **options)


def numbers(page: Ways) -> list[int]:
    [way] = page.ways
    return [attempt.attempt for attempt in way.attempts]


def test_all_attempts_are_found_between_the_first_minutes_and_the_last(paths: list[Path]) -> None:
    page = read(monotonic=lambda: 0.0)
    assert numbers(page) == list(range(1, ATTEMPTS + 1))
    assert (page.next_token, why_missing(page.ways[0], page)) == ("", "")


def test_the_bounds_of_the_ids_in_a_segment_are_those_of_numbers(folder: Path) -> None:
    """Given ids of 18 and of 19 digits, of which texts have another order, then the bounds have all of them."""
    ids = [10**18 - 2, 10**18 - 1, 10**18, 10**18 + 1]
    path = segment(folder, BEGAN, event="publish")
    pq.write_table(table_of([Rows(4, {"message_id": list(map(str, ids))}, {"event": "publish", "time": 1})]), path)

    first, last = id_bounds(path)

    assert all(first <= message_id <= last for message_id in ids)


def test_what_one_search_has_no_time_for_is_on_the_next_pages(paths: list[Path]) -> None:
    found: list[int] = []
    token, pages = "", 0
    while pages == 0 or token:
        # A search of five segments: each look at the clock takes a fifth of its time.
        ticks = itertools.count(step=attempts.BUDGET_SECONDS / 5)
        page = read(token, monotonic=lambda ticks=ticks: float(next(ticks)))  # type: ignore[misc]
        assert why_missing(page.ways[0], page) == "", "what is on another page is not missing"
        found, token, pages = found + numbers(page), page.next_token, pages + 1
    assert found == list(range(1, ATTEMPTS + 1)) and pages > 3


def test_attempts_that_cannot_be_read_are_counted_and_the_cause_is_told(paths: list[Path], settings: Any) -> None:
    paths[20].write_bytes(b"damaged")
    paths[25].unlink()
    page = read(monotonic=lambda: 0.0)
    assert len(numbers(page)) == ATTEMPTS - 2
    sentence = why_missing(page.ways[0], page)
    assert sentence == ("Attempts that the journal does not have: 2. Segments of the journal that cannot be read: 1.")
    paths[20].unlink()
    page = read(monotonic=lambda: 0.0)
    assert "Their worker died before it wrote them down" in why_missing(page.ways[0], page)
    settings.JOURNAL_DAYS = 0
    assert "It is kept for 0 days." in why_missing(page.ways[0], page)


def test_rest_and_the_command_line_follow_the_pages(
    api: Api, paths: list[Path], live_server: Any, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempts, "MAX_EVENTS", 4)
    monkeypatch.setattr(attempts, "BUDGET_SECONDS", 600)  # pages end by their size, however slow the machine is
    first = api.get(f"messages/{MESSAGE}").body
    assert len(first["deliveries"][0]["attempts"]) == 3, "the publish is an event too"
    second = api.call("GET", f"messages/{MESSAGE}", query={"pageToken": first["nextPageToken"]}).body
    assert [row["deliveryAttempt"] for row in second["deliveries"][0]["attempts"]] == [4, 5, 6, 7]
    assert api.call("GET", f"messages/{MESSAGE}", query={"pageToken": "x"}).status == 400
    assert cli.main(["messages", "describe", str(MESSAGE), "--project", "shop", "--url", live_server.url]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [int(words[2]) for words in lines if words[1:2] == ["push"]] == list(range(1, ATTEMPTS + 1))


def test_the_end_of_a_message_that_waits_no_longer_is_searched_for(
    paths: list[Path], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    subscription_id = Subscription.objects.get().pk
    Delivery.objects.all().delete()
    assert read(monotonic=lambda: 0.0).ways[0].place is Place.GONE
    fields = {"subscription": PUSH, "subscription_id": subscription_id, "outcome": "ack", "response_code": 204}
    segment(folder, BEGAN + (ATTEMPTS + 1) * EVERY, event="push", attempt=ATTEMPTS + 1, **fields)
    assert read(monotonic=lambda: 0.0).ways[0].place is Place.ACKED
    monkeypatch.setattr(attempts, "MAX_EVENTS", 4)
    page = read(monotonic=lambda: 0.0)
    assert "was not read to its end" in why_waiting(page.ways[0])


def test_a_message_is_described_at_once_after_its_ack(
    api: Api, redis_url: str, receiver: Receiver, folder: Path
) -> None:
    """Given a message that was acked just now, whose events no segment has yet, then the open journals tell."""
    api.create("subscriptions/push", {"topic": TOPIC, "pushConfig": {"pushEndpoint": receiver.url}})
    [message_id] = api.post("topics/orders:publish", {"messages": [{"data": "aGVsbG8="}]}).body["messageIds"]
    assert api.get(f"messages/{message_id}").body["deliveries"][0]["state"] in ("WAITING", "OUTSTANDING")
    with Worker(redis_url):
        wait_for(lambda: not Delivery.objects.exists())
        wait_for(lambda: api.get(f"messages/{message_id}").body["deliveries"][0]["state"] == "ACKED")
        assert not list(folder.glob("sealed/**/*.parquet"))
        [delivery] = api.get(f"messages/{message_id}").body["deliveries"]
    assert [(row["deliveryAttempt"], row["outcome"]) for row in delivery["attempts"]] == [(1, "ack")]


def test_a_message_that_no_subscription_got_is_described_to_those_who_see_its_topic(api: Api) -> None:
    api.create("subscriptions/picky", {"topic": TOPIC, "filter": 'attributes.kind = "order"'})
    [message_id] = api.post("topics/orders:publish", {"messages": [{"data": "aGVsbG8="}]}).body["messageIds"]
    wait_for(lambda: api.get(f"messages/{message_id}").status == 200)
    assert api.get(f"messages/{message_id}").body["deliveries"] == []
    time_less = first_id_at(int(time.time() * 1000) - 60_000)
    assert api.get(f"messages/{time_less}").status == 404
    api.sign_in("ada@example.com")
    assert api.get(f"messages/{message_id}").status == 404
