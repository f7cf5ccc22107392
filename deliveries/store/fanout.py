"""Publishes with more deliveries than one short transaction can hold, on SQLite, which has a single writer.

The deliveries are inserted slice by slice, and other writers get in between. The messages come last, in the transaction
that ends the publish: a delivery without its message is not visible to any reader. Until then a row of PendingPublish
names the ids, so that the deliveries of a publish that failed or crashed can be found and removed.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import timedelta
from itertools import islice
from time import sleep

from django.db import Error
from django.db.models import Min

from deliveries.models import Message, PendingPublish
from deliveries.rules.ids import FAN_OUT_NODE, MessageIds
from deliveries.store import statements
from deliveries.store.writelock import write_transaction
from pushhub.common.clock import Clock, utcnow
from pushhub.common.errors import Unavailable

logger = logging.getLogger(__name__)

#: Rows that one transaction inserts: about 30 ms on SQLite, for which other writers wait.
SLICE_ROWS = 3_000
#: Part of a slice's time that other writers have after it, before this process asks for the write lock again.
PAUSE_SHARE = 0.5
LONGEST_PAUSE_SECONDS = 0.1
#: The archive takes messages 60 s after their publish time, so a publish must be over by then.
LONGEST_SECONDS = 45
#: A publish that has been pending for longer than this belongs to a process that crashed.
ABANDONED_AFTER = timedelta(seconds=120)

#: Only publishes of this module use this node number, so no other publish can take one of their ids meanwhile.
_message_ids = MessageIds(node=FAN_OUT_NODE)


def delivery_rows(
    ids: Sequence[int], owed: Iterable[tuple[int, Sequence[int]]], *, region: str
) -> Iterator[statements.DeliveryRow]:
    """Yield the rows of deliveries message by message: in this order a slice changes few pages of the two indexes.

    `owed` has pairs of a subscription's primary key and the indices of its messages.
    """
    subscriptions: list[list[int]] = [[] for _ in ids]
    for subscription_id, indices in owed:
        for index in indices:
            subscriptions[index].append(subscription_id)
    for message_id, subscription_ids in zip(ids, subscriptions, strict=True):
        for subscription_id in subscription_ids:
            yield message_id, subscription_id, region, 0, ""


def slices(rows: Iterator[statements.DeliveryRow]) -> Iterator[list[statements.DeliveryRow]]:
    """Yield the rows in lists of at most SLICE_ROWS."""
    while chunk := list(islice(rows, SLICE_ROWS)):
        yield chunk


def fan_out(
    count: int,
    owed: Sequence[tuple[int, Sequence[int]]],
    *,
    region: str,
    after: int,
    insert_messages: Callable[[list[int]], None],
) -> list[int]:
    """Store the deliveries of `count` messages, then the messages by `insert_messages`.

    Return the message ids, which are larger than the id `after`.
    """
    began = time.monotonic()
    pending = _begin(count, after=after)
    try:
        for rows in slices(delivery_rows(pending.ids, owed, region=region)):
            slice_began = time.monotonic()
            if slice_began - began > LONGEST_SECONDS:
                raise Unavailable("The publish took too long. Publish fewer messages in one request.")
            with write_transaction():
                _check_not_abandoned(pending)
                statements.insert_deliveries(rows)
            sleep(min(PAUSE_SHARE * (time.monotonic() - slice_began), LONGEST_PAUSE_SECONDS))
        with write_transaction():
            _check_not_abandoned(pending)
            insert_messages(pending.ids)
            PendingPublish.objects.filter(pk=pending.pk).delete()
    except BaseException:
        # What cannot be removed now, the maintenance worker removes later.
        with suppress(Error):
            _remove(pending)
        raise
    return list(pending.ids)


def first_pending_id() -> int:
    """Return the first message id of the publishes that are not complete, or LAST_ID if there are none."""
    first_id = PendingPublish.objects.aggregate(first=Min("first_id"))["first"]
    return statements.LAST_ID if first_id is None else int(first_id)


def remove_abandoned(*, clock: Clock = utcnow) -> int:
    """Remove the deliveries of publishes whose process crashed; return how many publishes there were."""
    rows = list(PendingPublish.objects.filter(created_at__lt=clock() - ABANDONED_AFTER))
    for row in rows:
        logger.warning("removing the deliveries of a publish of %d messages that did not complete", len(row.ids))
        _remove(row)
    return len(rows)


def _begin(count: int, *, after: int) -> PendingPublish:
    with write_transaction():
        ids = _draw_ids(count, after=after)
        while _are_taken(ids):
            ids = _draw_ids(count, after=after)
        return PendingPublish.objects.create(first_id=ids[0], last_id=ids[-1], ids=ids)


def _draw_ids(count: int, *, after: int) -> list[int]:
    ids = _message_ids.take(count, now_ms=time.time_ns() // 1_000_000)
    return ids if ids[0] > after else _message_ids.take_after(after, count, dice=random.random())  # noqa: S311 - jitter


def _are_taken(ids: Sequence[int]) -> bool:
    """Whether another process drew the same ids in the same millisecond."""
    return (
        PendingPublish.objects.filter(first_id__lte=ids[-1], last_id__gte=ids[0]).exists()
        or Message.objects.filter(pk__gte=ids[0], pk__lte=ids[-1]).exists()
    )


def _check_not_abandoned(pending: PendingPublish) -> None:
    if not PendingPublish.objects.filter(pk=pending.pk, abandoned=False).exists():
        raise Unavailable("The publish took too long and was given up.")


def _remove(pending: PendingPublish) -> None:
    """Remove the deliveries, then the row; a publish that is complete is left alone."""
    with write_transaction():
        # From now on the process that publishes cannot complete it, in case it is only slow.
        if not PendingPublish.objects.filter(pk=pending.pk).update(abandoned=True):
            return
    while True:
        with write_transaction():
            count = statements.delete_deliveries_of(message_ids=pending.ids, limit=statements.DELETE_CHUNK)
            if count < statements.DELETE_CHUNK:
                PendingPublish.objects.filter(pk=pending.pk).delete()
                return
