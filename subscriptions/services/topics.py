"""Create, update and delete topics. All surfaces pass requests as decoded JSON, which is read here.

A refused request changes nothing: everything is checked before anything is stored, in one transaction.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from django.db import transaction

from pushhub.common import names
from pushhub.common.clock import utcnow
from pushhub.common.errors import InvalidArgument, NotFound
from pushhub.common.principals import OPERATOR, Principal
from subscriptions import selectors, signals
from subscriptions.identity import agents
from subscriptions.models import Topic
from subscriptions.resources import bounds, fields, masks
from subscriptions.resources.topics import FIELDS
from subscriptions.services.projects import ensure_project
from subscriptions.services.rows import check_free, check_name, check_quota, insert, update_request
from subscriptions.services.transforms import check_transforms


def create_topic(*, name: str, topic: object, caller: Principal = OPERATOR) -> Topic:
    project_id, topic_id = names.parse_topic(name)
    values = fields.TOPIC.read(topic)
    check_name(values, name)
    check_transforms(project=project_id, transforms=values.get("messageTransforms", []))
    row = Topic(topic_id=topic_id, tags=values.get("tags", {}))
    with transaction.atomic():
        row.project = ensure_project(project=project_id, caller=caller)
        agents.check_schema(values, values, caller=caller)
        FIELDS.store(row, values)
        of_project = Topic.objects.filter(project=row.project)
        check_free(of_project.filter(topic_id=topic_id), topic_id)
        check_quota("topics in the project", of_project, bounds.TOPICS_PER_PROJECT)
        insert(row, topic_id)
    return row


def update_topic(*, name: str, request: object, caller: Principal = OPERATOR) -> Topic:
    """Update a topic. `request` is an UpdateTopicRequest with the topic and a mask."""
    project_id, _ = names.parse_topic(name)
    values, paths = update_request(request, name, fields.UPDATE_TOPIC, "topic", FIELDS.mutable)
    if ("messageTransforms",) in paths:
        check_transforms(project=project_id, transforms=values.get("messageTransforms", []))
    changed = {path[0] for path in paths}
    with transaction.atomic():
        if "schemaSettings" in changed:
            _lock_schema(name, values)
        row = selectors.get_topic(name=name, lock=True)
        merged = masks.masked(FIELDS.show(row), values, paths, fields.TOPIC)
        agents.check_schema(merged, changed, caller=caller)
        FIELDS.store(row, merged, changed)
        row.save()
    return row


def _lock_schema(name: str, values: Mapping[str, Any]) -> None:
    """Lock the schema that a topic will have before the topic, as deleting a schema locks its topics after itself."""
    settings = values.get("schemaSettings", {})
    schema = settings.get("schema") or (selectors.get_topic(name=name).schema_settings or {}).get("schema", "")
    with suppress(NotFound, InvalidArgument):  # which is said once the caller may know
        selectors.get_schema(name=schema, lock=True)


def delete_topic(*, name: str) -> None:
    """Delete a topic. Its subscriptions keep their messages and lose the topic."""
    with transaction.atomic():
        row = selectors.get_topic(name=name, lock=True)
        row.subscriptions.update(topic=None, updated_at=utcnow())
        row.dead_letter_sources.update(dead_letter_topic=None, updated_at=utcnow())
        row.snapshots.update(topic=None)
        signals.announce(signals.topic_deleted, topic_id=row.pk, name=row.name)
        row.delete()
