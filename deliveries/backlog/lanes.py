"""Tells a lane how its subscription stands."""

from __future__ import annotations

from typing import Literal

from deliveries.backlog.backlog import Lane
from deliveries.backlog.default import default_backlog
from deliveries.rules.limits import limits
from subscriptions.selectors import PushSettings


def lane_configure(
    lane: Lane, settings: PushSettings, *, action: Literal["new", "known", "spill"], from_id: int = 0
) -> None:
    """Give a lane its subscription's mode and limits; `action` is that of configure.lua."""
    default_backlog().configure(
        lane, is_push=settings.is_push, action=action, from_id=from_id, limits=limits(settings.attributes)
    )
