"""Seek: a subscription's backlog becomes that of another time, or that of a snapshot (docs/spec-messages.md#seek).

The rows change first, in ranges, so that other writers never wait long. Then Redis forgets the lanes and reads them
again from the database. Each seek has a number. The deliveries that the subscription owes after it get that number, and
an attempt that began with another one settles none of them. A message that is outstanding at that moment may still
arrive. In production a seek takes up to a minute, in PushHub seconds.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any

from deliveries.backlog.default import default_backlog
from deliveries.backlog.elsewhere import tell_elsewhere
from deliveries.backlog.lanes import configure_lanes, lanes_of
from deliveries.backlog.records import Lane
from deliveries.models import SnapshotMessage
from deliveries.retention.retained import seekable_from
from deliveries.rules.ids import first_id_at
from deliveries.rules.payload import parse_attributes
from deliveries.store import lanerows, messagerows, statements
from deliveries.store.lostoffers import OTHER_BACKLOG
from deliveries.store.writelock import retry_deadlocks, write_transaction
from deliveries.telemetry import kinds
from deliveries.telemetry.sinks.requests import request_counted
from pushhub.common.errors import FailedPrecondition, InvalidArgument
from pushhub.common.protojson import parse_timestamp
from subscriptions import selectors
from subscriptions.models import Snapshot, Subscription
from subscriptions.resources import fields
from subscriptions.resources.filters import matcher
from subscriptions.services.rows import check_name

#: Messages looked at in one transaction.
RANGE_SIZE = 2_000

#: Tells by its id whether a message should be delivered after the seek.
Wanted = Callable[[int], bool]


def seek_subscription(*, name: str, request: object) -> None:
    """Replay or skip messages. `request` is a SeekRequest with a time or a snapshot."""
    seek = fields.SEEK.read(request)
    check_name(seek, name, field="subscription")
    subscription = selectors.get_subscription(name=name)
    with request_counted(kinds.SEEK_REQUESTS, subscription.pk):
        _seek(subscription, seek)


def _seek(subscription: Subscription, seek: Mapping[str, Any]) -> None:
    if subscription.detached:
        raise FailedPrecondition(f"Subscription is detached (resource={subscription.subscription_id}).")
    if "time" in seek:
        _seek_to_time(subscription, parse_timestamp(seek["time"], field="time"))
    elif seek.get("snapshot"):
        _seek_to_snapshot(subscription, selectors.get_snapshot(name=seek["snapshot"], field="snapshot"))
    else:
        raise InvalidArgument("You must specify a time or a snapshot to seek to.", field="time")
    _lanes_reload(subscription.pk)


def _seek_to_time(subscription: Subscription, moment: datetime) -> None:
    """Acknowledge older messages, and deliver younger ones again if they are retained."""
    # No id has a time of the next century yet; such times all mean the last id.
    first_id = min(first_id_at(int(moment.timestamp() * 1000)), statements.LAST_ID)
    number = _draw_number()
    _decide_waiting(subscription, wanted=lambda message_id: message_id >= first_id, number=number)
    reach = seekable_from(subscription)
    if reach is not None:
        _owe(subscription, from_id=max(first_id, reach), wanted=lambda _: True, number=number)


def _seek_to_snapshot(subscription: Subscription, snapshot: Snapshot) -> None:
    if subscription.topic_id != snapshot.topic_pk:
        raise FailedPrecondition(
            f"The subscription and the snapshot are of different topics (resource={subscription.subscription_id})."
        )
    rows = SnapshotMessage.objects.filter(snapshot=snapshot)
    included = set(rows.filter(included=True).values_list("message_id", flat=True))
    excluded = set(rows.filter(included=False).values_list("message_id", flat=True))

    def wanted(message_id: int) -> bool:
        return message_id in included or (message_id >= snapshot.boundary_id and message_id not in excluded)

    number = _draw_number()
    _decide_waiting(subscription, wanted=wanted, number=number)
    first_id = min(included, default=snapshot.boundary_id)
    _owe(subscription, from_id=min(first_id, snapshot.boundary_id), wanted=wanted, number=number)


def _draw_number() -> int:
    """Return the number of a seek. It is random, because attempts of two seeks ago may settle last."""
    return secrets.randbelow(2**31 - 1) + 1


def _decide_waiting(subscription: Subscription, *, wanted: Wanted, number: int) -> None:
    """Delete the deliveries that are not wanted, and let the others begin again, of those that wait now."""
    for region in lanerows.lanes_waiting(subscription.pk):
        lane = Lane(subscription.pk, region)._asdict()
        last_id, after_id = lanerows.last_waiting_id(**lane), -1
        while ids := lanerows.waiting_ids(**lane, after_id=after_id, before_id=last_id + 1, limit=RANGE_SIZE):
            after_id = ids[-1]
            wanted_ids = [message_id for message_id in ids if wanted(message_id)]
            unwanted_ids = sorted(set(ids).difference(wanted_ids))
            # Results of pushes have their rows in another order.
            retry_deadlocks(partial(_decide, lane, unwanted_ids, wanted_ids, number))


def _decide(lane: Mapping[str, Any], unwanted_ids: Sequence[int], wanted_ids: Sequence[int], number: int) -> None:
    with write_transaction():
        statements.delete_deliveries(**lane, message_ids=unwanted_ids)
        statements.deliveries_sought(**lane, message_ids=wanted_ids, seek=number)


def _owe(subscription: Subscription, *, from_id: int, wanted: Wanted, number: int) -> None:
    """Create deliveries, without attempts, for the wanted messages that the topic has now, from `from_id` on."""
    passes = matcher(subscription.filter)
    topic_id = subscription.topic_id or 0
    last_id, after_id = messagerows.last_id_of_topic(topic_id), from_id - 1
    while after_id < last_id:
        with write_transaction():
            messagerows.lock_settled()
            rows = messagerows.messages_of_topic(topic_id=topic_id, after_id=after_id, limit=RANGE_SIZE)
            chosen = [row for row in rows if wanted(row[0]) and passes(parse_attributes(row[2]))]
            _insert_missing(subscription.pk, chosen, number=number)
        if not rows:
            return
        after_id = rows[-1][0]


def _insert_missing(subscription_id: int, rows: Sequence[tuple[int, str, str]], *, number: int) -> None:
    for region in {row[1] for row in rows}:
        lane = Lane(subscription_id, region)._asdict()
        ids = [row[0] for row in rows if row[1] == region]
        waiting = set(lanerows.still_waiting(**lane, message_ids=ids))
        missing_ids = [message_id for message_id in ids if message_id not in waiting]
        statements.insert_deliveries([(message_id, subscription_id, region, 0, "") for message_id in missing_ids])
        statements.deliveries_sought(**lane, message_ids=missing_ids, seek=number)


def _lanes_reload(subscription_id: int) -> None:
    """Make Redis forget the subscription's lanes with their windows, pauses and retries, and read its deliveries."""
    for lane in lanes_of(subscription_id):
        default_backlog().forget(lane)
    configure_lanes(subscription_id, action="known")
    tell_elsewhere(subscription_id, what=OTHER_BACKLOG)
