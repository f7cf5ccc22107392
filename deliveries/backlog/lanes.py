"""Tells a lane how its subscription stands."""

from __future__ import annotations

from deliveries.backlog.backlog import Action, Lane, Mode
from deliveries.backlog.default import default_backlog
from deliveries.rules.limits import limits
from subscriptions.selectors import PushSettings


def mode_of(settings: PushSettings) -> Mode:
    if settings.detached:
        return Mode.IDLE
    return Mode.PUSH if settings.endpoint else Mode.PULL


def lane_configure(lane: Lane, settings: PushSettings, *, action: Action, from_id: int = 0) -> None:
    """Give a lane its subscription's mode and limits; `action` is that of configure.lua."""
    default_backlog().configure(
        lane,
        mode=mode_of(settings),
        action=action,
        from_id=from_id,
        limits=limits(settings.attributes),
        ordered=settings.ordered,
    )
