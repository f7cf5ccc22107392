"""A function that changes while messages wait for it: they get what the subscription has when their turn comes."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from deliveries.push import transformer as module
from deliveries.push.sending.delivery import PushDelivery, Step, next_step
from deliveries.push.sending.sender import send
from deliveries.push.transformer import Transformer
from deliveries.rules.outcome import Verdict
from pushhub.common.errors import ResourceExhausted
from subscriptions.transforms.functions import Function
from subscriptions.transforms.results import Result, Transformed
from tests.pushplans import delivery_with, plan_with

OLD, NEW = [Function("old", "")], [Function("new", "")]


class Turns:
    """Stands in for the sandboxes: the functions of each turn, and how the turn ends."""

    def __init__(self) -> None:
        self.functions: list[Sequence[Function]] = []
        self.futures: list[Future[list[Result]]] = []

    def begin(self, *, functions: Sequence[Function], **_: Any) -> Future[list[Result]]:
        self.functions.append(functions)
        self.futures.append(Future())
        return self.futures[-1]

    def end(self, text: bytes) -> None:
        self.futures[-1].set_result([Transformed(text, {})])


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> Turns:
    turns = Turns()
    monkeypatch.setattr(module, "begin_transforms", turns.begin)
    monkeypatch.setattr(module, "TURN_MESSAGES", 1)
    return turns


def test_waiting_messages_get_the_functions_of_the_moment(turns: Turns) -> None:
    now: Sequence[Function] = OLD
    resumed: list[PushDelivery] = []
    transformer = Transformer(functions_of=lambda _: now, resume=resumed.extend, admit=lambda _: True)
    deliveries = [delivery_with(plan_with(OLD)) for _ in range(4)]
    transformer.take_on(deliveries)
    # When the function changes during the first turn, then the next turn has the new one
    now = NEW
    turns.end(b"old")
    assert turns.functions == [OLD, NEW]
    # And when it is removed, then the others go on as they are
    now = ()
    turns.end(b"new")
    assert turns.functions == [OLD, NEW]
    assert resumed == deliveries
    assert [delivery.transformed is None for delivery in deliveries] == [False, False, True, True]
    # And what the old one gave is transformed again
    assert [next_step(delivery, plan_with(NEW)) for delivery in deliveries[:2]] == [Step.TRANSFORM, Step.PUSH]


def test_a_turn_that_does_not_begin_stops_no_other(turns: Turns, monkeypatch: pytest.MonkeyPatch) -> None:
    resumed: list[PushDelivery] = []
    transformer = Transformer(functions_of=lambda _: OLD, resume=resumed.extend, admit=lambda _: True)
    failing, fine = delivery_with(plan_with(OLD)), delivery_with(plan_with(OLD))
    failing.task = failing.task._replace(message={})

    def begin(*, messages: Sequence[Any], **options: Any) -> Future[list[Result]]:
        assert messages[0]["publishTime"]
        return turns.begin(**options)

    monkeypatch.setattr(module, "begin_transforms", begin)
    transformer.take_on([failing])
    assert failing.verdict is Verdict.NACK
    transformer.take_on([fine])
    turns.end(b"new")
    assert resumed == [fine]


def test_messages_of_a_turn_without_time_wait_and_those_of_one_that_breaks_are_nacked(turns: Turns) -> None:
    resumed: list[PushDelivery] = []
    transformer = Transformer(functions_of=lambda _: OLD, resume=resumed.extend, admit=lambda _: True)
    patient, broken = delivery_with(plan_with(OLD)), delivery_with(plan_with(OLD))
    transformer.take_on([patient])
    turns.futures[-1].set_exception(ResourceExhausted("other projects' functions leave no time"))
    turns.end(b"new")
    assert resumed == [patient]
    transformer.take_on([broken])
    turns.futures[-1].set_exception(RuntimeError("unexpected"))
    assert broken.verdict is Verdict.NACK
    assert patient.verdict is not Verdict.NACK


def test_after_the_functions_were_removed_a_message_is_sent_as_it_was_published(turns: Turns) -> None:
    resumed: list[PushDelivery] = []
    transformer = Transformer(functions_of=lambda _: OLD, resume=resumed.extend, admit=lambda _: True)
    transformer.take_on([delivery_with(plan_with(OLD))])
    turns.end(b"old")
    [delivery] = resumed
    sent: list[bytes] = []
    client: Any = SimpleNamespace(post=lambda endpoint, body, **_: sent.append(body))
    plan = plan_with(())
    assert next_step(delivery, plan) is Step.PUSH
    send(client, delivery, plan, 0)
    assert sent == [b"x"]
