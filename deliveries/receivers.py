"""What the data plane does when the control plane says that something changed."""

from __future__ import annotations

from typing import Any

from django.conf import settings

from deliveries.backlog.backlog import Lane
from deliveries.backlog.default import default_backlog
from deliveries.backlog.lanes import lane_configure
from deliveries.store import statements
from subscriptions import signals
from subscriptions.selectors import push_settings_of


def connect() -> None:
    signals.subscription_created.connect(on_created, dispatch_uid="deliveries.created")
    signals.subscription_changed.connect(on_changed, dispatch_uid="deliveries.changed")
    signals.subscription_deleted.connect(on_deleted, dispatch_uid="deliveries.deleted")


def on_created(sender: Any, *, subscription_id: int, **_: Any) -> None:
    """The lane begins with nothing waiting, so that its first messages need no look into the database."""
    found = push_settings_of(subscription_id)
    if found is not None:
        lane = Lane(subscription_id, settings.REGION)
        lane_configure(lane, found, action="new")


def on_changed(sender: Any, *, subscription_id: int, **_: Any) -> None:
    """Workers read the settings again; a lane that leaves or joins push is told so."""
    default_backlog().announce_change(subscription_id)
    found = push_settings_of(subscription_id)
    if found is None:
        return
    for region in _regions(subscription_id):
        lane_configure(Lane(subscription_id, region), found, action="known")


def on_deleted(sender: Any, *, subscription_id: int, **_: Any) -> None:
    """What waits in Redis goes at once; the rows follow in the next audit, and workers drop what they hold."""
    backlog = default_backlog()
    backlog.announce_change(subscription_id)
    for region in _regions(subscription_id):
        backlog.forget(Lane(subscription_id, region))


def _regions(subscription_id: int) -> set[str]:
    return {settings.REGION, *statements.lanes_waiting(subscription_id)}
