"""The methods about topics, subscriptions, schemas and policies, which the functions of the API answer."""

from __future__ import annotations

import secrets
from typing import Any

from google.iam.v1 import policy_pb2

from pushhub.common import names
from pushhub.common.pubsubtypes import pubsub
from subscriptions.api import policies, schemas, subscriptions, topics
from subscriptions.resources import fields
from subscriptions.rpc.calls import LARGE_REQUEST_BYTES, Method
from subscriptions.rpc.protobuf import to_dict
from subscriptions.rpc.unary import answered_by, part, update

Schema = pubsub.Schema
Subscription = pubsub.Subscription
Topic = pubsub.Topic


def complete_name(request: Any) -> None:
    """Give a subscription without a name a random one, in the project of its topic (pubsub.proto)."""
    if not request.name:
        project, _topic = names.parse_topic(request.topic, field="topic")
        request.name = names.subscription_name(project, f"auto-{secrets.token_hex(12)}")


def _policy_to_set(request: Any) -> dict[str, Any]:
    values: dict[str, Any] = {"policy": to_dict(request.policy)} if request.HasField("policy") else {}
    if request.update_mask.paths:
        values["updateMask"] = ",".join(request.update_mask.paths)
    return values


#: google.pubsub.v1.Publisher, without messages and snapshots.
PUBLISHER: dict[str, Method] = dict(
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
#: google.pubsub.v1.Subscriber, without messages and snapshots.
SUBSCRIBER: dict[str, Method] = dict(
    [
        answered_by(
            subscriptions.create_subscription, request=Subscription, answer=Subscription, complete=complete_name
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
#: google.pubsub.v1.SchemaService.
SCHEMAS: dict[str, Method] = dict(
    [
        answered_by(schemas.create_schema, answer=Schema, body=part("schema")),
        answered_by(schemas.get_schema, answer=Schema),
        answered_by(schemas.list_schemas),
        answered_by(schemas.list_schema_revisions),
        answered_by(schemas.commit_schema, answer=Schema),
        answered_by(schemas.rollback_schema, answer=Schema),
        answered_by(schemas.delete_schema_revision, answer=Schema),
        answered_by(schemas.delete_schema),
        answered_by(schemas.validate_schema),
        answered_by(schemas.validate_message, most_bytes=LARGE_REQUEST_BYTES),
    ]
)
#: google.iam.v1.IAMPolicy: the policies of all resources that have one.
POLICIES: dict[str, Method] = dict(
    [
        answered_by(policies.get_policy, answer=policy_pb2.Policy),
        answered_by(policies.set_policy, answer=policy_pb2.Policy, body=_policy_to_set),
        answered_by(policies.list_held_permissions, name="resource"),
    ]
)
