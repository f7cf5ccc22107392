"""What Redis was not told about lanes that are ordered, or that another region's Redis has.

A publish is answered even if Redis is away. Its publisher may then send the key's next message by another process,
which reaches Redis. If the lane has read rows with higher ids meanwhile, which were committed sooner, it would read
that next message and not the one before it. So a row here is committed before the answer, and who reads a page looks
here after reading the rows: the row here is then as visible as the next message is. And who publishes looks here, so
that a lane reads the next message from the database: it may have had one of the key that was published meanwhile.

Where each region has a Redis of its own, nobody else reaches it. So rows here say to its push workers, which look each
second, what has come from another region: messages, also such as were ended there, and with an id of OTHER_SETTINGS or
OTHER_BACKLOG, changes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from django.db.models import Exists, OuterRef

from deliveries.models import Delivery, LostOffer
from deliveries.store.regionholds import is_alone
from deliveries.store.sql import Statement, fetch_rows, in_chunks, rows_table
from deliveries.store.statements import LAST_ID
from deliveries.store.writelock import write_transaction

#: In place of a message id: a subscription was changed or deleted, or was sought.
OTHER_SETTINGS, OTHER_BACKLOG = 0, -1


def note_lost(offers: Iterable[LostOffer]) -> None:
    """Keep the first message of each offer that Redis did not get, for those who read the pages of its lane."""
    rows = list(offers)
    if rows:
        with write_transaction():
            LostOffer.objects.bulk_create(rows)


#: Whether a lane of the table `r` was not told of a message before `r.before_id`. One step in the index says so: while
#: Redis is away, a lane gets a row for each publish.
_IS_UNTOLD = (
    "EXISTS (SELECT 1 FROM deliveries_lostoffer u WHERE u.subscription_id = r.subscription_id AND u.region = r.region"
    " AND u.message_id > 0 AND u.message_id < r.before_id)"
)


def _table_of(before_ids: Mapping[tuple[int, str], int]) -> Statement:
    rows = [(*lane, before_id) for lane, before_id in before_ids.items()]
    return rows_table(rows, ("subscription_id", "region", "before_id"), ("bigint", "text", "bigint"))


def lanes_untold(lanes: Collection[tuple[int, str]]) -> set[tuple[int, str]]:
    """Return those of these lanes (subscription and region) that were not told of a message that they are owed."""
    table, parameters = _table_of(dict.fromkeys(lanes, LAST_ID))
    rows = fetch_rows(f"SELECT r.subscription_id, r.region FROM {table} r WHERE {_IS_UNTOLD}", parameters)
    return {(subscription_id, region) for subscription_id, region in rows}


def lost_before(from_ids: Mapping[tuple[int, str], int]) -> dict[tuple[int, str], list[int]]:
    """Return the lanes (subscription and region) that have lost something before these messages.

    Each has the keys of all that it has lost, also of what comes later: it is committed, so a lane that begins anew
    reads it.
    """
    if not from_ids:
        return {}
    table, parameters = _table_of(from_ids)
    rows = fetch_rows(
        f"SELECT l.subscription_id, l.region, l.id FROM {table} r JOIN deliveries_lostoffer l"
        " ON l.subscription_id = r.subscription_id AND l.region = r.region AND l.message_id > 0"
        f" WHERE {_IS_UNTOLD}",
        parameters,
    )
    lost: dict[tuple[int, str], list[int]] = {}
    for *lane, key in rows:
        lost.setdefault((lane[0], lane[1]), []).append(key)
    return lost


def forget_lost(keys: Sequence[int]) -> None:
    for chunk in in_chunks(keys):
        with write_transaction():
            LostOffer.objects.filter(pk__in=chunk).delete()


def lost_of(region: str) -> list[LostOffer]:
    return list(LostOffer.objects.filter(region=region).order_by("pk"))


def sweep_settled() -> int:
    """Forget what was settled, because the lane or its audit has found it. Return how many there were.

    Where each region has a Redis of its own, its push workers forget what they have heard.
    """
    if not is_alone():
        return 0
    delivery = Delivery.objects.filter(
        subscription=OuterRef("subscription_id"), region=OuterRef("region"), message=OuterRef("message_id")
    )
    settled = list(LostOffer.objects.filter(~Exists(delivery), message_id__gt=0).values_list("pk", flat=True))
    forget_lost(settled)
    return len(settled)
