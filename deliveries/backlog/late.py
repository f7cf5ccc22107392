"""Deliveries that ended while their lane was made anew, after a wipe of Redis or by a seek (common.lua).

The new lane may have read their rows before they left the database, and would send them again.
"""

from __future__ import annotations

from collections.abc import Sequence

from deliveries.backlog.default import default_backlog
from deliveries.backlog.records import Lane, Late
from deliveries.store import lanerows


def remove(lane: Lane, message_ids: Sequence[int], *, generation: str) -> None:
    """Forget deliveries that have left the database, in this generation of the lane or in the one made meanwhile."""
    late = default_backlog().remove(lane, message_ids, generation=generation)
    if late is not None:
        forget_late(lane, late)


def forget_late(lane: Lane, late: Late) -> None:
    """Forget those of the deliveries that are still not owed and wait.

    A seek brings deliveries back in the database before it makes the lane anew. So either they are seen here, or the
    generation is another one by now, or the seek has the lane read them again afterwards.
    """
    owed = lanerows.still_waiting(**lane._asdict(), message_ids=late.message_ids)
    if ended := sorted(set(late.message_ids).difference(owed)):
        default_backlog().remove(lane, ended, generation=late.generation, only_waiting=True)
