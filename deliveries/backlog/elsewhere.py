"""What the Redis of another region has to be told, and what this region's was told by others (store/lostoffers.py)."""

from __future__ import annotations

from collections.abc import Sequence

from deliveries.backlog.default import default_backlog
from deliveries.backlog.lanes import configure_lane, settings_of
from deliveries.backlog.records import Lane, grouped
from deliveries.models import LostOffer
from deliveries.store import lanerows, regionholds
from deliveries.store.lostoffers import OTHER_BACKLOG, OTHER_SETTINGS, forget_lost, lost_of, note_lost


def tell_elsewhere(subscription_id: int, *, what: int = OTHER_SETTINGS) -> None:
    """Tell the regions that this one doesn't hold of a change of a subscription. May raise the database's errors."""
    if regionholds.is_alone():
        return
    note_lost(
        LostOffer(subscription_id=subscription_id, region=hold.region, message_id=what)
        for hold in regionholds.read_holds()
        if not regionholds.holds_now(hold.region)
    )


def forget_ended(lane: Lane, message_ids: Sequence[int]) -> None:
    """Forget deliveries that have left the database, or note it for the region that holds the lane.

    May raise errors of the database and of Redis.
    """
    if regionholds.holds(lane.region):
        default_backlog().remove(lane, message_ids)
    else:
        note_lost(LostOffer(**lane._asdict(), message_id=message_id) for message_id in message_ids)


def hear_of_elsewhere(region: str) -> None:
    """Pass on to the lanes of a region what others have noted for it. May raise errors of the database and of Redis."""
    rows = lost_of(region)
    lanes = grouped(rows, lambda row: Lane(row.subscription_id, row.region))
    settings_by_id = settings_of({lane.subscription_id for lane in lanes})
    for lane, notes in lanes.items():
        ids = [note.message_id for note in notes]
        if min(ids) <= OTHER_SETTINGS:
            default_backlog().announce_change(lane.subscription_id)
        settings = settings_by_id.get(lane.subscription_id)
        if min(ids) == OTHER_BACKLOG or settings is None:
            default_backlog().forget(lane)
        if settings is not None:
            configure_lane(lane, settings, action="spill", from_id=max(min(ids), 0))
            owed = lanerows.still_waiting(**lane._asdict(), message_ids=ids)
            if ended := sorted(set(ids).difference(owed, [OTHER_SETTINGS, OTHER_BACKLOG])):
                default_backlog().remove(lane, ended)
    forget_lost([row.pk for row in rows])
