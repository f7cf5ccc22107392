"""The results of a settler's turn in the database: those of many lanes by few statements, each for its own lane."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from deliveries.backlog.records import Lane
from deliveries.deadletters import moving
from deliveries.models import DeadLetter, Delivery
from deliveries.push.results import storing
from deliveries.push.results.storing import MANY, write_results
from deliveries.push.sending.delivery import PushDelivery
from deliveries.rules.outcome import Verdict
from deliveries.rules.taskmessage import DeliverTask
from tests.restapi import Api

PAST = "1970-01-01T00:00:00Z"

pytestmark = [pytest.mark.django_db(transaction=True)]


def push_to(api: Api, names: list[str], *, messages: int = 1) -> None:
    api.put("topics/orders")
    for name in names:
        push = {"pushEndpoint": "https://shop.example/push"}
        api.put(f"subscriptions/{name}", {"topic": "projects/shop/topics/orders", "pushConfig": push})
    api.post("topics/orders:publish", {"messages": [{"data": "aGVsbG8="}] * messages})


def results(rows: list[Delivery], verdict: Verdict, *, attempt: int = 1) -> dict[Lane, list[PushDelivery]]:
    lanes: dict[Lane, list[PushDelivery]] = {}
    for row in rows:
        lane = Lane(row.subscription_id, row.region)
        task = DeliverTask(*lane, attempt, {"messageId": str(row.message_id)})
        delivery = PushDelivery(task, str(row.pk), batch=None, lane=lane, finish=lambda _: None)
        delivery.settle_as(verdict, "503" if verdict is Verdict.NACK else "")
        lanes.setdefault(lane, []).append(delivery)
    return lanes


@pytest.mark.parametrize("verdict", [Verdict.ACK, Verdict.NACK])
def test_a_turn_of_many_lanes_takes_as_few_statements_as_one_of_two(redis_url: str, verdict: Verdict) -> None:
    api = Api()
    push_to(api, [f"push-{number}" for number in range(20)])
    rows = list(Delivery.objects.order_by("pk"))
    counts = []
    for part in (rows[:2], rows[2:]):
        with CaptureQueriesContext(connection) as queries:
            write_results(results(part, verdict))
        counts.append(len(queries))

    assert counts[0] == counts[1]
    if verdict is Verdict.ACK:
        assert not Delivery.objects.exists()
    else:
        assert set(Delivery.objects.values_list("attempts", "last_result")) == {(1, "503")}


@pytest.mark.parametrize("messages", [1, MANY])
def test_a_result_counts_for_its_own_lane_only(redis_url: str, messages: int) -> None:
    """Each subscription owes the same messages; that of the last one was brought back by a seek."""
    api = Api()
    push_to(api, ["acked", "nacked", "waiting", "sought"], messages=messages)
    rows = {row.subscription.subscription_id: [] for row in Delivery.objects.select_related("subscription")}
    for row in Delivery.objects.select_related("subscription").order_by("pk"):
        rows[row.subscription.subscription_id].append(row)
    before_seek = {**results(rows["sought"], Verdict.ACK), **results(rows["acked"], Verdict.ACK)}
    api.post("subscriptions/sought:seek", {"time": PAST})

    write_results({**before_seek, **results(rows["nacked"], Verdict.NACK, attempt=7)})

    left = Delivery.objects.select_related("subscription").order_by("pk")
    owed = [(row.subscription.subscription_id, row.attempts, row.last_result) for row in left]
    assert sorted(owed) == sorted([("nacked", 7, "503"), ("waiting", 0, ""), ("sought", 0, "")] * messages)


def test_a_nack_of_a_message_that_was_acked_late_is_dropped(redis_url: str) -> None:
    api = Api()
    push_to(api, ["first", "second"])
    gone, owed = Delivery.objects.order_by("pk")
    lanes = results([gone, owed], Verdict.NACK)
    Delivery.objects.filter(pk=gone.pk).delete()

    write_results(lanes)

    assert [delivery.verdict for [delivery] in lanes.values()] == [Verdict.DROP, Verdict.NACK]


@pytest.mark.parametrize(("bound", "most"), [("BATCH", 2), ("SLICE_ROWS", 4)])
def test_dead_letters_are_forwarded_in_small_transactions(
    redis_url: str, monkeypatch: pytest.MonkeyPatch, bound: str, most: int
) -> None:
    """Publishes wait for a transaction: one of 1,000 dead letters to 2 subscriptions has 2,000 rows."""
    # Given a dead-letter topic with two subscriptions, and five messages whose last attempt is nacked
    api = Api()
    api.put("topics/letters")
    for name in ("reader", "other"):
        api.create(f"subscriptions/{name}", {"topic": "projects/shop/topics/letters"})
    push_to(api, ["push"], messages=6)
    policy = {"deadLetterTopic": "projects/shop/topics/letters", "maxDeliveryAttempts": 5}
    change = {"subscription": {"deadLetterPolicy": policy}, "updateMask": "deadLetterPolicy"}
    assert api.patch("subscriptions/push", change).status == 200
    rows = list(Delivery.objects.order_by("pk"))
    lanes = results(rows[:5], Verdict.NACK, attempt=5)
    [deliveries] = lanes.values()
    # And one that was acknowledged by an earlier attempt
    deliveries += [*results(rows[5:], Verdict.NACK, attempt=5).popitem()[1]]
    deliveries += [*results(rows[5:], Verdict.ACK).popitem()[1]]
    monkeypatch.setattr(storing, "_is_spent", lambda nack: True)
    monkeypatch.setattr(moving, bound, most)
    sizes = []
    forward = storing.forward_dead_letters

    def forward_counted(**given: Any) -> Any:
        sizes.append(len(given["attempts"]))
        return forward(**given)

    monkeypatch.setattr(storing, "forward_dead_letters", forward_counted)
    # When they are settled
    write_results(lanes)
    # Then each transaction has few of them
    assert sizes == [2, 2, 2]
    assert DeadLetter.objects.count() == 5
    assert [delivery.verdict for delivery in deliveries] == [Verdict.DEAD_LETTER] * 5 + [Verdict.DROP, Verdict.ACK]
    assert not Delivery.objects.filter(subscription__subscription_id="push").exists()


def test_a_message_whose_worker_is_killed_before_it_is_forwarded_keeps_its_number_of_attempts(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given two messages, of which one is at its last attempt
    push_to(Api(), ["push"], messages=2)
    last, other = Delivery.objects.order_by("pk")
    lanes = results([last], Verdict.NACK, attempt=5)
    [deliveries] = lanes.values()
    deliveries += [*results([other], Verdict.NACK, attempt=3).popitem()[1]]
    monkeypatch.setattr(storing, "_is_spent", lambda nack: nack.task.attempt == 5)
    # When the worker is killed before it forwards that one
    monkeypatch.setattr(storing, "_forward_spent", Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        write_results(lanes)
    # Then the message comes again as that attempt, and is forwarded after as many as the policy says
    assert [row.attempts for row in Delivery.objects.order_by("pk")] == [0, 3]
