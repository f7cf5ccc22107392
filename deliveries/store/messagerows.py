"""The statements about messages of retention, archive and sizes, in SQL (statements.py)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from deliveries.models import Message
from deliveries.rules.payload import parse_attributes, wire_message
from deliveries.store.sql import among_each, execute, fetch_ids, fetch_rows, is_postgresql, length_function
from pushhub.common.advisory import lock_key


def read_payloads(message_ids: Iterable[int]) -> dict[int, Mapping[str, Any]]:
    """Return the messages that are still in the database, by id, in the form that travels in a task."""
    pks = list(message_ids)
    rows = Message.objects.filter(pk__in=pks) if pks else ()  # Django builds a query even if it asks for nothing
    return {
        row.pk: wire_message(row.pk, bytes(row.data), parse_attributes(row.attributes), row.ordering_key)
        for row in rows
    }


def lock_settled(*, to_delete: bool = False) -> None:
    """Let no sweep delete settled messages until this transaction ends, because its rows may need them again.

    `to_delete` is for the sweep, which waits for such transactions: it sees none of their rows before they commit. On
    SQLite, a transaction that writes keeps all others out.
    """
    if is_postgresql():
        fetch_rows(f"SELECT pg_advisory_xact_lock{'' if to_delete else '_shared'}(%s)", [lock_key("settled messages")])


def oldest_write_ms() -> int:
    """Return the age of the oldest transaction of others that writes. On SQLite no other writes meanwhile."""
    if not is_postgresql():
        return 0
    [age_ms] = fetch_ids(
        "SELECT (1000 * EXTRACT(EPOCH FROM clock_timestamp() - min(xact_start)))::bigint FROM pg_stat_activity"
        " WHERE datname = current_database() AND backend_xid IS NOT NULL AND pid <> pg_backend_pid()"
    )
    return age_ms or 0


def last_id_of_topic(topic_id: int) -> int:
    """Return the id of a topic's youngest message, or -1."""
    [last_id] = fetch_ids("SELECT max(id) FROM deliveries_message WHERE topic_id = %s", [topic_id])
    return -1 if last_id is None else last_id


def messages_range_end(*, after_id: int, before_id: int, size: int) -> int | None:
    """Return the last id of the next `size` messages in the open range, or None if there is no message."""
    [last_id] = fetch_ids(
        "SELECT max(id) FROM (SELECT id FROM deliveries_message WHERE id > %s AND id < %s ORDER BY id LIMIT %s) r",
        [after_id, before_id, size],
    )
    return last_id


def topics_in_range(*, after_id: int, to_id: int) -> list[int]:
    return fetch_ids("SELECT DISTINCT topic_id FROM deliveries_message WHERE id > %s AND id <= %s", [after_id, to_id])


#: A message is in the archive when it is noted, and no write of that number is still going on.
_IS_ARCHIVED = (
    "EXISTS (SELECT 1 FROM deliveries_archivedmessage a WHERE a.message_id = deliveries_message.id"
    " AND NOT EXISTS (SELECT 1 FROM deliveries_archiveleftover l WHERE l.id = a.write_id))"
)


def delete_settled_messages(
    *, after_id: int, to_id: int, kept_from: Mapping[int, int], archived_only: bool = False
) -> int:
    """Delete the messages of a range that no subscription is owed and nothing keeps; return how many were deleted.

    `kept_from` has, for a topic, the first id that is kept for seeks and snapshots. `archived_only` also keeps every
    message that is not in the archive.
    """
    kept = [(topic_id, first_id) for topic_id, first_id in kept_from.items() if first_id <= to_id]
    deleted = execute(
        "DELETE FROM deliveries_message WHERE id > %s AND id <= %s AND NOT EXISTS"
        " (SELECT 1 FROM deliveries_delivery d WHERE d.message_id = deliveries_message.id)"
        " AND NOT EXISTS (SELECT 1 FROM deliveries_snapshotmessage s"
        " WHERE s.message_id = deliveries_message.id AND s.included)"
        " AND NOT EXISTS (SELECT 1 FROM deliveries_deadletter k"
        " WHERE k.message_id = deliveries_message.id AND k.is_kept)"
        + (f" AND {_IS_ARCHIVED}" if archived_only else "")
        + " AND NOT (topic_id = %s AND id >= %s)" * len(kept),
        [after_id, to_id, *(value for pair in kept for value in pair)],
    )
    execute(
        "DELETE FROM deliveries_archivedmessage WHERE message_id > %s AND message_id <= %s AND NOT EXISTS"
        " (SELECT 1 FROM deliveries_message m WHERE m.id = deliveries_archivedmessage.message_id)",
        [after_id, to_id],
    )
    return deleted


