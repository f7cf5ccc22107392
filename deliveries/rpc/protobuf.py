"""Messages of the data plane in binary form, made from what travels in tasks."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from typing import Any

from google.pubsub_v1.types import pubsub

from deliveries.pull import Received
from deliveries.rules.ids import publish_time_ms

PubsubMessage = pubsub.PubsubMessage.pb()
ReceivedMessage = pubsub.ReceivedMessage.pb()


def received_messages(received: Iterable[Received]) -> list[Any]:
    return [received_message(one) for one in received]


def received_message(one: Received) -> Any:
    """A google.pubsub.v1.ReceivedMessage."""
    given = one.message
    message = PubsubMessage(
        data=base64.b64decode(given["data"]) if "data" in given else b"",
        attributes=given.get("attributes"),
        message_id=given["messageId"],
        ordering_key=given.get("orderingKey", ""),
    )
    message.publish_time.FromMilliseconds(publish_time_ms(int(given["messageId"])))
    return ReceivedMessage(ack_id=one.ack_id, message=message, delivery_attempt=one.delivery_attempt)
