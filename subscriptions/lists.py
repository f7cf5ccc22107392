"""The lists that REST and gRPC both have: the rows of each, their order, and the scope of its page tokens.

Each function returns a page of rows, and the token of the next page.
"""

from __future__ import annotations

from subscriptions import selectors
from subscriptions.models import Project, Snapshot, Subscription, Topic
from subscriptions.models.schemas import Schema, SchemaRevision
from subscriptions.paging import Page, paged


def topics(project: Project, page: Page) -> tuple[list[Topic], str]:
    return paged(selectors.topics_of(project), page, keys=("topic_id",), scope=f"topics {project.pk}")


def topic_subscriptions(topic: Topic, page: Page) -> tuple[list[Subscription], str]:
    """The subscriptions attached to a topic. They may belong to other projects."""
    keys = ("project__project_id", "subscription_id")
    return paged(selectors.subscriptions_attached_to(topic), page, keys=keys, scope=f"topic subscriptions {topic.pk}")


def topic_snapshots(topic: Topic, page: Page) -> tuple[list[Snapshot], str]:
    """The snapshots of a topic. They may belong to other projects."""
    keys = ("project__project_id", "snapshot_id")
    return paged(selectors.snapshots_of_topic(topic), page, keys=keys, scope=f"topic snapshots {topic.pk}")


def subscriptions(project: Project, page: Page) -> tuple[list[Subscription], str]:
    keys = ("subscription_id",)
    return paged(selectors.subscriptions_of(project), page, keys=keys, scope=f"subscriptions {project.pk}")


def snapshots(project: Project, page: Page) -> tuple[list[Snapshot], str]:
    return paged(selectors.snapshots_of(project), page, keys=("snapshot_id",), scope=f"snapshots {project.pk}")


def schemas(project: Project, page: Page) -> tuple[list[Schema], str]:
    return paged(selectors.schemas_of(project), page, keys=("schema_id",), scope=f"schemas {project.pk}")


def schema_revisions(schema: Schema, page: Page) -> tuple[list[SchemaRevision], str]:
    return paged(selectors.schema_revisions_of(schema), page, keys=("pk",), scope=f"revisions {schema.pk}")
