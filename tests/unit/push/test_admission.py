"""The bytes that payloads may take in a push worker."""

from __future__ import annotations

import pytest

from deliveries.backlog.records import Lane
from deliveries.push.admission import Admission
from deliveries.push.sending.delivery import PushDelivery
from deliveries.rules.outcome import Verdict
from deliveries.rules.payload import wire_message
from deliveries.rules.taskmessage import DeliverTask


class Worker:
    """Holds the resumed deliveries; a delivery that ends releases its bytes."""

    def __init__(self, limit: int) -> None:
        self.resumed: list[PushDelivery] = []
        self.admission = Admission(limit, resume=self.resumed.extend)
        self._ids = iter(range(1, 1_000_000))

    def delivery(self, subscription_id: int) -> PushDelivery:
        task = DeliverTask(subscription_id, "local", 1, wire_message(next(self._ids), b"12345", {}, ""))
        lane = Lane(subscription_id, "local")
        return PushDelivery(task, "t", batch=None, lane=lane, finish=self.admission.release)

    def take(self, subscription_id: int, size: int) -> tuple[PushDelivery, bool]:
        delivery = self.delivery(subscription_id)
        return delivery, self.admission.take([(delivery, size)]) == [delivery]


def test_a_subscription_gets_no_more_than_it_leaves_to_the_others() -> None:
    worker = Worker(100)
    admitted = [worker.take(1, 10)[1] for _ in range(8)]
    assert admitted == [True] * 5 + [False] * 3
    assert worker.take(2, 20)[1]
    assert worker.admission.held_bytes == 70


def test_any_number_of_subscriptions_with_large_messages_leave_room_for_small_ones() -> None:
    worker = Worker(8_000_000)
    admitted = [worker.take(number, 100_000)[1] for number in range(1, 101)]
    assert admitted == [True] * 70 + [False] * 30
    assert worker.take(1000, 1_000)[1]
    assert worker.take(1001, 16 * 1024)[1]
    assert not worker.take(1002, 16 * 1024 + 1)[1]


def test_a_waiting_message_keeps_only_its_id_and_resumes_when_bytes_are_released() -> None:
    worker = Worker(100)
    first, _ = worker.take(1, 50)
    second, is_admitted = worker.take(1, 50)
    assert not is_admitted
    assert second.task.is_reference and second.by_reference and second.data_bytes == 5
    assert not worker.resumed
    first.settle_as(Verdict.ACK)
    assert worker.resumed == [second]
    assert worker.admission.held_bytes == 50


def test_later_messages_of_a_subscription_wait_behind_its_waiting_ones() -> None:
    worker = Worker(100)
    first, _ = worker.take(1, 50)
    large, _ = worker.take(1, 60)
    small, is_admitted = worker.take(1, 1)
    assert not is_admitted
    first.settle_as(Verdict.ACK)
    assert worker.resumed == [large]
    large.settle_as(Verdict.ACK)
    assert worker.resumed == [large, small]


def test_a_message_larger_than_the_limit_goes_alone() -> None:
    worker = Worker(100)
    other, _ = worker.take(1, 10)
    large, is_admitted = worker.take(2, 500)
    assert not is_admitted
    other.settle_as(Verdict.NACK)
    assert worker.resumed == [large]


def test_subscriptions_that_wait_take_turns() -> None:
    worker = Worker(100)
    blocking, _ = worker.take(9, 100)
    waiting = [worker.take(number, 20)[0] for number in (1, 1, 2, 2)]
    blocking.settle_as(Verdict.ACK)
    assert worker.resumed == [waiting[0], waiting[2], waiting[1], waiting[3]]


def test_after_a_large_message_all_messages_that_fit_resume_at_once() -> None:
    worker = Worker(100)
    large, _ = worker.take(1, 500)
    waiting = [worker.take(1, 10)[0] for _ in range(8)]
    large.settle_as(Verdict.ACK)
    assert worker.resumed == waiting[:5]
    waiting[0].settle_as(Verdict.ACK)
    assert worker.resumed == waiting[:6]


