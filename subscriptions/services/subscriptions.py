"""Create, update, detach and delete subscriptions. All surfaces pass requests as decoded JSON, which is read here.

A refused request changes nothing: everything is checked before anything is stored, in one transaction.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.db import transaction

from pushhub.common import names
from pushhub.common.errors import FailedPrecondition, InvalidArgument
from pushhub.common.principals import OPERATOR, Principal
from subscriptions import selectors, signals
from subscriptions.identity import agents
from subscriptions.models import Subscription
from subscriptions.resources import bounds, fields, masks
from subscriptions.resources.subscriptions import FIELDS, check_combination, push_config_show, push_config_store
from subscriptions.services import perimeters
from subscriptions.services.projects import project_ensure
from subscriptions.services.rows import check_name, check_quota, insert, update_request
from subscriptions.services.transforms import transforms_check


def subscription_create(*, name: str, subscription: object, caller: Principal = OPERATOR) -> Subscription:
    project_id, subscription_id = names.parse_subscription(name)
    values = fields.SUBSCRIPTION.read(subscription)
    check_name(values, name)
    topic = values.get("topic", "")
    names.parse_topic(topic, field="topic")
    transforms_check(project=project_id, transforms=values.get("messageTransforms", []))
    with transaction.atomic():
        row = Subscription(subscription_id=subscription_id, tags=values.get("tags", {}))
        row.project = project_ensure(project=project_id, caller=caller)
        agents.references_check(row, values, values, caller=caller)
        row.topic = selectors.topic_get(name=topic, field="topic", lock=True)
        FIELDS.store(row, values)
        check_combination(row)
        perimeters.push_check(row, {}, push_config_show(row))
        _check_subscription_quotas(row)
        is_taken = Subscription.objects.filter(project=row.project, subscription_id=subscription_id).exists()
        insert(row, subscription_id, is_taken)
        signals.announce(signals.subscription_created, subscription_id=row.pk, name=row.name)
    return row


def subscription_update(*, name: str, request: object, caller: Principal = OPERATOR) -> Subscription:
    """Update a subscription. `request` is an UpdateSubscriptionRequest with the subscription and a mask."""
    project_id, _ = names.parse_subscription(name)
    values, paths = update_request(request, name, fields.UPDATE_SUBSCRIPTION, "subscription", FIELDS.mutable)
    if ("messageTransforms",) in paths:
        transforms_check(project=project_id, transforms=values.get("messageTransforms", []))
    with transaction.atomic():
        row = selectors.subscription_get(name=name, lock=True)
        before = push_config_show(row)
        merged = masks.masked(FIELDS.show(row), values, paths, fields.SUBSCRIPTION)
        if ("pushConfig",) in paths:
            merged["pushConfig"] = _with_version_of(merged.get("pushConfig", {}), before)
        changed = {path[0] for path in paths}
        agents.references_check(row, merged, changed, caller=caller)
        FIELDS.store(row, merged, changed)
        perimeters.push_check(row, before, push_config_show(row))
        _store_change(row)
    return row


def push_config_modify(*, name: str, request: object, caller: Principal = OPERATOR) -> Subscription:
    """Replace the push config. `request` is a ModifyPushConfigRequest; an empty config makes a pull subscription."""
    names.parse_subscription(name)
    parsed = fields.MODIFY_PUSH_CONFIG.read(request)
    check_name(parsed, name, field="subscription")
    config = parsed.get("pushConfig")
    if config is None:
        raise InvalidArgument(
            "You have passed an invalid argument to the service (argument=push_config).", field="pushConfig"
        )
    with transaction.atomic():
        row = selectors.subscription_get(name=name, lock=True)
        before = push_config_show(row)
        agents.references_check(row, parsed, {"pushConfig"}, caller=caller)
        push_config_store(row, _with_version_of(config, before) if config.get("pushEndpoint") else config)
        perimeters.push_check(row, before, push_config_show(row))
        _store_change(row)
    return row


def subscription_detach(*, name: str) -> None:
    """Detach a subscription from its topic and drop its backlog."""
    with transaction.atomic():
        row = selectors.subscription_get(name=name, lock=True)
        if row.detached:
            raise FailedPrecondition(f"Subscription is already detached (resource={row.subscription_id}).")
        row.detached = True
        _store_change(row)


def subscription_pause(*, name: str, caller: Principal = OPERATOR) -> None:
    """Stop pushing and keep the push configuration. Messages wait until somebody resumes the subscription."""
    with transaction.atomic():
        row = selectors.subscription_get(name=name, lock=True)
        _check_modifiable(row, caller)
        if not row.push_endpoint or row.detached:
            raise FailedPrecondition(f"Only a push subscription can be paused (resource={row.subscription_id}).")
        row.paused = True
        _store_change(row)


def subscription_resume(*, name: str, caller: Principal = OPERATOR) -> None:
    """Push again, with the configuration from before the pause."""
    with transaction.atomic():
        row = selectors.subscription_get(name=name, lock=True)
        _check_modifiable(row, caller)
        if not row.paused:
            raise FailedPrecondition(f"Subscription is not paused (resource={row.subscription_id}).")
        row.paused = False
        _store_change(row)


def subscription_delete(*, name: str) -> None:
    with transaction.atomic():
        row = selectors.subscription_get(name=name, lock=True)
        signals.announce(signals.subscription_deleted, subscription_id=row.pk, name=row.name)
        row.delete()


def _check_modifiable(row: Subscription, caller: Principal) -> None:
    """Apply the rules of updates to a change that leaves the API's fields alone."""
    agents.references_check(row, {}, (), caller=caller)
    config = push_config_show(row)
    perimeters.push_check(row, config, config)


def _check_subscription_quotas(row: Subscription) -> None:
    of_project = Subscription.objects.filter(project=row.project)
    check_quota("subscriptions in the project", of_project, bounds.SUBSCRIPTIONS_PER_PROJECT)
    of_topic = Subscription.objects.filter(topic=row.topic, detached=False)
    check_quota("subscriptions attached to the topic", of_topic, bounds.SUBSCRIPTIONS_PER_TOPIC)


def _with_version_of(config: Mapping[str, Any], current: Mapping[str, Any]) -> dict[str, Any]:
    """Keep the endpoint's version if the new config has none (pubsub.proto, PushConfig.attributes).

    An update keeps it even with an empty config, as the integration tests of Google's Go client expect.
    """
    version = current.get("attributes", {}).get("x-goog-version")
    attributes = config.get("attributes", {})
    if not version or "x-goog-version" in attributes:
        return dict(config)
    return {**config, "attributes": {**attributes, "x-goog-version": version}}


def _store_change(row: Subscription) -> None:
    check_combination(row)
    row.save()
    signals.announce(signals.subscription_changed, subscription_id=row.pk, name=row.name)
