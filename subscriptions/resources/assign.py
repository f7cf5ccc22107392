"""From a field's value, as read from a request, to the columns of its row: one function a field, defaults included.

Each takes None for an absent field. Create applies all of them, update those that its mask names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from django.conf import settings

from pushhub.common import names
from pushhub.common.addresses import AddressGuard
from pushhub.common.errors import InvalidArgument, Unimplemented
from pushhub.common.protojson import duration_parse
from subscriptions import selectors
from subscriptions.models import ServiceAccount, Subscription, Topic
from subscriptions.resources import bounds, endpoints, filters
from subscriptions.resources.fields import EXPORTS

Value = Any


def _duration_ms(value: Value, field: str) -> int | None:
    return None if value is None else duration_parse(value, field=field)


def _topic_labels(topic: Topic, value: Value) -> None:
    topic.labels = bounds.labels(value or {})


def _topic_storage_policy(topic: Topic, value: Value) -> None:
    if value is not None and not value.get("allowedPersistenceRegions"):
        raise InvalidArgument(
            "The message storage policy must allow at least one region.",
            field="messageStoragePolicy.allowedPersistenceRegions",
        )
    topic.message_storage_policy = value


def _topic_schema_settings(topic: Topic, value: Value) -> None:
    """The schema by its canonical name, so that its deletion finds the topic. What is deleted may stay as it is."""
    if value is None or value == topic.schema_settings:
        topic.schema_settings = value
        return
    field = "schemaSettings.schema"
    name = value.get("schema", "")
    if names.parse_schema(name, field=field)[2]:
        raise names.invalid_name(name, field=field)
    if not value.get("encoding"):
        raise InvalidArgument("The encoding must be JSON or BINARY.", field="schemaSettings.encoding")
    schema = selectors.schema_get(name=name, field=field, lock=True)
    ends = [
        selectors.schema_revision_get(schema=schema, revision_id=value[end], field=f"schemaSettings.{end}").pk
        for end in ("firstRevisionId", "lastRevisionId")
        if end in value
    ]
    if ends != sorted(ends):
        raise InvalidArgument(
            "The first revision must not be newer than the last.", field="schemaSettings.firstRevisionId"
        )
    topic.schema_settings = {**value, "schema": schema.name}


def _topic_retention(topic: Topic, value: Value) -> None:
    milliseconds = _duration_ms(value, "messageRetentionDuration")
    topic.message_retention_seconds = None if milliseconds is None else bounds.retention(milliseconds)


def _unsupported(field: str) -> Callable[[Any, Value], None]:
    """What PushHub does not do is refused: taken and left undone, it would lose messages or leave them as they are."""

    def refuse(row: Any, value: Value) -> None:
        if value is not None and value != []:
            raise Unimplemented(f"The field {field} is not supported by PushHub.", field=field)

    return refuse


TOPIC_FIELDS: Mapping[str, Callable[[Topic, Value], None]] = {
    "labels": _topic_labels,
    "messageStoragePolicy": _topic_storage_policy,
    "kmsKeyName": _unsupported("kmsKeyName"),
    "schemaSettings": _topic_schema_settings,
    "messageRetentionDuration": _topic_retention,
    "ingestionDataSourceSettings": _unsupported("ingestionDataSourceSettings"),
    "messageTransforms": _unsupported("messageTransforms"),
}


def push_config(subscription: Subscription, value: Value) -> None:
    """An empty config makes a pull subscription of it."""
    config = value or {}
    endpoint = config.get("pushEndpoint", "")
    if endpoint:
        guard = AddressGuard(
            allow_private=settings.ALLOW_PRIVATE,
            allowed_networks=settings.ALLOWED_NETWORKS,
            own_listeners=(settings.HTTP_ADDRESS, settings.GRPC_ADDRESS, settings.FLOWER_ADDRESS),
        )
        allowed_ports = frozenset(settings.ALLOWED_PORTS)
        endpoints.push_endpoint(endpoint, allow_http=settings.ALLOW_HTTP, allowed_ports=allowed_ports, guard=guard)
    subscription.push_endpoint = endpoint
    subscription.push_attributes = bounds.push_attributes(config.get("attributes", {}))
    oidc = config.get("oidcToken")
    if oidc is not None:
        if not endpoint:
            raise InvalidArgument("An oidcToken needs a pushEndpoint that it is sent to.", field="pushConfig.oidcToken")
        _check_account(subscription, oidc.get("serviceAccountEmail", ""))
    subscription.oidc_service_account_email = (oidc or {}).get("serviceAccountEmail", "")
    subscription.oidc_audience = (oidc or {}).get("audience", "")
    subscription.push_wrapper = Subscription.Wrapper.UNSET
    if "pubsubWrapper" in config:
        subscription.push_wrapper = Subscription.Wrapper.PUBSUB
    if "noWrapper" in config:
        subscription.push_wrapper = Subscription.Wrapper.NONE
    subscription.push_write_metadata = config.get("noWrapper", {}).get("writeMetadata", False)


def _check_account(subscription: Subscription, email: str) -> None:
    """The account must exist, and in the subscription's own project."""
    project = subscription.project
    if not ServiceAccount.objects.filter(email=email, project__project_id=project.project_id).exists():
        raise InvalidArgument(
            "You have passed an invalid argument to the service "
            "(argument=PushConfig::oidc_token::service_account_email).",
            field="pushConfig.oidcToken.serviceAccountEmail",
        )


