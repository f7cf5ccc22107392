"""Rows as the resources of the API, in canonical JSON form: defaults and empty values are left out."""

from __future__ import annotations

from typing import Any

from pushhub.common.names import DELETED_TOPIC
from pushhub.common.protojson import duration_format, timestamp_format
from subscriptions.models import ServiceAccount, Snapshot, Subscription, Topic
from subscriptions.models.credentials import ServiceAccountKey
from subscriptions.models.schemas import SchemaRevision

Fields = dict[str, Any]


def topic_fields(topic: Topic) -> Fields:
    """What a caller can set on a topic, as it is now."""
    return _present(
        {
            "labels": topic.labels,
            "messageStoragePolicy": topic.message_storage_policy,
            "schemaSettings": topic.schema_settings,
            "messageRetentionDuration": _duration(topic.message_retention_seconds),
        }
    )


def topic_resource(topic: Topic) -> Fields:
    return {"name": topic.name, **topic_fields(topic), "state": "ACTIVE"}


def subscription_fields(subscription: Subscription) -> Fields:
    """What a caller can set on a subscription, as it is now."""
    return _present(
        {
            "topic": subscription.topic.name if subscription.topic else DELETED_TOPIC,
            "pushConfig": push_config(subscription),
            "ackDeadlineSeconds": subscription.ack_deadline_seconds,
            "retainAckedMessages": subscription.retain_acked_messages,
            "messageRetentionDuration": _duration(subscription.message_retention_seconds),
            "labels": subscription.labels,
            "enableMessageOrdering": subscription.enable_message_ordering,
            "expirationPolicy": _expiration_policy(subscription),
            "filter": subscription.filter,
            "deadLetterPolicy": _dead_letter_policy(subscription),
            "retryPolicy": _retry_policy(subscription),
            "enableExactlyOnceDelivery": subscription.enable_exactly_once_delivery,
        }
    )


def subscription_resource(subscription: Subscription) -> Fields:
    fields = subscription_fields(subscription)
    if subscription.detached:
        fields["detached"] = True
    if subscription.topic and subscription.topic.message_retention_seconds:
        fields["topicMessageRetentionDuration"] = _duration(subscription.topic.message_retention_seconds)
    return {"name": subscription.name, **fields, "state": "ACTIVE"}


def snapshot_resource(snapshot: Snapshot) -> Fields:
    return _present(
        {
            "name": snapshot.name,
            "topic": snapshot.topic.name if snapshot.topic else DELETED_TOPIC,
            "expireTime": timestamp_format(snapshot.expire_at),
            "labels": snapshot.labels,
        }
    )


def push_config(subscription: Subscription) -> Fields:
    """Empty for a pull subscription."""
    oidc = {"serviceAccountEmail": subscription.oidc_service_account_email, "audience": subscription.oidc_audience}
    unwrapped = {"writeMetadata": True} if subscription.push_write_metadata else {}
    return _present(
        {
            "pushEndpoint": subscription.push_endpoint,
            "attributes": subscription.push_attributes,
            "oidcToken": _present(oidc) or None,
            "pubsubWrapper": {} if subscription.push_wrapper == Subscription.Wrapper.PUBSUB else None,
            "noWrapper": unwrapped if subscription.push_wrapper == Subscription.Wrapper.NONE else None,
        },
        messages=("pubsubWrapper", "noWrapper"),
    )


def schema_resource(revision: SchemaRevision, *, full: bool = True) -> Fields:
    """A schema at one of its revisions; without the definition unless it is asked for in full."""
    return {
        "name": revision.schema.name,
        "type": revision.schema.type,
        **({"definition": revision.definition} if full else {}),
        "revisionId": revision.revision_id,
        "revisionCreateTime": timestamp_format(revision.created_at),
    }


def service_account_resource(account: ServiceAccount) -> Fields:
    return _present(
        {
            "name": account.name,
            "projectId": account.project.project_id,
            "uniqueId": account.unique_id,
            "email": account.email,
            "displayName": account.display_name,
            "description": account.description,
            "oauth2ClientId": account.unique_id,
            "disabled": account.is_disabled,
        }
    )


def service_account_key_resource(key: ServiceAccountKey) -> Fields:
    """Without the private half, which is not here."""
    return _present(
        {
            "name": key.name,
            "keyAlgorithm": "KEY_ALG_RSA_2048",
            "validAfterTime": timestamp_format(key.created_at),
            "validBeforeTime": timestamp_format(key.expires_at),
            "keyOrigin": "USER_PROVIDED" if key.uploaded else "GOOGLE_PROVIDED",
            "keyType": "USER_MANAGED",
            "disabled": key.disabled,
        }
    )


#: Being messages, these differ when empty from when absent.
MESSAGES = (
    "pushConfig",
    "expirationPolicy",
    "messageStoragePolicy",
    "schemaSettings",
    "ingestionDataSourceSettings",
    "bigqueryConfig",
    "cloudStorageConfig",
    "bigtableConfig",
)


def _present(fields: Fields, *, messages: tuple[str, ...] = MESSAGES) -> Fields:
    return {name: value for name, value in fields.items() if value or (value == {} and name in messages)}


def _duration(seconds: int | None) -> str:
    return "" if seconds is None else duration_format(seconds * 1000)


def _expiration_policy(subscription: Subscription) -> Fields:
    """An empty one says: never."""
    ttl = subscription.expiration_ttl_seconds
    return {} if ttl is None else {"ttl": _duration(ttl)}


def _dead_letter_policy(subscription: Subscription) -> Fields | None:
    if not subscription.max_delivery_attempts:
        return None
    topic = subscription.dead_letter_topic
    return {
        "deadLetterTopic": topic.name if topic else DELETED_TOPIC,
        "maxDeliveryAttempts": subscription.max_delivery_attempts,
    }


def _retry_policy(subscription: Subscription) -> Fields | None:
    if subscription.minimum_backoff_ms is None or subscription.maximum_backoff_ms is None:
        return None
    return {
        "minimumBackoff": duration_format(subscription.minimum_backoff_ms),
        "maximumBackoff": duration_format(subscription.maximum_backoff_ms),
    }
