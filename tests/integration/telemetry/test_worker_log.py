"""What a real push worker logs: lines for changes of health, and an event for each attempt in JSON."""

from __future__ import annotations

import base64
from typing import Any

import orjson
import pytest

from tests.ports import wait_for
from tests.receiver import Receiver
from tests.restapi import Api
from tests.workers import Worker

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.any_database]

TOPIC = "projects/shop/topics/orders"
RETRY_POLICY = {"minimumBackoff": "0.01s", "maximumBackoff": "0.01s"}
SECRET_DATA = base64.b64encode(b"payload-that-nobody-logs").decode()


def publish(api: Api) -> str:
    messages = [{"data": SECRET_DATA, "attributes": {"token": "attribute-that-nobody-logs"}}]
    message_id: str = api.post("topics/orders:publish", {"messages": messages}).body["messageIds"][0]
    return message_id


def subscribe(api: Api, receiver: Receiver) -> None:
    push_config = {"pushEndpoint": f"{receiver.url}?key=url-that-nobody-logs"}
    api.create("topics/orders")
    api.create("subscriptions/hello", {"topic": TOPIC, "pushConfig": push_config, "retryPolicy": RETRY_POLICY})


def test_an_endpoint_that_fails_and_recovers_is_two_lines(api: Api, redis_url: str) -> None:
    with Receiver(default=204) as receiver, Worker(redis_url) as worker:
        receiver.script([503] * 6)
        subscribe(api, receiver)
        publish(api)
        wait_for(lambda: "shop/hello: healthy again after" in worker.log, what="the recovery")
        lines = [line for line in worker.log.splitlines() if "shop/hello" in line]
    assert len(lines) == 2, lines
    assert "WARNING" in lines[0] and "shop/hello: 503 since" in lines[0] and "pushes failed" in lines[0]


def test_json_logs_have_an_event_for_each_attempt_and_no_payload(api: Api, redis_url: str) -> None:
    with Receiver(default=204) as receiver, Worker(redis_url, PUSHHUB_LOG_FORMAT="json") as worker:
        receiver.script([503])
        subscribe(api, receiver)
        message_id = publish(api)
        wait_for(lambda: '"outcome":"ack"' in worker.log, what="the event of the ack")
        log = worker.log
    events = [row for row in map(_row, log.splitlines()) if row.get("event") == "delivery.attempted"]
    nack, ack = events
    assert nack.keys() == ack.keys()
    assert (nack["outcome"], nack["status"], nack["attempt"]) == ("nack", 503, 1)
    assert (ack["outcome"], ack["status"], ack["attempt"]) == ("ack", 204, 2)
    assert {row["message_id"] for row in events} == {message_id}
    assert {row["subscription"] for row in events} == {"projects/shop/subscriptions/hello"}
    assert ack["stands_for"] == 1
    assert "nobody-logs" not in log and SECRET_DATA not in log


def _row(line: str) -> dict[str, Any]:
    """Return the object of a line of JSON; Celery's banner and Redis' messages are not JSON."""
    row: dict[str, Any] = orjson.loads(line) if line.startswith("{") else {}
    return row
