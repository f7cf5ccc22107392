"""What Redis was not told about lanes that are ordered, or that another region's Redis has.

A publish is answered even if Redis is away. Its publisher may then send the key's next message by another process,
which reaches Redis. If the lane has read rows with higher ids meanwhile, which were committed sooner, it would read
that next message and not the one before it. So a row here is committed before the answer, and who reads a page looks
here after reading the rows: the row here is then as visible as the next message is. And who publishes looks here, so
that a lane reads the next message from the database: it may have had one of the key that was published meanwhile.

Where each region has a Redis of its own, nobody else reaches it. So rows here say to its push workers, which look each
second, what has come from another region: messages, and with an id of OTHER_SETTINGS or OTHER_BACKLOG, changes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from django.db.models import Exists, OuterRef

from deliveries.models import Delivery, LostOffer
from deliveries.store.sql import among, fetch_rows
from deliveries.store.writelock import write_transaction

#: In place of a message id: a subscription was changed or deleted, or was sought.
OTHER_SETTINGS, OTHER_BACKLOG = 0, -1


def note_lost(offers: Iterable[LostOffer]) -> None:
    """Keep the first message of each offer that Redis did not get, for those who read the pages of its lane."""
    rows = list(offers)
    if rows:
        with write_transaction():
            LostOffer.objects.bulk_create(rows)


def lanes_untold(lanes: Collection[tuple[int, str]]) -> set[tuple[int, str]]:
    """Return those of these lanes (subscription and region) that were not told of a message that they are owed."""
    condition, ids = among("subscription_id", sorted({subscription_id for subscription_id, _ in lanes}))
    query = f"SELECT subscription_id, region FROM deliveries_lostoffer WHERE {condition} AND message_id > 0"
    return {(subscription_id, region) for subscription_id, region in fetch_rows(query, ids)}.intersection(lanes)


def lost_before(from_ids: Mapping[tuple[int, str], int]) -> dict[tuple[int, str], list[int]]:
    """Return the keys of what was lost of lanes (subscription and region) before these messages.

    Lanes that have lost nothing are left out.
    """
    lost: dict[tuple[int, str], list[int]] = {}
    if from_ids:
        condition, ids = among("subscription_id", [subscription_id for subscription_id, _ in from_ids])
        query = f"SELECT id, subscription_id, region, message_id FROM deliveries_lostoffer WHERE {condition}"
        for key, *lane, message_id in fetch_rows(query, ids):
            if OTHER_SETTINGS < message_id < from_ids.get((lane[0], lane[1]), 0):
                lost.setdefault((lane[0], lane[1]), []).append(key)
    return lost


def forget_lost(keys: Sequence[int]) -> None:
    if keys:
        with write_transaction():
            LostOffer.objects.filter(pk__in=keys).delete()


def lost_of(region: str) -> list[LostOffer]:
    """Return what was lost of the lanes of a region."""
    return list(LostOffer.objects.filter(region=region).order_by("pk"))


def sweep_settled() -> int:
    """Forget what was settled, because the lane or its audit has found it. Return how many there were."""
    delivery = Delivery.objects.filter(
        subscription=OuterRef("subscription_id"), region=OuterRef("region"), message=OuterRef("message_id")
    )
    settled = list(LostOffer.objects.filter(~Exists(delivery), message_id__gt=0).values_list("pk", flat=True))
    forget_lost(settled)
    return len(settled)
