"""Topics."""

from __future__ import annotations

from typing import Any

from pushhub.common import names
from pushhub.common.principals import Principal
from subscriptions import selectors
from subscriptions.api.openapi import list_of
from subscriptions.api.routes import PROJECT, TOPIC, listed, serve
from subscriptions.iam.methods import PUBLISHER
from subscriptions.paging import Page, paged
from subscriptions.resources import fields
from subscriptions.resources.topics import topic_resource
from subscriptions.services import topics
from subscriptions.services.projects import ensure_project


@serve("PUT", TOPIC, PUBLISHER, takes=fields.TOPIC, gives=fields.TOPIC)
def create_topic(name: str, body: object, caller: Principal) -> Any:
    """Create a topic."""
    return topic_resource(topics.create_topic(name=name, topic=body, caller=caller))


@serve("GET", TOPIC, PUBLISHER, gives=fields.TOPIC)
def get_topic(name: str) -> Any:
    """Return a topic."""
    return topic_resource(selectors.get_topic(name=name))


@serve("PATCH", TOPIC, PUBLISHER, takes=fields.UPDATE_TOPIC, gives=fields.TOPIC)
def update_topic(name: str, body: object, caller: Principal) -> Any:
    """Change the fields of a topic that the mask names."""
    return topic_resource(topics.update_topic(name=name, request=body, caller=caller))


delete_topic = serve("DELETE", TOPIC, PUBLISHER)(topics.delete_topic)


@serve("GET", PROJECT + "/topics", PUBLISHER, gives=list_of("topics", fields.TOPIC))
def list_topics(name: str, page: Page, caller: Principal) -> Any:
    """Return the topics of a project."""
    owner = ensure_project(project=names.parse_project(name), caller=caller)
    rows, token = paged(
        selectors.topics_of(owner), page, keys=("topic_id",), scope=f"topics {owner.pk}", large="message_transforms"
    )
    return listed("topics", [topic_resource(row) for row in rows], token)


@serve("GET", TOPIC + "/subscriptions", PUBLISHER, gives=list_of("subscriptions", fields.NAME))
def list_topic_subscriptions(name: str, page: Page) -> Any:
    """Return the names of the subscriptions attached to a topic. They may belong to other projects."""
    topic = selectors.get_topic(name=name)
    attached = selectors.subscriptions_attached_to(topic).defer("message_transforms")
    keys = ("project__project_id", "subscription_id")
    rows, token = paged(attached, page, keys=keys, scope=f"topic subscriptions {topic.pk}")
    return listed("subscriptions", [row.name for row in rows], token)
