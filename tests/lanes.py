"""The state of a lane in Redis, for tests."""

from __future__ import annotations

from deliveries.backlog.backlog import Backlog, Lane
from deliveries.backlog.lanestate import LaneState, lane_fields


def lane_state(backlog: Backlog, lane: Lane) -> LaneState:
    """Return the state of a lane that Redis must know."""
    state = backlog.state(lane)
    assert state is not None, f"Redis does not know the lane {lane.key}"
    return state


def lane_change(backlog: Backlog, lane: Lane, **values: float) -> None:
    """Overwrite fields of a lane's state."""
    backlog.client.hset(lane.state_key, mapping=lane_fields(**values))
