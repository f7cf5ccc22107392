"""The events of sampled pushes that Flower gets."""

from __future__ import annotations

from ast import literal_eval
from typing import Any

from celery.events.state import Task
from flower.utils.search import TaskSearchEngine

from deliveries.rules.outcome import Verdict
from deliveries.telemetry.sinks.flower import Flower
from deliveries.telemetry.sinks.sampling import Sample
from tests.attempts import SOURCE, attempt, attempts


def flower() -> Flower:
    return Flower(None, "push@test", name_of="projects/shop/subscriptions/{}".format)


def events_of(sink: Flower, kind: str) -> list[dict[str, Any]]:
    return [fields for name, fields in sink._waiting if name == kind]


def test_a_sampled_success_says_how_many_pushes_it_represents() -> None:
    now = 0.0
    sink = flower()
    sink._sample = Sample(1, clock=lambda: now)
    for second, ids in enumerate(([1, 2, 3], [4])):
        now = float(second)
        weights = sink.sample(len(ids))
        shown = [attempt(message_id, shown=weight) for message_id, weight in zip(ids, weights, strict=False)]
        sink.started([attempts(*shown)])
        sink.take([attempts(*shown, *(attempt(message_id) for message_id in ids[len(weights) :]))])
    results = {fields["uuid"]: fields["result"] for fields in events_of(sink, "task-succeeded")}
    assert results == {"1": "ack 204", "4": "ack 204, stands for 3 pushes"}
    assert [fields["uuid"] for fields in events_of(sink, "task-started")] == ["1", "4"]


def test_an_event_has_the_subscription_message_attempt_and_next_try_of_its_push() -> None:
    sink = flower()
    nacked = attempt(12345, Verdict.NACK, retry_in_ms=1500)
    sink.take([attempts(nacked, source=SOURCE._replace(settled_ms=1_795_336_272_000, topic="t"))])
    [received] = events_of(sink, "task-received")
    assert literal_eval(received["kwargs"]) == {
        "subscription": "projects/shop/subscriptions/7",
        "topic": "t",
        "message_id": "12345",
        "attempt": 1,
    }
    assert received["eta"] is None
    [retried] = events_of(sink, "task-retried")
    assert retried["result"] == "nack 503, next attempt after 1500 ms"
    assert retried["eta"] == "2026-11-22T08:31:13.500+00:00"


def test_a_nack_that_was_not_sampled_has_the_time_of_its_start_all_the_same() -> None:
    sink = flower()
    sink.take([attempts(attempt(1, Verdict.NACK, ended=100.0, latency_ms=500.0))])
    [started] = events_of(sink, "task-started")
    assert started["timestamp"] == 99.5


def test_flower_finds_pushes_by_subscription_and_message() -> None:
    sink = flower()
    sink.started([attempts(attempt(12345), attempt(678))])
    tasks = [(fields["uuid"], Task(**fields)) for fields in events_of(sink, "task-received")]
    search = TaskSearchEngine()
    search.rebuild(tasks)
    assert search.matching_ids("kwargs:message_id=12345") == {"12345"}
    assert search.matching_ids("kwargs:attempt=1") == {"12345", "678"}
    assert search.matching_ids("subscriptions/7") == {"12345", "678"}


def test_events_can_be_disabled() -> None:
    sink = flower()
    sink.is_on = False
    assert not sink.sample(1)
    sink.take([attempts(attempt(1, Verdict.NACK))])
    assert not sink._waiting


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
    sink = flower()
    dispatchers: list[Dispatcher] = []

    def connect() -> None:
        dispatchers.append(Dispatcher())
        sink._dispatcher = dispatchers[-1]

    sink._connect = connect  # type: ignore[method-assign]
    for number in range(3):
        sink._waiting.append(("task-started", {"uuid": number}))
        if number == 2:
            dispatchers[0].is_broken = True
        sink._send()
    assert [dispatcher.sent for dispatcher in dispatchers] == [["task-started 0", "task-started 1"], ["task-started 2"]]
