"""The events of sampled pushes that Flower gets."""

from __future__ import annotations

from ast import literal_eval
from typing import Any

from celery.events.state import Task
from flower.utils.search import TaskSearchEngine

from deliveries.backlog.backlog import Lane, LaneFlow
from deliveries.push.results.events import TaskEvents
from deliveries.push.sending.flight import Flight
from deliveries.rules.outcome import Verdict
from deliveries.rules.payload import wire_message
from deliveries.rules.taskmessage import DeliverTask
from deliveries.telemetry.sinks.sampling import Sample

FLOWS = {Lane(7, "local"): LaneFlow(1, 0, settled_ms=1_795_336_272_000)}


def task_events() -> TaskEvents:
    return TaskEvents(None, "push@test", name_of="projects/shop/subscriptions/{}".format)


def flight(message_id: int) -> Flight:
    task = DeliverTask(7, "local", 1, wire_message(message_id, b"x", {}, ""))
    return Flight(task, str(message_id), batch=None, lane=Lane(7, "local"), finish=lambda _: None)


def test_a_sampled_success_says_how_many_pushes_it_represents() -> None:
    now = 0.0
    events = task_events()
    events._sample = Sample(1, clock=lambda: now)
    for second, ids in enumerate(([1, 2, 3], [4])):
        now = float(second)
        flights = [flight(message_id) for message_id in ids]
        events.started(flights)
        for settled in flights:
            settled.status = 204
            settled.settle_as(Verdict.ACK)
        events.settled(flights, FLOWS)
    shown = {fields["uuid"]: fields["result"] for kind, fields in events._waiting if kind == "task-succeeded"}
    assert shown == {"1": "ack 204", "4": "ack 204, stands for 3 pushes"}
    assert not events._weights


def events_of(events: TaskEvents, kind: str) -> list[dict[str, Any]]:
    return [fields for name, fields in events._waiting if name == kind]


def test_an_event_has_the_subscription_message_attempt_and_next_try_of_its_push() -> None:
    events = task_events()
    nacked = flight(12345)
    events.started([nacked])
    nacked.status, nacked.retry_in_ms = 503, 1500
    nacked.settle_as(Verdict.NACK)
    events.settled([nacked], FLOWS)
    [received] = events_of(events, "task-received")
    assert literal_eval(received["kwargs"]) == {
        "subscription": "projects/shop/subscriptions/7",
        "topic": "",
        "message_id": "12345",
        "attempt": 1,
    }
    assert received["eta"] is None
    [retried] = events_of(events, "task-retried")
    assert retried["result"] == "nack 503, next attempt after 1500 ms"
    assert retried["eta"] == "2026-11-22T08:31:13.500+00:00"


def test_flower_finds_pushes_by_subscription_and_message() -> None:
    events = task_events()
    events.started([flight(12345), flight(678)])
    tasks = [(fields["uuid"], Task(**fields)) for fields in events_of(events, "task-received")]
    search = TaskSearchEngine()
    search.rebuild(tasks)
    assert search.matching_ids("kwargs:message_id=12345") == {"12345"}
    assert search.matching_ids("kwargs:attempt=1") == {"12345", "678"}
    assert search.matching_ids("subscriptions/7") == {"12345", "678"}


def test_every_push_has_its_start_whether_it_is_sampled_or_not() -> None:
    events = task_events()
    events._sample = Sample(1, clock=lambda: 0.0)
    flights = [flight(message_id) for message_id in range(1, 6)]
    events.started(flights)
    assert all(started.started for started in flights)
    assert len(events_of(events, "task-received")) < len(flights)


def test_events_can_be_disabled() -> None:
    events = task_events()
    events.is_on = False
    nacked = flight(12345)
    events.started([nacked])
    nacked.settle_as(Verdict.NACK)
    events.settled([nacked], FLOWS)
    assert not events._waiting


class Dispatcher:
    """Takes events until its connection breaks."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.is_broken = False
        self.connection = self

    def send(self, kind: str, **fields: object) -> None:
        if self.is_broken:
            raise ConnectionError
        self.sent.append(f"{kind} {fields['uuid']}")

    def flush(self, **_: object) -> None: ...
    def close(self) -> None: ...
    def release(self) -> None: ...


def test_events_go_over_one_connection_until_it_breaks() -> None:
    events = task_events()
    dispatchers: list[Dispatcher] = []

    def connect() -> None:
        dispatchers.append(Dispatcher())
        events._dispatcher = dispatchers[-1]

    events._connect = connect  # type: ignore[method-assign]
    for number in range(3):
        events._waiting.append(("task-started", {"uuid": number}))
        if number == 2:
            dispatchers[0].is_broken = True
        events._send()
    assert [dispatcher.sent for dispatcher in dispatchers] == [["task-started 0", "task-started 1"], ["task-started 2"]]
