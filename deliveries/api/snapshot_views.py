"""Snapshots and seek."""

from __future__ import annotations

from typing import Any

from deliveries.retention.seeking import seek_subscription
from deliveries.retention.snapshots import create_snapshot as take_snapshot
from pushhub.common import names
from pushhub.common.principals import Principal
from subscriptions import selectors
from subscriptions.api.openapi import list_of
from subscriptions.api.routes import PROJECT, SUBSCRIPTION, TOPIC, listed, serve
from subscriptions.iam.methods import PUBLISHER, SUBSCRIBER
from subscriptions.paging import Page, paged
from subscriptions.resources import fields
from subscriptions.resources.render import snapshot_resource
from subscriptions.services import snapshots
from subscriptions.services.projects import ensure_project

#: Not with a colon, so that the methods of a snapshot's policy are found.
SNAPSHOT = PROJECT + "/snapshots/{snapshot:[^/:]+}"


@serve("PUT", SNAPSHOT, SUBSCRIBER, takes=fields.CREATE_SNAPSHOT, gives=fields.SNAPSHOT)
def create_snapshot(name: str, body: object, caller: Principal) -> Any:
    """Create a snapshot of a subscription."""
    return snapshot_resource(take_snapshot(name=name, request=body, caller=caller))


@serve("GET", SNAPSHOT, SUBSCRIBER, gives=fields.SNAPSHOT)
def get_snapshot(name: str) -> Any:
    """Return a snapshot."""
    return snapshot_resource(selectors.get_snapshot(name=name))


@serve("PATCH", SNAPSHOT, SUBSCRIBER, takes=fields.UPDATE_SNAPSHOT, gives=fields.SNAPSHOT)
def update_snapshot(name: str, body: object) -> Any:
    """Change the fields of a snapshot that the mask names."""
    return snapshot_resource(snapshots.update_snapshot(name=name, request=body))


@serve("DELETE", SNAPSHOT, SUBSCRIBER)
def delete_snapshot(name: str) -> None:
    """Delete a snapshot."""
    snapshots.delete_snapshot(name=name)


@serve("GET", PROJECT + "/snapshots", SUBSCRIBER, gives=list_of("snapshots", fields.SNAPSHOT))
def list_snapshots(name: str, page: Page, caller: Principal) -> Any:
    """Return the snapshots of a project."""
    owner = ensure_project(project=names.parse_project(name), caller=caller)
    rows, token = paged(selectors.snapshots_of(owner), page, keys=("snapshot_id",), scope=f"snapshots {owner.pk}")
    return listed("snapshots", [snapshot_resource(row) for row in rows], token)


@serve("GET", TOPIC + "/snapshots", PUBLISHER, gives=list_of("snapshots", fields.NAME), tag="snapshots")
def list_topic_snapshots(name: str, page: Page) -> Any:
    """Return the names of a topic's snapshots. They may belong to other projects."""
    topic = selectors.get_topic(name=name)
    keys = ("project__project_id", "snapshot_id")
    rows, token = paged(selectors.snapshots_of_topic(topic), page, keys=keys, scope=f"topic snapshots {topic.pk}")
    return listed("snapshots", [row.name for row in rows], token)


@serve("POST", SUBSCRIPTION + ":seek", SUBSCRIBER, takes=fields.SEEK)
def seek(name: str, body: object) -> None:
    """Seek a subscription to a time or to a snapshot."""
    seek_subscription(name=name, request=body)
