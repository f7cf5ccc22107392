"""The lists of snapshots in pages, for REST and gRPC alike: a page token of one surface is good for the other."""

from __future__ import annotations

from subscriptions import selectors
from subscriptions.models import Project, Snapshot, Topic
from subscriptions.paging import Page, paged


def project_snapshots(project: Project, page: Page) -> tuple[list[Snapshot], str]:
    """Return a page of a project's snapshots, and the token of the next page."""
    return paged(selectors.snapshots_of(project), page, keys=("snapshot_id",), scope=f"snapshots {project.pk}")


def topic_snapshots(topic: Topic, page: Page) -> tuple[list[Snapshot], str]:
    """Return a page of a topic's snapshots, of any project, and the token of the next page."""
    return paged(
        selectors.snapshots_of_topic(topic),
        page,
        keys=("project__project_id", "snapshot_id"),
        scope=f"topic snapshots {topic.pk}",
    )
