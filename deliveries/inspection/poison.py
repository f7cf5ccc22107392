"""Looks for a poison message: one that is refused again and again while later messages of its key wait for it."""

from __future__ import annotations

from collections.abc import Sequence

from deliveries.backlog.backlog import Backlog
from deliveries.backlog.records import Lane
from deliveries.inspection.lanes import LaneView, blockers
from deliveries.models import Delivery

#: So many nacks in a row make a message poison.
MIN_ATTEMPTS = 3
#: Of the oldest deliveries, and of those whose retries are due next, so many are looked at.
LOOKED_AT = 100


def find_poison(backlog: Backlog, subscription_id: int, views: Sequence[LaneView]) -> tuple[Delivery, int] | None:
    """Return the poison message that most others of its ordering key wait for, and how many do.

    May raise redis.RedisError.
    """
    found = [pair for view in views for pair in _poisoned(backlog, Lane(subscription_id, view.region), view)]
    return max(found, key=lambda pair: pair[1], default=None)


def _poisoned(backlog: Backlog, lane: Lane, view: LaneView) -> Sequence[tuple[Delivery, int]]:
    """Return the poison messages of a lane, and how many wait behind each."""
    rows = Delivery.objects.filter(subscription=lane.subscription_id, region=lane.region)
    oldest = rows.order_by("message_id").values_list("message_id", flat=True)[:LOOKED_AT]
    heads = blockers(backlog, lane, sorted({*view.retry_ids, *oldest}))
    behind = {head.message_id: head.behind for head in heads.values() if head.behind}
    poison = rows.filter(message_id__in=list(behind), attempts__gte=MIN_ATTEMPTS).order_by("message_id")
    return [(row, behind[row.message_id]) for row in poison]
