"""Seek: a subscription's backlog becomes that of another time, or that of a snapshot (docs/spec.md#seek).

The rows change first, range by range so that nobody waits long; then Redis forgets the lanes and reads them anew. What
is out at that moment may still arrive, and its answer counts: production settles within a minute, PushHub in seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from django.conf import settings

from deliveries.backlog.backlog import Lane
from deliveries.backlog.default import default_backlog
from deliveries.backlog.lanes import lane_configure
from deliveries.counters import kinds
from deliveries.counters.recording import request_counted
from deliveries.models import SnapshotMessage
from deliveries.retention.retained import seekable_from
from deliveries.rules.ids import first_id_at
from deliveries.rules.payload import attributes_parse
from deliveries.store import statements
from deliveries.store.writelock import write_transaction
from pushhub.common.errors import FailedPrecondition, InvalidArgument
from pushhub.common.protojson import timestamp_parse
from subscriptions import selectors
from subscriptions.models import Snapshot, Subscription
from subscriptions.resources import fields
from subscriptions.resources.filters import matcher
from subscriptions.selectors import push_settings_of
from subscriptions.services.rows import check_name

#: Messages looked at in one transaction.
RANGE_SIZE = 2_000
#: Whether a message with this id is to be owed.
Wanted = Callable[[int], bool]


def subscription_seek(*, name: str, request: object) -> None:
    """`request` is a SeekRequest: a time or a snapshot."""
    given = fields.SEEK.read(request)
    check_name(given, name, field="subscription")
    found = selectors.subscription_get(name=name)
    with request_counted(kinds.SEEK_REQUESTS, found.pk):
        _seek(found, given)


def _seek(found: Subscription, given: Mapping[str, Any]) -> None:
    if found.detached:
        raise FailedPrecondition(f"Subscription is detached (resource={found.subscription_id}).")
    if "time" in given:
        _seek_to_time(found, timestamp_parse(given["time"], field="time"))
    elif given.get("snapshot"):
        _seek_to_snapshot(found, selectors.snapshot_get(name=given["snapshot"], field="snapshot"))
    else:
        raise InvalidArgument("You must specify a time or a snapshot to seek to.", field="time")
    lanes_read_anew(found.pk)


def _seek_to_time(found: Subscription, moment: datetime) -> None:
    """What is older is acknowledged; what is younger and still kept is owed again."""
    # Times that no id has yet, such as of the next century, are all the same.
    first_id = min(first_id_at(int(moment.timestamp() * 1000)), statements.LAST_ID)
    _acknowledge(found, wanted=lambda message_id: message_id >= first_id, before_id=first_id)
    reach = seekable_from(found)
    if reach is not None:
        _owe(found, from_id=max(first_id, reach), wanted=lambda _: True)


def _seek_to_snapshot(found: Subscription, snapshot: Snapshot) -> None:
    if found.topic_id != snapshot.topic_pk:
        raise FailedPrecondition(
            f"The subscription and the snapshot are of different topics (resource={found.subscription_id})."
        )
    rows = SnapshotMessage.objects.filter(snapshot=snapshot)
    included = set(rows.filter(included=True).values_list("message_id", flat=True))
    excluded = set(rows.filter(included=False).values_list("message_id", flat=True))

    def wanted(message_id: int) -> bool:
        return message_id in included or (message_id >= snapshot.boundary_id and message_id not in excluded)

    _acknowledge(found, wanted=wanted, before_id=statements.LAST_ID)
    first_id = min(included, default=snapshot.boundary_id)
    _owe(found, from_id=min(first_id, snapshot.boundary_id), wanted=wanted)


def _acknowledge(found: Subscription, *, wanted: Wanted, before_id: int) -> None:
    """Deliveries before `before_id` that are not wanted go."""
    for region in statements.lanes_waiting(found.pk):
        after_id = -1
        while True:
            ids = statements.waiting_ids(
                subscription_id=found.pk, region=region, after_id=after_id, before_id=before_id, limit=RANGE_SIZE
            )
            if not ids:
                break
            after_id = ids[-1]
            gone = [message_id for message_id in ids if not wanted(message_id)]
            with write_transaction():
                statements.deliveries_delete(subscription_id=found.pk, region=region, message_ids=gone)


def _owe(found: Subscription, *, from_id: int, wanted: Wanted) -> None:
    """Messages of the topic from `from_id` on become owed again, with no attempt made yet."""
    passes = matcher(found.filter)
    ends = first_id_at(time.time_ns() // 1_000_000 + 60_000)
    after_id = from_id - 1
    while True:
        with write_transaction():
            rows = statements.messages_of_topic(topic_id=found.topic_id or 0, after_id=after_id, limit=RANGE_SIZE)
            rows = [row for row in rows if row[0] < ends]
            chosen = [row for row in rows if wanted(row[0]) and passes(attributes_parse(row[2]))]
            _insert_missing(found.pk, chosen)
        if len(rows) < RANGE_SIZE:
            return
        after_id = rows[-1][0]


def _insert_missing(subscription_id: int, rows: Sequence[tuple[int, str, str]]) -> None:
    for region in {row[1] for row in rows}:
        ids = [row[0] for row in rows if row[1] == region]
        there = set(statements.still_waiting(subscription_id=subscription_id, region=region, message_ids=ids))
        statements.deliveries_insert([(one, subscription_id, region, 0, "") for one in ids if one not in there])


def lanes_read_anew(subscription_id: int) -> None:
    """Make Redis forget the subscription's lanes, with their windows, pauses and retries, and read what is owed."""
    found = push_settings_of(subscription_id)
    if found is None:
        return
    for region in {settings.REGION, *statements.lanes_waiting(subscription_id)}:
        lane = Lane(subscription_id, region)
        default_backlog().forget(lane)
        lane_configure(lane, found, action="known")
