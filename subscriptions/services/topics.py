"""Create, update and delete topics. Requests come as decoded JSON and are read here, for all surfaces alike.

A refused request leaves nothing behind: everything is checked before anything is stored, in one transaction.
"""

from __future__ import annotations

from django.db import transaction

from pushhub.common import names
from pushhub.common.clock import utcnow
from pushhub.common.principals import OPERATOR, Principal
from subscriptions import selectors, signals
from subscriptions.identity import agents
from subscriptions.models import Topic
from subscriptions.resources import assign, bounds, fields, masks
from subscriptions.resources.render import topic_fields
from subscriptions.services.projects import project_ensure
from subscriptions.services.rows import check_name, check_quota, insert, update_request

TOPIC_MUTABLE = frozenset(assign.TOPIC_FIELDS)


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
        check_quota("topics in the project", Topic.objects.filter(project=row.project), bounds.TOPICS_PER_PROJECT)
        insert(row, topic_id, Topic.objects.filter(project=row.project, topic_id=topic_id).exists())
    return row


def topic_update(*, name: str, request: object, caller: Principal = OPERATOR) -> Topic:
    """`request` is an UpdateTopicRequest: the topic and the mask of what to take from it."""
    names.parse_topic(name)
    given, paths = update_request(request, name, fields.UPDATE_TOPIC, "topic", TOPIC_MUTABLE)
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
