"""Messages of the data plane in binary form, made from what travels in tasks."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from typing import Any

from deliveries.pull import Received
from deliveries.rules.ids import publish_time_ms
from pushhub.common.pubsubtypes import pubsub

PubsubMessage = pubsub.PubsubMessage.pb()
ReceivedMessage = pubsub.ReceivedMessage.pb()


def received_messages(received: Iterable[Received]) -> list[Any]:
    return [received_message(message) for message in received]


def received_message(received: Received) -> Any:
    """A google.pubsub.v1.ReceivedMessage."""
    content = received.message
    message = PubsubMessage(
        data=base64.b64decode(content["data"]) if "data" in content else b"",
        attributes=content.get("attributes"),
        message_id=content["messageId"],
        ordering_key=content.get("orderingKey", ""),
    )
    message.publish_time.FromMilliseconds(publish_time_ms(int(content["messageId"])))
    return ReceivedMessage(ack_id=received.ack_id, message=message, delivery_attempt=received.delivery_attempt)
