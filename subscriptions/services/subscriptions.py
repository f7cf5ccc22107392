"""Create, update, detach and delete subscriptions. Requests are decoded JSON and are read here, for all surfaces alike.

A refused request leaves nothing behind: everything is checked before anything is stored, in one transaction.
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
from subscriptions.resources import assign, bounds, fields, masks
from subscriptions.resources.render import push_config, subscription_fields
from subscriptions.services import perimeters
from subscriptions.services.projects import project_ensure
from subscriptions.services.rows import check_name, check_quota, insert, update_request

SUBSCRIPTION_MUTABLE = frozenset(assign.SUBSCRIPTION_FIELDS) - {"filter", "enableMessageOrdering"}


def subscription_create(*, name: str, subscription: object, caller: Principal = OPERATOR) -> Subscription:
    project_id, subscription_id = names.parse_subscription(name)
    given = fields.SUBSCRIPTION.read(subscription)
    check_name(given, name)
    topic = given.get("topic", "")
    names.parse_topic(topic, field="topic")
    with transaction.atomic():
        row = Subscription(subscription_id=subscription_id, tags=given.get("tags", {}))
        row.project = project_ensure(project=project_id, caller=caller)
        agents.references_check(row, given, given, caller=caller)
        row.topic = selectors.topic_get(name=topic, field="topic", lock=True)
        for field, assigned in assign.SUBSCRIPTION_FIELDS.items():
            assigned(row, given.get(field))
        assign.check_whole(row)
        perimeters.push_check(row, {}, push_config(row))
        _check_subscription_quotas(row)
        taken = Subscription.objects.filter(project=row.project, subscription_id=subscription_id).exists()
        insert(row, subscription_id, taken)
        signals.announce(signals.subscription_created, subscription_id=row.pk, name=row.name)
    return row


def subscription_update(*, name: str, request: object, caller: Principal = OPERATOR) -> Subscription:
    """`request` is an UpdateSubscriptionRequest: the subscription and the mask of what to take from it."""
    names.parse_subscription(name)
    given, paths = update_request(request, name, fields.UPDATE_SUBSCRIPTION, "subscription", SUBSCRIPTION_MUTABLE)
    with transaction.atomic():
        row = selectors.subscription_get(name=name, lock=True)
        before = push_config(row)
        wanted = masks.masked(subscription_fields(row), given, paths, fields.SUBSCRIPTION)
        if ("pushConfig",) in paths:
            wanted["pushConfig"] = _with_kept_version(wanted.get("pushConfig", {}), before)
        changed = {path[0] for path in paths}
        agents.references_check(row, wanted, changed, caller=caller)
        for field, assigned in assign.SUBSCRIPTION_FIELDS.items():
            if field in changed:
                assigned(row, wanted.get(field))
        perimeters.push_check(row, before, push_config(row))
        _store_change(row)
    return row


def push_config_modify(*, name: str, request: object, caller: Principal = OPERATOR) -> Subscription:
    """`request` is a ModifyPushConfigRequest; an empty config stops the pushing."""
    names.parse_subscription(name)
    read = fields.MODIFY_PUSH_CONFIG.read(request)
    check_name(read, name, field="subscription")
    given = read.get("pushConfig")
    if given is None:
        raise InvalidArgument(
            "You have passed an invalid argument to the service (argument=push_config).", field="pushConfig"
        )
    with transaction.atomic():
        row = selectors.subscription_get(name=name, lock=True)
        before = push_config(row)
        agents.references_check(row, read, {"pushConfig"}, caller=caller)
        assign.push_config(row, _with_kept_version(given, before) if given.get("pushEndpoint") else given)
        perimeters.push_check(row, before, push_config(row))
        _store_change(row)
    return row


def subscription_detach(*, name: str) -> None:
    """Let go of the topic, and of the messages that wait."""
    with transaction.atomic():
        row = selectors.subscription_get(name=name, lock=True)
        if row.detached:
            raise FailedPrecondition(f"Subscription is already detached (resource={row.subscription_id}).")
        row.detached = True
        _store_change(row)


def subscription_pause(*, name: str) -> None:
    """Stop pushing and keep the push configuration; what is owed waits until somebody resumes the subscription."""
    with transaction.atomic():
        row = selectors.subscription_get(name=name, lock=True)
        if not row.push_endpoint or row.detached:
            raise FailedPrecondition(f"Only a push subscription can be paused (resource={row.subscription_id}).")
        row.paused = True
        _store_change(row)


def subscription_resume(*, name: str) -> None:
    """Push again, with the configuration from before the pause."""
    with transaction.atomic():
        row = selectors.subscription_get(name=name, lock=True)
        if not row.paused:
            raise FailedPrecondition(f"Subscription is not paused (resource={row.subscription_id}).")
        row.paused = False
        _store_change(row)


def subscription_delete(*, name: str) -> None:
    with transaction.atomic():
        row = selectors.subscription_get(name=name, lock=True)
        signals.announce(signals.subscription_deleted, subscription_id=row.pk, name=row.name)
        row.delete()


def _check_subscription_quotas(row: Subscription) -> None:
    of_project = Subscription.objects.filter(project=row.project)
    check_quota("subscriptions in the project", of_project, bounds.SUBSCRIPTIONS_PER_PROJECT)
    of_topic = Subscription.objects.filter(topic=row.topic, detached=False)
    check_quota("subscriptions attached to the topic", of_topic, bounds.SUBSCRIPTIONS_PER_TOPIC)


def _with_kept_version(given: Mapping[str, Any], current: Mapping[str, Any]) -> dict[str, Any]:
    """A config without the endpoint's version doesn't change it (pubsub.proto, PushConfig.attributes).

    An update keeps it even with an empty config, as Google's integration tests of its Go client expect of production.
    """
    version = current.get("attributes", {}).get("x-goog-version")
    attributes = given.get("attributes", {})
    if not version or "x-goog-version" in attributes:
        return dict(given)
    return {**given, "attributes": {**attributes, "x-goog-version": version}}


def _store_change(row: Subscription) -> None:
    assign.check_whole(row)
    row.save()
    signals.announce(signals.subscription_changed, subscription_id=row.pk, name=row.name)
