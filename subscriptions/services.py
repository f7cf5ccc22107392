"""Changing topics and subscriptions. Requests come as decoded JSON and are read here, for all surfaces alike.

A refused request leaves nothing behind: everything is checked before anything is stored, in one transaction.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django.conf import settings
from django.db import IntegrityError, transaction
from django.db.models import QuerySet

from pushhub import names
from pushhub.clock import utcnow
from pushhub.errors import AlreadyExists, FailedPrecondition, InvalidArgument, ResourceExhausted, clipped
from pushhub.principals import OPERATOR, Principal
from pushhub.protojson import Message
from subscriptions import assign, fields, hierarchy, masks, perimeters, policies, selectors, signals
from subscriptions.iam import access, agents, grants
from subscriptions.models import Folder, Organization, Project, Subscription, Topic
from subscriptions.resources import push_config, subscription_fields, topic_fields

TOPIC_MUTABLE = frozenset(assign.TOPIC_FIELDS)
SUBSCRIPTION_MUTABLE = frozenset(assign.SUBSCRIPTION_FIELDS) - {"filter", "enableMessageOrdering"}


def project_create(
    *,
    project_id: str,
    parent: Organization | Folder | None = None,
    created_at: datetime | None = None,
    caller: Principal = OPERATOR,
) -> Project:
    """Make a project, which `caller` then owns. Where it has no parent, only those who may do everything make one.

    `created_at` lets a project be as old as the one it stands for: the service agents of old ones need a grant.
    """
    names.check_new_project(project_id, field="projectId")
    may_create(caller, parent, name=names.project_name(project_id))
    with transaction.atomic():
        made, project = _project_make(project_id, parent, created_at or utcnow(), caller)
    if not made:
        raise already_exists(project_id)
    return project


def may_create(caller: Principal, parent: Organization | Folder | None, *, name: str) -> None:
    """Raise PermissionDenied unless `caller` may make the project `name` below `parent`."""
    if parent is not None:
        access.require(caller, hierarchy.CREATE_PROJECT, parent)
    elif not access.is_root(caller):
        raise access.denied(hierarchy.CREATE_PROJECT, name)


def project_ensure(*, project: str, caller: Principal = OPERATOR) -> Project:
    """The project of a name's segment; in development it comes into being at its first use."""
    names.parse_project(names.project_name(project))
    if settings.DEVELOPMENT and not selectors.project_exists(project=project):
        names.check_new_project(project, field="name")
        with transaction.atomic():
            return _project_make(project, None, utcnow(), caller)[1]
    found = selectors.project_get(project=project)
    if found.delete_requested_at is not None:
        raise FailedPrecondition(f"Project {found.project_id} has been deleted.")
    return found


def _project_make(
    project_id: str, parent: Organization | Folder | None, created_at: datetime, caller: Principal
) -> tuple[bool, Project]:
    """Whether it was made here, and the project. Projects of old may have ids that differ in letter case alone."""
    if Project.objects.filter(project_id__iexact=project_id).exclude(project_id=project_id).exists():
        raise already_exists(project_id)
    defaults = {"created_at": created_at, **hierarchy.parent_columns(parent)}
    project, made = Project.objects.get_or_create(project_id=project_id, defaults=defaults)
    if made:
        grants.policy_begin(project, creator=caller)
    return made, project


def topic_create(*, name: str, topic: object, caller: Principal = OPERATOR) -> Topic:
    project_id, topic_id = names.parse_topic(name)
    given = fields.TOPIC.read(topic)
    check_name(given, name)
    row = Topic(topic_id=topic_id, tags=given.get("tags", {}))
    with transaction.atomic():
        row.project = project_ensure(project=project_id, caller=caller)
        agents.schema_check(given, given, caller=caller)
        for field, assigned in assign.TOPIC_FIELDS.items():
            assigned(row, given.get(field))
        _check_quota("topics in the project", Topic.objects.filter(project=row.project), policies.TOPICS_PER_PROJECT)
        _insert(row, topic_id, Topic.objects.filter(project=row.project, topic_id=topic_id).exists())
    return row


