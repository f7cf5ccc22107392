"""Messages of the data plane in binary form, converted from the form that tasks have."""

from __future__ import annotations

import binascii
from typing import Any

from deliveries.pull.leasing import Received
from deliveries.rules.ids import publish_time_ms

#: A response has at most this many bytes of messages, unless it has a single message; clients take 4 MB by default.
RESPONSE_BYTES = 3_000_000


def add_received_message(response: Any, received: Received) -> Any:
    """Add a message to a PullResponse or a StreamingPullResponse; return its ReceivedMessage.

    It is filled in place, as protocol buffers copy a message that is assigned or appended.
    """
    target = response.received_messages.add(ack_id=received.ack_id, delivery_attempt=received.delivery_attempt)
    content, message = received.message, target.message
    message.message_id = content["messageId"]
    if "data" in content:
        message.data = binascii.a2b_base64(content["data"])
    if "attributes" in content:
        message.attributes.update(content["attributes"])
    if "orderingKey" in content:
        message.ordering_key = content["orderingKey"]
    publish_time = message.publish_time
    publish_time.seconds, milliseconds = divmod(publish_time_ms(int(content["messageId"])), 1000)
    publish_time.nanos = milliseconds * 1_000_000
    return target