def messages_unarchived(*, after_id: int, limit: int) -> list[int]:
    """Return the ids of the next messages that are neither in the archive nor being written to it, in order."""
    return fetch_ids(
        "SELECT m.id FROM deliveries_message m WHERE m.id > %s AND NOT EXISTS"
        " (SELECT 1 FROM deliveries_archivedmessage a WHERE a.message_id = m.id) ORDER BY m.id LIMIT %s",
        [after_id, limit],
    )


def oldest_unarchived() -> int | None:
    """Return the id of the oldest message that is not in the archive, or None. It passes all older ones."""
    ids = fetch_ids(f"SELECT id FROM deliveries_message WHERE NOT {_IS_ARCHIVED} ORDER BY id LIMIT 1")
    return ids[0] if ids else None


def insert_archived(*, write_id: int, message_ids: Sequence[int]) -> None:
    """Claim messages for a write to the archive."""
    ids = "unnest(%s::bigint[]) AS ids(value)" if is_postgresql() else "json_each(%s) AS ids"
    execute(
        f"INSERT INTO deliveries_archivedmessage (message_id, write_id) SELECT ids.value, %s FROM {ids}",
        [write_id, list(message_ids) if is_postgresql() else f"[{','.join(map(str, message_ids))}]"],
    )


def insert_existing_archived(message_ids: Sequence[int]) -> int:
    """Mark messages as archived if the database has them; return how many were not marked yet."""
    count = 0
    for condition, ids in among_each("id", message_ids):
        count += execute(
            "INSERT INTO deliveries_archivedmessage (message_id, write_id)"
            f" SELECT id, 0 FROM deliveries_message WHERE {condition} ON CONFLICT DO NOTHING",
            ids,
        )
    return count


def messages_of_topic(*, topic_id: int, after_id: int, limit: int) -> list[tuple[int, str, str]]:
    """Return the next messages of a topic, in publish order: id, region and attributes."""
    return fetch_rows(
        "SELECT id, region, attributes FROM deliveries_message WHERE topic_id = %s AND id > %s ORDER BY id LIMIT %s",
        [topic_id, after_id, limit],
    )


def backlog_bytes(*, subscription_id: int, region: str, limit: int) -> tuple[int, int]:
    """Return how many of the oldest deliveries of a lane were read, and the bytes of their messages."""
    return _bytes_of(
        "SELECT message_id FROM deliveries_delivery WHERE subscription_id = %s AND region = %s ORDER BY message_id"
        " LIMIT %s",
        [subscription_id, region, limit],
    )


def snapshot_bytes(*, snapshot_id: int, region: str, included: bool, limit: int) -> tuple[int, int]:
    """Return how many of the messages that a snapshot includes, or excludes, were read, and their bytes."""
    return _bytes_of(
        "SELECT message_id FROM deliveries_snapshotmessage WHERE snapshot_id = %s AND region = %s AND included = %s"
        " LIMIT %s",
        [snapshot_id, region, included, limit],
    )


def _bytes_of(ids: str, parameters: Sequence[Any]) -> tuple[int, int]:
    """Return how many messages have these ids, and the bytes of their data and attributes."""
    [(count, size)] = fetch_rows(
        f"SELECT COUNT(*), COALESCE(SUM({length_function()}(m.data) + length(m.attributes)), 0)"
        f" FROM ({ids}) r JOIN deliveries_message m ON m.id = r.message_id",
        parameters,
    )
    return int(count), int(size)


def count_messages(*, topic_id: int, from_id: int) -> int:
    """Return how many messages a topic has from an id on: a walk over an index."""
    return fetch_ids("SELECT COUNT(*) FROM deliveries_message WHERE topic_id = %s AND id >= %s", [topic_id, from_id])[0]


