"""Flower's list shows and finds each delivery by what it pushes where, and how that went."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
import requests

from deliveries.backlog.default import default_backlog
from deliveries.backlog.records import Lane
from subscriptions.models import Subscription
from tests.flowers import LOGIN
from tests.ports import wait_for
from tests.receiver import Receiver
from tests.restapi import Api
from tests.workers import Worker

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.any_database]

TOPIC = "projects/shop/topics/orders"
NAME = "projects/shop/subscriptions/billing"


def search(address: str, text: str) -> list[dict[str, Any]]:
    """Return the rows that Flower's page gets for a search."""
    query = {"draw": "1", "start": "0", "length": "50", "search[value]": text}
    query |= {"order[0][column]": "0", "order[0][dir]": "desc", "columns[0][data]": "received"}
    user, _, password = LOGIN.partition(":")
    answer = requests.get(f"{address}/tasks/datatable", query, auth=(user, password), timeout=30).json()
    assert "searchError" not in answer, answer
    rows: list[dict[str, Any]] = answer["data"]
    return rows


def task_info(address: str, task_id: str) -> dict[str, Any]:
    user, _, password = LOGIN.partition(":")
    answer: dict[str, Any] = requests.get(
        f"{address}/api/task/info/{task_id}", auth=(user, password), timeout=30
    ).json()
    return answer


@pytest.mark.parametrize(
    "kind",
    [{}, {"stock": True}, {"stock": True, "options": ("-P", "prefork", "-c", "2")}],
    ids=["push-worker", "stock", "stock-prefork"],
)
def test_a_delivery_is_found_by_subscription_topic_message_attempt_outcome_and_countdown(
    redis_url: str, receiver: Receiver, flower: str, kind: dict[str, Any]
) -> None:
    api = Api()
    api.create("topics/orders")
    config = {
        "pushConfig": {"pushEndpoint": receiver.url},
        "retryPolicy": {"minimumBackoff": "1s", "maximumBackoff": "1s"},
    }
    api.create("subscriptions/billing", {"topic": TOPIC, **config})
    receiver.default = 503
    [message_id] = api.post("topics/orders:publish", {"messages": [{"data": "aGVsbG8="}]}).body["messageIds"]
    with Worker(redis_url, **kind) as worker:

        def found_by_attempt() -> bool:
            numbers = [row["retries"] for row in search(flower, message_id)]
            return any(number > 1 and search(flower, f"kwargs:attempt={number}") for number in numbers)

        wait_for(found_by_attempt, what="a repeated attempt in Flower")
        for text in (NAME, TOPIC, message_id, "nack", "result:503"):
            assert [row["uuid"].split(".")[0] for row in search(flower, text)] == [message_id], text
        wait_for(lambda: search(flower, '"next attempt after"'), what="the countdown")
        [row] = search(flower, message_id)
        assert (row["args"], row["kwargs"]) == ("shop/billing", "shop/orders")
        assert row["retries"] >= 2
        assert row["result"] == "nack 503"
        # A new attempt clears the time until it is nacked too.
        wait_for(lambda: search(flower, f"{message_id} state:RETRY"), what="the nacked task")
        wait_for(lambda: task_info(flower, row["uuid"])["eta"], what="the time of the next attempt")
        receiver.default = 204
        wait_for(lambda: search(flower, f'{message_id} "ack 204"'), what="the ack")
        api.delete("subscriptions/billing")
        assert not Subscription.objects.exists()
        assert [row["args"] for row in search(flower, NAME)] == ["shop/billing"], "its last name is kept"
        assert "Traceback" not in worker.log


def test_the_time_of_the_next_attempt_is_one_number_everywhere(redis_url: str, receiver: Receiver, flower: str) -> None:
    receiver.default = 503
    api = Api()
    api.create("topics/orders")
    retries = {"minimumBackoff": "500s", "maximumBackoff": "600s"}
    config = {"topic": TOPIC, "pushConfig": {"pushEndpoint": receiver.url}, "retryPolicy": retries}
    api.create("subscriptions/billing", config)
    [message_id] = api.post("topics/orders:publish", {"messages": [{"data": "aGVsbG8="}]}).body["messageIds"]
    with Worker(redis_url) as worker:
        wait_for(lambda: search(flower, '"next attempt after"'), what="the countdown in Flower")
        # Given the retry's time in Redis, then Flower's task, `inspect scheduled`, REST and the console have the same
        lane = Lane(Subscription.objects.get().pk, "local")
        [(_, due_ms)] = default_backlog().client.zrange(f"{lane.root}:z", 0, 0, withscores=True)
        due = datetime.fromtimestamp(due_ms / 1000, UTC).isoformat(timespec="milliseconds")
        [row] = search(flower, message_id)
        assert task_info(flower, row["uuid"])["eta"] == due
        assert due in worker.celery("inspect", "scheduled")
    [delivery] = api.get(f"messages/{message_id}").body["deliveries"]
    assert datetime.fromisoformat(delivery["nextAttemptTime"]) == datetime.fromisoformat(due)


def test_the_housekeeping_is_shown_only_where_it_is_asked_for(redis_url: str, flower: str) -> None:
    """Given an event of another task, then the list has it only if a name is searched for."""
    from pushhub.celery import app

    with app.connection_for_write() as connection:
        dispatcher = app.events.Dispatcher(connection, hostname="maintenance@test")

        def seen() -> list[dict[str, Any]]:
            dispatcher.send("task-received", uuid="tidy", name="deliveries.tasks.tidy", args="()", kwargs="{}")
            return search(flower, "name:deliveries.tasks")

        wait_for(seen, what="the event in Flower")
        dispatcher.close()
    assert [row["args"] for row in search(flower, "name:deliveries.tasks")] == ["deliveries.tasks.tidy"]
    assert search(flower, "") == search(flower, "state:RECEIVED") == []


@pytest.mark.parametrize("stock", [False, True], ids=["push-worker", "stock"])
def test_a_dead_letter_is_a_failed_task(redis_url: str, receiver: Receiver, flower: str, stock: bool) -> None:
    receiver.default = 503
    api = Api()
    api.create("topics/orders")
    api.create("topics/letters")
    policy = {"deadLetterTopic": "projects/shop/topics/letters", "maxDeliveryAttempts": 5}
    config = {"topic": TOPIC, "pushConfig": {"pushEndpoint": receiver.url}, "deadLetterPolicy": policy}
    api.create("subscriptions/billing", config)
    [message_id] = api.post("topics/orders:publish", {"messages": [{"data": "aGVsbG8="}]}).body["messageIds"]
    with Worker(redis_url, stock=stock) as worker:
        wait_for(lambda: search(flower, f"{message_id} state:FAILURE"), what="the dead letter in Flower")
        [row] = search(flower, message_id)
        assert row["result"] == "dead-lettered after 503"
        assert task_info(flower, row["uuid"])["exception"] == "Nack(503)"
        assert "Traceback" not in worker.log
