"""A subscription whose messages become dead letters, without a worker."""

from __future__ import annotations

import base64
from typing import Any

from deliveries.deadletters.forwarding import forward_dead_letters, usable_topic_id
from deliveries.models import DeadLetter, Delivery
from deliveries.store.writelock import write_transaction
from subscriptions.models import Subscription
from tests.restapi import Api

TOPIC = "projects/shop/topics/orders"
LETTERS = "projects/shop/topics/letters"


def create_source(api: Api, *, has_reader: bool = True, **fields: Any) -> Subscription:
    """Create the push subscription `worker` with the dead-letter topic `letters` and its pull subscription `reader`."""
    api.create("topics/orders")
    api.create("topics/letters")
    if has_reader:
        api.create("subscriptions/reader", {"topic": LETTERS})
    config = {"pushEndpoint": "http://127.0.0.1:40009/"}
    policy = {"deadLetterTopic": LETTERS, "maxDeliveryAttempts": 5}
    api.create("subscriptions/worker", {"topic": TOPIC, "pushConfig": config, "deadLetterPolicy": policy, **fields})
    return Subscription.objects.select_related("project", "topic__project").get(subscription_id="worker")


def create_letters(api: Api, source: Subscription, count: int, *, result: str = "503", **fields: Any) -> list[int]:
    """Publish messages, and forward them as if their last attempt had been nacked; return the ids of the dead letters.

    The messages' data are `0`, `1` and so on.
    """
    earlier_ids = set(DeadLetter.objects.values_list("message_id", flat=True))
    messages = [{"data": base64.b64encode(str(number).encode()).decode(), **fields} for number in range(count)]
    answer = api.post("topics/orders:publish", {"messages": messages})
    ids = [int(text) for text in answer.body["messageIds"]]
    with write_transaction():
        forwarded = forward_dead_letters(
            subscription_id=source.pk,
            region="local",
            attempts=dict.fromkeys(ids, 5),
            topic_id=usable_topic_id(source.pk),
            results=dict.fromkeys(ids, result),
        )
    forwarded.announce_all()
    assert forwarded.message_ids == set(ids)
    return sorted(set(DeadLetter.objects.values_list("message_id", flat=True)) - earlier_ids)


def owed_to(subscription_id: str) -> list[str]:
    """Return the data of the messages that a subscription is owed, in publish order."""
    rows = Delivery.objects.filter(subscription__subscription_id=subscription_id)
    return [bytes(row.message.data).decode() for row in rows.select_related("message").order_by("message_id")]


def pull_messages(api: Api, name: str, count: int = 100) -> list[Any]:
    body = {"maxMessages": count, "returnImmediately": True}
    received: list[Any] = api.post(f"subscriptions/{name}:pull", body).body.get("receivedMessages", [])
    return received