def messages_bytes(*, topic_id: int, from_id: int, limit: int) -> list[tuple[str, int, int, int]]:
    """Return region, count, bytes and first id of the first messages of a topic from an id on."""
    rows = fetch_rows(
        "SELECT region, COUNT(*), SUM(size), MIN(id) FROM"
        f" (SELECT id, region, {length_function()}(data) + length(attributes) AS size FROM deliveries_message"
        " WHERE topic_id = %s AND id >= %s ORDER BY id LIMIT %s) r GROUP BY region ORDER BY region",
        [topic_id, from_id, limit],
    )
    return [(region, int(count), int(size), int(first)) for region, count, size, first in rows]


def oldest_acked_ids(*, subscription_id: int, topic_id: int, from_id: int, limit: int) -> dict[str, int]:
    """Return, by region, the oldest of a topic's first messages from an id on that a subscription is not owed."""
    rows = fetch_rows(
        "SELECT m.region, MIN(m.id) FROM (SELECT id, region FROM deliveries_message"
        " WHERE topic_id = %s AND id >= %s ORDER BY id LIMIT %s) m WHERE NOT EXISTS"
        " (SELECT 1 FROM deliveries_delivery d WHERE d.subscription_id = %s AND d.region = m.region"
        " AND d.message_id = m.id) GROUP BY m.region",
        [topic_id, from_id, limit, subscription_id],
    )
    return {region: int(first) for region, first in rows}


#: The place, a region and a message id, from which `include_snapshot` begins.
BEFORE_ALL: tuple[str, int] = ("", 0)


def include_snapshot(
    *, snapshot_id: int, subscription_id: int, before_id: int, after: tuple[str, int], limit: int
) -> tuple[str, int] | None:
    """Add the next deliveries of a subscription that wait now, up to `before_id`, to a snapshot.

    Return the place of the last one, or None if none are left.
    """
    waiting = (
        "FROM deliveries_delivery WHERE subscription_id = %s AND message_id < %s AND (region, message_id) > (%s, %s)"
    )
    parameters = [subscription_id, before_id, *after]
    ends = fetch_rows(
        f"SELECT region, message_id {waiting} ORDER BY region, message_id LIMIT 1 OFFSET %s", [*parameters, limit - 1]
    )
    execute(
        "INSERT INTO deliveries_snapshotmessage (snapshot_id, message_id, region, included)"
        f" SELECT DISTINCT %s, message_id, region, %s {waiting}" + " AND (region, message_id) <= (%s, %s)" * len(ends),
        [snapshot_id, True, *parameters, *(value for end in ends for value in end)],
    )
    return (ends[0][0], ends[0][1]) if ends else None


def snapshots_gone(*, before_id: int) -> list[int]:
    """Return the keys below `before_id` of snapshots that have rows, and are not there. One index step per snapshot."""
    return fetch_ids(
        "WITH RECURSIVE held (id) AS (SELECT min(snapshot_id) FROM deliveries_snapshotmessage UNION ALL"
        " SELECT (SELECT min(snapshot_id) FROM deliveries_snapshotmessage WHERE snapshot_id > held.id)"
        " FROM held WHERE held.id IS NOT NULL)"
        " SELECT id FROM held WHERE id < %s"
        " AND NOT EXISTS (SELECT 1 FROM subscriptions_snapshot s WHERE s.id = held.id)",
        [before_id],
    )


def delete_snapshot_rows(*, snapshot_id: int, limit: int) -> int:
    """Delete some rows of a snapshot; return how many there were."""
    return execute(
        "DELETE FROM deliveries_snapshotmessage WHERE id IN"
        " (SELECT id FROM deliveries_snapshotmessage WHERE snapshot_id = %s LIMIT %s)",
        [snapshot_id, limit],
    )


def delete_expired_deliveries(
    *, subscription_id: int, region: str, before_id: int, limit: int
) -> list[tuple[int, int]]:
    """Delete deliveries of a lane that are past their retention; return the message id and the attempts of each."""
    return fetch_rows(
        "DELETE FROM deliveries_delivery WHERE id IN (SELECT id FROM deliveries_delivery"
        " WHERE subscription_id = %s AND region = %s AND message_id < %s LIMIT %s) RETURNING message_id, attempts",
        [subscription_id, region, before_id, limit],
    )
