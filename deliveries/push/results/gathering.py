"""How long the settler lets results gather. Each of its turns is a commit, which delays publishers."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from deliveries.backlog.records import Lane, LaneFlow

#: The pause after a turn of many results, and after a turn with results of idle lanes only. After any other turn the
#: pause is as long as the turn, at most this.
GATHER_SECONDS = 0.02
#: So many results are worth a commit of their own.
WORTH_A_COMMIT = 64
#: The pause is this much longer while fewer than WORTH_A_COMMIT acks wait, all of quiet lanes: those that had at least
#: as many spare tokens when they were settled last, so that nothing needs their tokens back sooner.
QUIET_SECONDS = 0.48
#: Lanes that are remembered for being quiet, or for their keys. Beyond that, all are forgotten.
MOST_LANES = 10_000


class Gathering:
    """The settler's thread calls all methods but `can_wait`."""

    def __init__(self) -> None:
        #: The least number of spare tokens among the lanes of the last turn.
        self._least_spare = 0
        self._quiet_lanes: set[Lane] = set()
        #: The lanes in which messages waited for their ordering keys when they were settled last.
        self._keyed_lanes: set[Lane] = set()

    def begin_turn(self) -> None:
        self._least_spare = sys.maxsize

    def settled(self, flows: Mapping[Lane, LaneFlow]) -> None:
        """Note the state of lanes that were settled in this turn."""
        if len(self._quiet_lanes) > MOST_LANES:
            self._quiet_lanes.clear()
        if len(self._keyed_lanes) > MOST_LANES:
            self._keyed_lanes.clear()
        for lane, flow in flows.items():
            self._least_spare = min(self._least_spare, flow.spare)
            if flow.spare >= WORTH_A_COMMIT:
                self._quiet_lanes.add(lane)
            else:
                self._quiet_lanes.discard(lane)
            if flow.spare < 0:
                self._keyed_lanes.add(lane)
            else:
                self._keyed_lanes.discard(lane)

    def waits_for_keys(self, lane: Lane) -> bool:
        """Return whether messages of the lane waited for the results of earlier ones of their keys."""
        return lane in self._keyed_lanes

    @property
    def has_keys(self) -> bool:
        """Whether messages waited for their ordering keys in a lane of the last turn."""
        return self._least_spare < 0

    def pause_seconds(self, count: int, *, spent_seconds: float) -> float:
        """Return the pause after a turn of `count` results that took `spent_seconds`."""
        gathers = count and (self._least_spare > 0 or (count >= WORTH_A_COMMIT and self._least_spare == 0))
        return GATHER_SECONDS if gathers else min(spent_seconds, GATHER_SECONDS)

    def quiet_seconds(self, count: int) -> float:
        """Return how much longer the pause is unless a result arrives that can't wait."""
        return QUIET_SECONDS if count and self._least_spare >= WORTH_A_COMMIT else 0.0

    def can_wait(self, lane: Lane, *, is_ack: bool, waiting: int) -> bool:
        """Return whether a result can wait for the end of the longer pause; `waiting` results wait already.

        Any thread may call this.
        """
        return is_ack and waiting < WORTH_A_COMMIT and lane in self._quiet_lanes
