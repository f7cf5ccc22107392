"""What goes wrong with one message, or with who is told of the pushes, keeps no other message from its endpoint."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from deliveries.backlog.records import Lane
from deliveries.push.sending.delivery import PushDelivery
from deliveries.push.sending.engine import Engine
from deliveries.push.sending.plans import PushPlan
from deliveries.rules.outcome import Reason, Verdict
from deliveries.rules.taskmessage import DeliverTask
from tests.ports import wait_for


def delivery_of(data: str) -> PushDelivery:
    message = {"messageId": "1", "publishTime": "2021-02-26T19:13:55.749Z", "data": data}
    task = DeliverTask(1, "local", 1, message)
    return PushDelivery(task, "1.1.local", batch=None, lane=Lane(1, "local"), finish=lambda _: None)


def test_a_message_that_makes_no_request_is_nacked_and_stops_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    settings: Any = SimpleNamespace(
        retention_seconds=10**12,
        ordered=False,
        no_wrapper=True,
        write_metadata=False,
        ack_deadline_seconds=10,
        attributes={},
    )
    endpoint: Any = object()
    plan = PushPlan(settings, endpoint, 0.0)

    def fail(_: Sequence[PushDelivery]) -> None:
        raise RuntimeError("nobody can be told")

    engine = Engine(unprepared=fail, transform=fail, starting=fail, renew=lambda _: None)
    posted: list[bytes] = []
    monkeypatch.setattr(engine.plans, "get", lambda *_, **__: plan)
    monkeypatch.setattr(engine.plans, "is_ending", lambda *_, **__: False)
    monkeypatch.setattr(engine.client, "post", lambda _, body, **__: posted.append(body))
    broken, fine = delivery_of("e"), delivery_of("eA==")
    engine.start()
    try:
        engine.accept([broken, fine])
        wait_for(lambda: posted, what="the push of the other message")
    finally:
        engine.stop()
    assert posted == [b"x"]
    assert (broken.verdict, broken.reason) == (Verdict.NACK, Reason.INTERNAL)