def topic_update(*, name: str, request: object, caller: Principal = OPERATOR) -> Topic:
    """`request` is an UpdateTopicRequest: the topic and the mask of what to take from it."""
    names.parse_topic(name)
    given, paths = _update_request(request, name, fields.UPDATE_TOPIC, "topic", TOPIC_MUTABLE)
    with transaction.atomic():
        row = selectors.topic_get(name=name, lock=True)
        wanted = masks.masked(topic_fields(row), given, paths, fields.TOPIC)
        changed = {path[0] for path in paths}
        agents.schema_check(wanted, changed, caller=caller)
        for field, assigned in assign.TOPIC_FIELDS.items():
            if field in changed:
                assigned(row, wanted.get(field))
        row.save()
    return row


def topic_delete(*, name: str) -> None:
    """Its subscriptions live on, with the messages they wait for and without a topic."""
    with transaction.atomic():
        row = selectors.topic_get(name=name, lock=True)
        row.subscriptions.update(topic=None, updated_at=utcnow())
        row.dead_letter_sources.update(dead_letter_topic=None, updated_at=utcnow())
        row.snapshots.update(topic=None)
        signals.announce(signals.topic_deleted, topic_id=row.pk, name=row.name)
        row.delete()


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
        _insert(row, subscription_id, taken)
        signals.announce(signals.subscription_created, subscription_id=row.pk, name=row.name)
    return row


def subscription_update(*, name: str, request: object, caller: Principal = OPERATOR) -> Subscription:
    """`request` is an UpdateSubscriptionRequest: the subscription and the mask of what to take from it."""
    names.parse_subscription(name)
    given, paths = _update_request(request, name, fields.UPDATE_SUBSCRIPTION, "subscription", SUBSCRIPTION_MUTABLE)
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


def subscription_delete(*, name: str) -> None:
    with transaction.atomic():
        row = selectors.subscription_get(name=name, lock=True)
        signals.announce(signals.subscription_deleted, subscription_id=row.pk, name=row.name)
        row.delete()


def already_exists(resource_id: str) -> AlreadyExists:
    return AlreadyExists(f"Resource already exists in the project (resource={clipped(resource_id)}).")


def check_name(given: Mapping[str, Any], name: str, *, field: str = "name") -> None:
    """The name in a body may be left out, as the address has it too; the two must not differ."""
    if given.get(field, name) != name:
        raise InvalidArgument(
            f"The {field} in the body ({clipped(given[field])}) must agree with the one in the URL ({clipped(name)}).",
            field=field,
        )


def _insert(row: Topic | Subscription, resource_id: str, taken: bool) -> None:
    """A look first is what usually finds the name taken; the constraint decides between two at the same time."""
    if taken:
        raise already_exists(resource_id)
    try:
        with transaction.atomic():
            row.save(force_insert=True)
    except IntegrityError:
        raise already_exists(resource_id) from None


def _check_subscription_quotas(row: Subscription) -> None:
    of_project = Subscription.objects.filter(project=row.project)
    _check_quota("subscriptions in the project", of_project, policies.SUBSCRIPTIONS_PER_PROJECT)
    of_topic = Subscription.objects.filter(topic=row.topic, detached=False)
    _check_quota("subscriptions attached to the topic", of_topic, policies.SUBSCRIPTIONS_PER_TOPIC)


def _check_quota(what: str, rows: QuerySet[Any], limit: int) -> None:
    """Two at the same time may both be the last: a quota is there against running away, and one over does no harm."""
    if rows.count() >= limit:
        raise ResourceExhausted(f"Quota exceeded: there are {limit} {what}, which is the maximum.")


def _update_request(
    request: object, name: str, kind: Message, resource: str, mutable: frozenset[str]
) -> tuple[dict[str, Any], list[masks.Path]]:
    read = kind.read(request)
    message = kind.fields[resource]
    assert isinstance(message, Message)
    paths = masks.mask_paths(read.get("updateMask", ""), message, mutable=mutable)
    given = read.get(resource, {})
    check_name(given, name)
    return given, paths


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
