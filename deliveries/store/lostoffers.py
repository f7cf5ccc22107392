"""What Redis was not told about the lanes that are ordered.

A publish is answered even if Redis is away. Its publisher may then send the key's next message by another process,
which reaches Redis. If the lane has read rows with higher ids meanwhile, which were committed sooner, it would read
that next message and not the one before it. So a row here is committed before the answer, and who reads a page looks
here after reading the rows: the row here is then as visible as the next message is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from django.db import connection
from django.db.models import Exists, OuterRef

from deliveries.models import Delivery, LostOffer
from deliveries.store.writelock import write_transaction


class Lost(NamedTuple):
    """The first message of an offer that Redis did not get, in one lane."""

    subscription_id: int
    region: str
    message_id: int


def note_lost(offers: Iterable[Lost]) -> None:
    """Keep what was lost for those who read the pages of the lanes."""
    rows = [LostOffer(**lost._asdict()) for lost in offers]
    if rows:
        with write_transaction():
            LostOffer.objects.bulk_create(rows)


def lost_before(message_id: int, *, subscription_id: int, region: str) -> list[Lost]:
    """Return what was lost of a lane before this message."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT subscription_id, region, message_id FROM deliveries_lostoffer"
            " WHERE subscription_id = %s AND region = %s AND message_id < %s",
            [subscription_id, region, message_id],
        )
        return [Lost(*row) for row in cursor.fetchall()]


def forget_lost(found: Sequence[Lost]) -> None:
    """Forget what a lane will read now."""
    with write_transaction():
        LostOffer.objects.filter(
            subscription_id__in={lost.subscription_id for lost in found},
            region__in={lost.region for lost in found},
            message_id__in={lost.message_id for lost in found},
        ).delete()


def sweep_settled() -> int:
    """Forget what was settled, because the lane or its audit has found it. Return how many there were."""
    delivery = Delivery.objects.filter(
        subscription=OuterRef("subscription_id"), region=OuterRef("region"), message=OuterRef("message_id")
    )
    settled = list(LostOffer.objects.filter(~Exists(delivery)).values_list("pk", flat=True))
    if settled:
        with write_transaction():
            LostOffer.objects.filter(pk__in=settled).delete()
    return len(settled)
