"""What goes wrong with one message, or with who is told of the pushes, keeps no other message from its endpoint."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from deliveries.push.sending.delivery import PushDelivery
from deliveries.push.sending.engine import LOW_SLICE, Engine
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


def test_a_message_of_a_prompt_lane_is_sent_in_the_turn_in_which_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Given messages of other lanes that wait for later turns of the loop, when one of a prompt lane comes."""
    plan = plan_with()
    engine = Engine(unprepared=list, transform=list, starting=list, renew=list)
    posted: list[bytes] = []
    monkeypatch.setattr(engine.plans, "get", lambda *_, **__: plan)
    monkeypatch.setattr(engine.plans, "is_ending", lambda *_, **__: False)
    monkeypatch.setattr(engine.client, "post", lambda _, body, **__: posted.append(body))
    others, prompt = [delivery_with(None) for _ in range(2 * LOW_SLICE)], delivery_with(None, data="cHJvbXB0")
    for delivery in others:
        delivery.is_prompt = False
    engine._line_up(others)
    engine._line_up([prompt])
    assert posted == [b"x"] * LOW_SLICE + [b"prompt"]
