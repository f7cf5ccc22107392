"""Create, update, detach and delete subscriptions. All surfaces pass requests as decoded JSON, which is read here.

A refused request changes nothing: everything is checked before anything is stored, in one transaction.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from django.db import transaction

from pushhub.common import names
from pushhub.common.errors import FailedPrecondition, InvalidArgument
from pushhub.common.principals import OPERATOR, Principal
from subscriptions import selectors, signals
from subscriptions.identity import agents
from subscriptions.models import Subscription
from subscriptions.resources import bounds, fields, masks
from subscriptions.resources.subscriptions import FIELDS, check_combination, show_push_config
from subscriptions.services import perimeters
from subscriptions.services.projects import ensure_project
from subscriptions.services.rows import check_free, check_name, check_quota, insert, update_request
from subscriptions.services.transforms import check_transforms


def create_subscription(*, name: str, subscription: object, caller: Principal = OPERATOR) -> Subscription:
    project_id, subscription_id = names.parse_subscription(name)
    values = fields.SUBSCRIPTION.read(subscription)
    check_name(values, name)
    topic = values.get("topic", "")
    names.parse_topic(topic, field="topic")
    check_transforms(project=project_id, transforms=values.get("messageTransforms", []))
    with transaction.atomic():
        row = Subscription(subscription_id=subscription_id, tags=values.get("tags", {}))
        row.project = ensure_project(project=project_id, caller=caller)
        agents.check_references(row, values, values, caller=caller)
        row.topic = selectors.get_topic(name=topic, field="topic", lock=True)
        FIELDS.store(row, values)
        check_combination(row)
        perimeters.check_push(row, {}, show_push_config(row))
        check_free(Subscription.objects.filter(project=row.project, subscription_id=subscription_id), subscription_id)
        _check_subscription_quotas(row)
        insert(row, subscription_id)
        signals.announce(signals.subscription_created, subscription_id=row.pk, name=row.name)
    return row


def update_subscription(*, name: str, request: object, caller: Principal = OPERATOR) -> Subscription:
    """Update a subscription. `request` is an UpdateSubscriptionRequest with the subscription and a mask."""
    project_id, _ = names.parse_subscription(name)
    values, paths = update_request(request, name, fields.UPDATE_SUBSCRIPTION, "subscription", FIELDS.mutable)
    if ("messageTransforms",) in paths:
        check_transforms(project=project_id, transforms=values.get("messageTransforms", []))
    with _changed(name) as row:
        before = show_push_config(row)
        merged = masks.masked(FIELDS.show(row), values, paths, fields.SUBSCRIPTION)
        if ("pushConfig",) in paths:
            merged["pushConfig"] = _with_version_of(merged.get("pushConfig", {}), before)
        changed = {path[0] for path in paths}
        agents.check_references(row, merged, changed, caller=caller)
        FIELDS.store(row, merged, changed)
        perimeters.check_push(row, before, show_push_config(row))
    return row


def modify_push_config(*, name: str, request: object, caller: Principal = OPERATOR) -> Subscription:
    """Replace the push config. `request` is a ModifyPushConfigRequest; an empty config makes a pull subscription."""
    names.parse_subscription(name)
    parsed = fields.MODIFY_PUSH_CONFIG.read(request)
    check_name(parsed, name, field="subscription")
    config = parsed.get("pushConfig")
    if config is None:
        raise InvalidArgument(
            "You have passed an invalid argument to the service (argument=push_config).", field="pushConfig"
        )
    with _changed(name) as row:
        before = show_push_config(row)
        agents.check_references(row, parsed, {"pushConfig"}, caller=caller)
        config = _with_version_of(config, before) if config.get("pushEndpoint") else config
        FIELDS.store(row, {"pushConfig": config}, {"pushConfig"})
        perimeters.check_push(row, before, show_push_config(row))
    return row


def detach_subscription(*, name: str) -> None:
    """Detach a subscription from its topic and drop its backlog."""
    with _changed(name) as row:
        if row.detached:
            raise FailedPrecondition(f"Subscription is already detached (resource={row.subscription_id}).")
        row.detached = True


def pause_subscription(*, name: str, caller: Principal = OPERATOR) -> None:
    """Stop pushing and keep the push configuration. Messages wait until somebody resumes the subscription."""
    with _changed(name) as row:
        _check_modifiable(row, caller)
        if not row.push_endpoint or row.detached:
            raise FailedPrecondition(f"Only a push subscription can be paused (resource={row.subscription_id}).")
        row.paused = True


def resume_subscription(*, name: str, caller: Principal = OPERATOR) -> None:
    """Push again, with the configuration from before the pause."""
    with _changed(name) as row:
        _check_modifiable(row, caller)
        if not row.paused:
            raise FailedPrecondition(f"Subscription is not paused (resource={row.subscription_id}).")
        row.paused = False


def delete_subscription(*, name: str) -> None:
    """Delete a subscription with its backlog."""
    with transaction.atomic():
        row = selectors.get_subscription(name=name, lock=True)
        signals.announce(signals.subscription_deleted, subscription_id=row.pk, name=row.name)
        row.delete()


def _check_modifiable(row: Subscription, caller: Principal) -> None:
    """Apply the rules of updates to a change that leaves the API's fields alone."""
    agents.check_references(row, {}, (), caller=caller)
    config = show_push_config(row)
    perimeters.check_push(row, config, config)


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


@contextmanager
def _changed(name: str) -> Iterator[Subscription]:
    """Yield a locked subscription, which is stored after the block; in one transaction."""
    with transaction.atomic():
        row = selectors.get_subscription(name=name, lock=True)
        yield row
        check_combination(row)
        row.save()
        signals.announce(signals.subscription_changed, subscription_id=row.pk, name=row.name)
