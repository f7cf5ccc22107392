"""The data plane's handlers of the control plane's signals."""

from __future__ import annotations

from typing import Any

from django.conf import settings

from deliveries.backlog.default import default_backlog
from deliveries.backlog.elsewhere import tell_elsewhere
from deliveries.backlog.lanes import configure_lane, configure_lanes, lanes_of
from deliveries.backlog.records import Lane
from subscriptions import signals
from subscriptions.selectors import push_settings_of


def connect() -> None:
    signals.subscription_created.connect(on_created, dispatch_uid="deliveries.created")
    signals.subscription_changed.connect(on_changed, dispatch_uid="deliveries.changed")
    signals.subscription_deleted.connect(on_deleted, dispatch_uid="deliveries.deleted")


def on_created(sender: Any, *, subscription_id: int, **_: Any) -> None:
    """Create the lane as empty, so that its first messages need no query."""
    push_settings = push_settings_of(subscription_id)
    if push_settings is not None:
        lane = Lane(subscription_id, settings.REGION)
        configure_lane(lane, push_settings, action="new")


def on_changed(sender: Any, *, subscription_id: int, **_: Any) -> None:
    """Make workers read the settings again, and pass them on to the lanes."""
    default_backlog().announce_change(subscription_id)
    configure_lanes(subscription_id, action="known")
    tell_elsewhere(subscription_id)


def on_deleted(sender: Any, *, subscription_id: int, **_: Any) -> None:
    """Remove the lanes from Redis. The next audit deletes the rows, and workers drop what they hold."""
    backlog = default_backlog()
    backlog.announce_change(subscription_id)
    for lane in lanes_of(subscription_id):
        backlog.forget(lane)
    tell_elsewhere(subscription_id)
