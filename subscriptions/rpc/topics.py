"""google.pubsub.v1.Publisher, without Publish."""

from __future__ import annotations

from pushhub.common.pubsubtypes import pubsub
from subscriptions.api import subscriptions, topics
from subscriptions.resources import fields
from subscriptions.rpc.calls import Method
from subscriptions.rpc.unary import answered_by, update

Topic = pubsub.Topic.pb()

METHODS: dict[str, Method] = dict(
    [
        answered_by(topics.create_topic, request=Topic, answer=Topic),
        answered_by(topics.update_topic, answer=Topic, body=update("topic", fields.TOPIC)),
        answered_by(topics.get_topic, answer=Topic),
        answered_by(topics.list_topics),
        answered_by(topics.delete_topic),
        answered_by(topics.list_topic_subscriptions),
        answered_by(subscriptions.detach_subscription),
    ]
)