def _exactly_once(subscription: Subscription, value: Value) -> None:
    subscription.enable_exactly_once_delivery = bool(value)


def _ack_deadline(subscription: Subscription, value: Value) -> None:
    exactly_once = subscription.enable_exactly_once_delivery
    subscription.ack_deadline_seconds = bounds.ack_deadline(value, exactly_once=exactly_once)


def _retain_acked(subscription: Subscription, value: Value) -> None:
    subscription.retain_acked_messages = bool(value)


def _expiration(subscription: Subscription, value: Value) -> None:
    if value is None:
        subscription.expiration_ttl_seconds = bounds.DEFAULT_TTL_SECONDS
        return
    milliseconds = _duration_ms(value.get("ttl"), "expirationPolicy.ttl")
    subscription.expiration_ttl_seconds = None if milliseconds is None else bounds.expiration_ttl(milliseconds)


def _retention(subscription: Subscription, value: Value) -> None:
    milliseconds = _duration_ms(value, "messageRetentionDuration")
    default = bounds.default_retention(subscription.expiration_ttl_seconds)
    subscription.message_retention_seconds = default if milliseconds is None else bounds.retention(milliseconds)


def _labels(subscription: Subscription, value: Value) -> None:
    subscription.labels = bounds.labels(value or {})


def _ordering(subscription: Subscription, value: Value) -> None:
    subscription.enable_message_ordering = bool(value)


def _filter(subscription: Subscription, value: Value) -> None:
    filters.matcher(value or "")
    subscription.filter = value or ""


def _dead_letter(subscription: Subscription, value: Value) -> None:
    if value is None:
        subscription.dead_letter_topic = None
        subscription.max_delivery_attempts = 0
        return
    attempts = bounds.delivery_attempts(value.get("maxDeliveryAttempts"))
    field = "deadLetterPolicy.deadLetterTopic"
    subscription.dead_letter_topic = selectors.topic_get(name=value.get("deadLetterTopic", ""), field=field)
    subscription.max_delivery_attempts = attempts


def _retry(subscription: Subscription, value: Value) -> None:
    if value is None:
        subscription.minimum_backoff_ms = subscription.maximum_backoff_ms = None
        return
    subscription.minimum_backoff_ms, subscription.maximum_backoff_ms = bounds.backoffs(
        _duration_ms(value.get("minimumBackoff"), "retryPolicy.minimumBackoff"),
        _duration_ms(value.get("maximumBackoff"), "retryPolicy.maximumBackoff"),
    )


#: In this order, as defaults depend on what stands before: the ack deadline on exactly-once, retention on expiration.
SUBSCRIPTION_FIELDS: Mapping[str, Callable[[Subscription, Value], None]] = {
    "pushConfig": push_config,
    "enableExactlyOnceDelivery": _exactly_once,
    "ackDeadlineSeconds": _ack_deadline,
    "retainAckedMessages": _retain_acked,
    "expirationPolicy": _expiration,
    "messageRetentionDuration": _retention,
    "labels": _labels,
    "enableMessageOrdering": _ordering,
    "filter": _filter,
    "deadLetterPolicy": _dead_letter,
    "retryPolicy": _retry,
    **{name: _unsupported(name) for name in (*EXPORTS, "messageTransforms")},
}


def check_whole(subscription: Subscription) -> None:
    """The rules that look at more than one field."""
    if subscription.enable_exactly_once_delivery and subscription.push_endpoint:
        raise InvalidArgument(
            "Exactly-once delivery is for pull subscriptions only.", field="enableExactlyOnceDelivery"
        )
