"""The shapes of the requests and answers of pulling."""

from __future__ import annotations

from deliveries.publish.request import PUBSUB_MESSAGE
from pushhub.common.protojson import Bool, Integer, Message, Repeated, String

NAME = String(2048)
#: An ack id has at most 400 characters, and all of them half a megabyte, so their number can be bounded here too.
ACK_IDS = Repeated(String(1000), max_items=20_000)

PULL = Message("PullRequest", {"subscription": NAME, "returnImmediately": Bool(), "maxMessages": Integer(32)})
ACKNOWLEDGE = Message("AcknowledgeRequest", {"subscription": NAME, "ackIds": ACK_IDS})
MODIFY_ACK_DEADLINE = Message(
    "ModifyAckDeadlineRequest", {"subscription": NAME, "ackIds": ACK_IDS, "ackDeadlineSeconds": Integer(32)}
)
RECEIVED = Message("ReceivedMessage", {"ackId": String(), "message": PUBSUB_MESSAGE, "deliveryAttempt": Integer(32)})
PULL_RESPONSE = Message("PullResponse", {"receivedMessages": Repeated(RECEIVED)})
