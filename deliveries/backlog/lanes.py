"""Passes the settings of subscriptions on to their lanes."""

from __future__ import annotations

from deliveries.backlog.backlog import Action, Lane, OfferedLane
from deliveries.backlog.codes import Mode
from deliveries.backlog.default import default_backlog
from deliveries.backlog.lanestate import LaneState
from deliveries.rules.limits import limits
from subscriptions.selectors import PushSettings


def mode_of(settings: PushSettings) -> Mode:
    if settings.is_push:
        return Mode.PUSH
    return Mode.IDLE if settings.detached or settings.endpoint else Mode.PULL


def lane_agrees(state: LaneState | None, settings: PushSettings) -> bool:
    """Return whether a lane has its subscription's mode, ordering and limits; a lane unknown to Redis has none."""
    if state is None:
        return False
    own, flow = limits(settings.attributes), state.flow
    wanted = (mode_of(settings), settings.ordered, own.max_outstanding, own.rate, own.burst)
    return (state.mode, state.ordered, flow.cap, flow.rate, flow.burst) == wanted


def lane_offered(lane: Lane, settings: PushSettings) -> OfferedLane:
    """Return a lane for an offer, with the settings that Redis needs if it does not know the lane."""
    return OfferedLane(lane, mode_of(settings), limits(settings.attributes))


def lane_configure(lane: Lane, settings: PushSettings, *, action: Action, from_id: int = 0) -> None:
    """Pass the mode, the limits and the ordering of a subscription on to a lane; configure.lua explains `action`."""
    default_backlog().configure(
        lane,
        mode=mode_of(settings),
        action=action,
        from_id=from_id,
        limits=limits(settings.attributes),
        ordered=settings.ordered,
    )