def test_a_delivery_that_ended_while_waiting_is_skipped_and_releases_nothing() -> None:
    worker = Worker(100)
    first, _ = worker.take(1, 50)
    ended, _ = worker.take(1, 50)
    last, _ = worker.take(1, 50)
    ended.settle_as(Verdict.RELEASE)
    assert worker.admission.held_bytes == 50
    first.settle_as(Verdict.ACK)
    assert worker.resumed == [last]
    last.settle_as(Verdict.ACK)
    assert worker.admission.held_bytes == 0


def test_a_message_that_grows_holds_more_or_waits_without_its_payload() -> None:
    worker = Worker(100)
    first, _ = worker.take(1, 10)
    second, _ = worker.take(2, 10)

    assert worker.admission.grow(first, 50)
    assert worker.admission.held_bytes == 60
    assert worker.admission.grow(first, 20)
    assert worker.admission.held_bytes == 60
    assert not worker.admission.grow(second, 60)
    assert second.task.is_reference
    assert worker.admission.held_bytes == 50
    assert not worker.resumed

    first.settle_as(Verdict.ACK)
    assert worker.resumed == [second]
    assert worker.admission.grow(second, 60)


def test_a_message_that_waits_only_for_its_own_bytes_resumes() -> None:
    worker = Worker(100)
    first, _ = worker.take(1, 60)
    second, is_admitted = worker.take(1, 60)
    assert not is_admitted

    assert not worker.admission.grow(first, 90)
    assert worker.resumed == [second]
    second.settle_as(Verdict.ACK)
    assert worker.resumed == [second, first]
    assert worker.admission.held_bytes == 90


def test_small_messages_beside_many_that_wait_cost_few_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    # Given a hundred subscriptions with large messages, of which thirty wait
    worker = Worker(8_000_000)
    large = [worker.take(number, 100_000)[0] for number in range(1, 101)]
    tries: list[None] = []
    next_of_each = worker.admission._next_of_each
    monkeypatch.setattr(worker.admission, "_next_of_each", lambda: tries.append(None) or next_of_each())
    # When a hundred small messages of another come and go, then the waiting ones are tried after so many bytes
    for _ in range(100):
        worker.take(1000, 1_000)[0].settle_as(Verdict.ACK)
    assert len(tries) == 100 * 1_000 // 8_000
    # And at once when a large one has ended
    large[0].settle_as(Verdict.ACK)
    assert worker.resumed == [large[70]]


def test_a_large_message_that_ends_beside_many_that_wait_costs_few_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    # Given a thousand subscriptions with large messages, of which most wait
    worker = Worker(8_000_000)
    large = [worker.take(number, 100_000)[0] for number in range(1, 1001)]
    tries: list[None] = []
    fits = worker.admission._fits
    monkeypatch.setattr(worker.admission, "_fits", lambda *message: tries.append(None) or fits(*message))
    # When all that have room end, and then those that got theirs
    for delivery in large:
        delivery.settle_as(Verdict.ACK)
    # Then each has gone in its turn, after a few tries
    assert worker.resumed == large[70:]
    assert len(tries) < 40 * len(large)


def test_a_larger_message_is_not_overtaken_for_ever() -> None:
    # Given subscriptions that hold all room and want more, and one that waits for half of it
    worker = Worker(8_000_000)
    held = [worker.take(number, 100_000)[0] for number in range(1, 71)]
    larger, _ = worker.take(1000, 4_000_000)
    waiting = [worker.take(number, 100_000)[0] for number in range(1, 71)]
    # When the held ones end one after the other
    for delivery in held:
        delivery.settle_as(Verdict.ACK)
    # Then the larger one goes as soon as half of the room is free, and then the others in their turn
    assert worker.resumed == [larger, *waiting[:30]]


def test_messages_that_wait_for_a_few_bytes_go_when_nothing_is_held() -> None:
    # Given a message that needs nearly everything, while a small one is held
    worker = Worker(8_000_000)
    small, _ = worker.take(1, 1_000)
    waiting, is_admitted = worker.take(2, 7_000_000)
    assert not is_admitted
    # When that one has ended, which has freed too little for a try
    small.settle_as(Verdict.ACK)
    # Then the other goes, as no more will become free
    assert worker.resumed == [waiting]
