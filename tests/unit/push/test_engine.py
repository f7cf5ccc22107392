"""What goes wrong with one message, or with who is told of the pushes, keeps no other message from its endpoint."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from deliveries.push.sending.delivery import PushDelivery
from deliveries.push.sending.engine import Engine
from deliveries.rules.outcome import Reason, Verdict
from tests.ports import wait_for
from tests.pushplans import delivery_with, plan_with


def test_a_message_that_makes_no_request_is_nacked_and_stops_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_with()

    def fail(_: Sequence[PushDelivery]) -> None:
        raise RuntimeError("nobody can be told")

    engine = Engine(unprepared=fail, transform=fail, starting=fail, renew=lambda _: None)
    posted: list[bytes] = []
    monkeypatch.setattr(engine.plans, "get", lambda *_, **__: plan)
    monkeypatch.setattr(engine.plans, "is_ending", lambda *_, **__: False)
    monkeypatch.setattr(engine.client, "post", lambda _, body, **__: posted.append(body))
    broken, fine = delivery_with(None, data="e"), delivery_with(None)
    engine.start()
    try:
        engine.accept([broken, fine])
        wait_for(lambda: posted, what="the push of the other message")
    finally:
        engine.stop()
    assert posted == [b"x"]
    assert (broken.verdict, broken.reason) == (Verdict.NACK, Reason.INTERNAL)
