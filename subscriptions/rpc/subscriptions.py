"""google.pubsub.v1.Subscriber, without messages and snapshots."""

from __future__ import annotations

import secrets
from typing import Any

from pushhub.common import names
from pushhub.common.pubsubtypes import pubsub
from subscriptions.api import subscriptions
from subscriptions.resources import fields
from subscriptions.rpc.calls import Method
from subscriptions.rpc.unary import answered_by, update

Subscription = pubsub.Subscription.pb()


def name_complete(request: Any) -> None:
    """Give a subscription without a name a random one, in the project of its topic (pubsub.proto)."""
    if not request.name:
        project, _topic = names.parse_topic(request.topic, field="topic")
        request.name = names.subscription_name(project, f"auto-{secrets.token_hex(12)}")


METHODS: dict[str, Method] = dict(
    [
        answered_by(
            subscriptions.create_subscription, request=Subscription, answer=Subscription, complete=name_complete
        ),
        answered_by(subscriptions.get_subscription, answer=Subscription),
        answered_by(
            subscriptions.update_subscription, answer=Subscription, body=update("subscription", fields.SUBSCRIPTION)
        ),
        answered_by(subscriptions.list_subscriptions),
        answered_by(subscriptions.delete_subscription),
        answered_by(subscriptions.modify_push_config),
    ]
)
