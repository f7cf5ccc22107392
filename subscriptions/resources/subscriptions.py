"""Subscriptions: from the values of a request to the columns of a row, and back."""

from __future__ import annotations

from typing import Any

from django.conf import settings

from pushhub.common.addresses import AddressGuard
from pushhub.common.errors import InvalidArgument
from pushhub.common.names import DELETED_TOPIC
from pushhub.common.protojson import format_duration, format_timestamp
from subscriptions import selectors
from subscriptions.models import ServiceAccount, Subscription
from subscriptions.resources import bounds, endpoints, filters
from subscriptions.resources.fields import SUBSCRIPTION
from subscriptions.resources.table import (
    Field,
    Table,
    Values,
    column,
    drop_falsy,
    duration_ms,
    show_duration,
    store_duration,
)
from subscriptions.resources.transforms import transforms_stored


def subscription_resource(subscription: Subscription) -> dict[str, Any]:
    topic = subscription.topic
    output = {
        "detached": subscription.detached,
        "topicMessageRetentionDuration": show_duration(topic, "message_retention") if topic else None,
        "state": "ACTIVE",
    }
    return {
        "name": subscription.name,
        "topic": topic.name if topic else DELETED_TOPIC,
        **FIELDS.show(subscription),
        **drop_falsy(output),
    }


def subscription_described(subscription: Subscription) -> dict[str, Any]:
    """Return the resource, and who paused the subscription if somebody did."""
    return {**subscription_resource(subscription), **pause_resource(selectors.pause_of(subscription))}


def pause_resource(pause: selectors.Pause | None) -> dict[str, Any]:
    """Return the field `paused`, which only PushHub has."""
    return {"paused": {"by": pause.by, "since": format_timestamp(pause.since)}} if pause is not None else {}


def _store_push_config(subscription: Subscription, values: Values) -> None:
    """Set the columns of a PushConfig. An empty one makes the subscription a pull subscription."""
    config = values.get("pushConfig", {})
    endpoint = config.get("pushEndpoint", "")
    if endpoint:
        allowed_ports = frozenset(settings.ALLOWED_PORTS)
        endpoints.push_endpoint(
            endpoint, allow_http=settings.ALLOW_HTTP, allowed_ports=allowed_ports, guard=guard_address()
        )
    subscription.push_endpoint = endpoint
    subscription.push_attributes = bounds.push_attributes(config.get("attributes", {}))
    oidc_token = config.get("oidcToken")
    if oidc_token is not None:
        if not endpoint:
            raise InvalidArgument("An oidcToken needs a pushEndpoint that it is sent to.", field="pushConfig.oidcToken")
        _check_account(subscription, oidc_token.get("serviceAccountEmail", ""))
    subscription.oidc_service_account_email = (oidc_token or {}).get("serviceAccountEmail", "")
    subscription.oidc_audience = (oidc_token or {}).get("audience", "")
    subscription.push_wrapper = Subscription.Wrapper.UNSET
    if "pubsubWrapper" in config:
        subscription.push_wrapper = Subscription.Wrapper.PUBSUB
    if "noWrapper" in config:
        subscription.push_wrapper = Subscription.Wrapper.NONE
    subscription.push_write_metadata = config.get("noWrapper", {}).get("writeMetadata", False)


def show_push_config(subscription: Subscription) -> dict[str, Any]:
    """The PushConfig of a subscription, empty for a pull subscription."""
    oidc_token = {
        "serviceAccountEmail": subscription.oidc_service_account_email,
        "audience": subscription.oidc_audience,
    }
    config = drop_falsy(
        {
            "pushEndpoint": subscription.push_endpoint,
            "attributes": subscription.push_attributes,
            "oidcToken": drop_falsy(oidc_token),
        }
    )
    if subscription.push_wrapper == Subscription.Wrapper.PUBSUB:
        config["pubsubWrapper"] = {}
    if subscription.push_wrapper == Subscription.Wrapper.NONE:
        config["noWrapper"] = {"writeMetadata": True} if subscription.push_write_metadata else {}
    return config


def check_combination(subscription: Subscription) -> None:
    """Check the rules that involve more than one field."""
    if subscription.enable_exactly_once_delivery and subscription.push_endpoint:
        raise InvalidArgument(
            "Exactly-once delivery is for pull subscriptions only.", field="enableExactlyOnceDelivery"
        )


def guard_address() -> AddressGuard:
    """Return the guard that judges push endpoints in this deployment."""
    return AddressGuard(
        allow_private=settings.ALLOW_PRIVATE,
        allowed_networks=settings.ALLOWED_NETWORKS,
        own_listeners=(settings.HTTP_ADDRESS, settings.GRPC_ADDRESS, settings.FLOWER_ADDRESS),
    )


