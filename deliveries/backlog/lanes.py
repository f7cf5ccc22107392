"""Tells a lane how its subscription stands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from deliveries.backlog.backlog import Action, Lane, Mode, Offer
from deliveries.backlog.default import default_backlog
from deliveries.rules.limits import limits
from subscriptions.selectors import PushSettings


def mode_of(settings: PushSettings) -> Mode:
    if settings.is_push:
        return Mode.PUSH
    return Mode.IDLE if settings.detached or settings.endpoint else Mode.PULL


def lane_agrees(state: Mapping[str, str], settings: PushSettings) -> bool:
    """Whether a lane's state has its subscription's mode, ordering and limits. A lane unknown to Redis has none."""
    own = limits(settings.attributes)
    wanted = {
        "mode": mode_of(settings),
        "ordered": settings.ordered,
        "cap": own.max_outstanding,
        "rate": own.rate,
        "burst": own.burst,
    }
    return bool(state) and all(float(state.get(name, 0)) == value for name, value in wanted.items())


def lane_offer(lane: Lane, settings: PushSettings, messages: Sequence[tuple[int, str]]) -> Offer:
    """Deliveries for a lane, with what it must know of its subscription where Redis has lost it."""
    return Offer(lane, mode=mode_of(settings), messages=messages, limits=limits(settings.attributes))


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