def _check_account(subscription: Subscription, email: str) -> None:
    """The account must exist in the subscription's own project."""
    project = subscription.project
    if not ServiceAccount.objects.filter(email=email, project__project_id=project.project_id).exists():
        raise InvalidArgument(
            "You have passed an invalid argument to the service "
            "(argument=PushConfig::oidc_token::service_account_email).",
            field="pushConfig.oidcToken.serviceAccountEmail",
        )


def _store_ack_deadline(subscription: Subscription, values: Values) -> None:
    subscription.ack_deadline_seconds = bounds.ack_deadline(
        values.get("ackDeadlineSeconds"), exactly_once=values.get("enableExactlyOnceDelivery", False)
    )


def _store_expiration(subscription: Subscription, values: Values) -> None:
    store_duration(subscription, "expiration_ttl", _ttl_ms(values))
    bounds.check_expiration(_ttl_ms(values), retention_ms=_retention_ms(values))


def _ttl_ms(values: Values) -> int | None:
    """How long the subscription may be unused; None for ever."""
    policy = values.get("expirationPolicy")
    if policy is None:
        return bounds.DEFAULT_TTL_MS
    milliseconds = duration_ms(policy.get("ttl"), "expirationPolicy.ttl")
    return None if milliseconds is None else bounds.expiration_ttl(milliseconds)


def _show_expiration(subscription: Subscription) -> dict[str, Any]:
    """An empty policy says that the subscription never expires."""
    ttl = show_duration(subscription, "expiration_ttl")
    return {} if ttl is None else {"ttl": ttl}


def _store_retention(subscription: Subscription, values: Values) -> None:
    store_duration(subscription, "message_retention", _retention_ms(values))
    bounds.check_expiration(_ttl_ms(values), retention_ms=_retention_ms(values))


def _retention_ms(values: Values) -> int:
    milliseconds = duration_ms(values.get("messageRetentionDuration"), "messageRetentionDuration")
    return bounds.default_retention(_ttl_ms(values)) if milliseconds is None else bounds.retention(milliseconds)


def _store_filter(subscription: Subscription, values: Values) -> None:
    subscription.filter = values.get("filter", "")
    filters.matcher(subscription.filter)


def _store_dead_letter_policy(subscription: Subscription, values: Values) -> None:
    policy = values.get("deadLetterPolicy")
    if policy is None:
        subscription.dead_letter_topic = None
        subscription.max_delivery_attempts = 0
        return
    attempts = bounds.delivery_attempts(policy.get("maxDeliveryAttempts"))
    field = "deadLetterPolicy.deadLetterTopic"
    subscription.dead_letter_topic = selectors.get_topic(name=policy.get("deadLetterTopic", ""), field=field)
    subscription.max_delivery_attempts = attempts


def _show_dead_letter_policy(subscription: Subscription) -> dict[str, Any] | None:
    if not subscription.max_delivery_attempts:
        return None
    topic = subscription.dead_letter_topic
    return {
        "deadLetterTopic": topic.name if topic else DELETED_TOPIC,
        "maxDeliveryAttempts": subscription.max_delivery_attempts,
    }


def _store_retry_policy(subscription: Subscription, values: Values) -> None:
    policy = values.get("retryPolicy")
    if policy is None:
        subscription.minimum_backoff_ms = subscription.maximum_backoff_ms = None
        return
    subscription.minimum_backoff_ms, subscription.maximum_backoff_ms = bounds.backoffs(
        duration_ms(policy.get("minimumBackoff"), "retryPolicy.minimumBackoff"),
        duration_ms(policy.get("maximumBackoff"), "retryPolicy.maximumBackoff"),
    )


def _show_retry_policy(subscription: Subscription) -> dict[str, Any] | None:
    if subscription.minimum_backoff_ms is None or subscription.maximum_backoff_ms is None:
        return None
    return {
        "minimumBackoff": format_duration(subscription.minimum_backoff_ms),
        "maximumBackoff": format_duration(subscription.maximum_backoff_ms),
    }


FIELDS: Table[Subscription] = Table(
    SUBSCRIPTION,
    [
        Field("pushConfig", _store_push_config, show_push_config),
        Field("ackDeadlineSeconds", _store_ack_deadline, lambda subscription: subscription.ack_deadline_seconds),
        column("retainAckedMessages", "retain_acked_messages", bool),
        Field("messageRetentionDuration", _store_retention, lambda row: show_duration(row, "message_retention")),
        column("labels", "labels", bounds.labels),
        column("enableMessageOrdering", "enable_message_ordering", bool, is_mutable=False),
        Field("expirationPolicy", _store_expiration, _show_expiration),
        Field("filter", _store_filter, lambda subscription: subscription.filter, is_mutable=False),
        Field("deadLetterPolicy", _store_dead_letter_policy, _show_dead_letter_policy),
        Field("retryPolicy", _store_retry_policy, _show_retry_policy),
        column("enableExactlyOnceDelivery", "enable_exactly_once_delivery", bool),
        column("messageTransforms", "message_transforms", transforms_stored),
    ],
    fixed=frozenset({"name", "topic", "tags"}),
)
