"""The frequent statements of the data plane, in SQL: the ORM's objects would cost more than the rows.

Only these few are here; all else uses the ORM. Each works on SQLite and PostgreSQL. Callers own the transaction.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

import orjson
from django.db import connection

from deliveries.rules.shards import is_in

#: SQLite takes at most 32,766 parameters a statement; shorter lists also keep its parsing cheap.
IN_CHUNK = 1000
#: Rows that one transaction of a clean-up deletes: others wait that long.
DELETE_CHUNK = 2000
LAST_ID = 2**63 - 1

MESSAGE_COLUMNS = "id, topic_id, region, data, attributes, ordering_key"
DELIVERY_COLUMNS = "message_id, subscription_id, region, attempts, last_result"

_INSERT_MESSAGES = f"INSERT INTO deliveries_message ({MESSAGE_COLUMNS})"
_INSERT_DELIVERIES = f"INSERT INTO deliveries_delivery ({DELIVERY_COLUMNS})"
_MESSAGE_CASTS = ("bigint", "bigint", "text", "bytea", "text", "text")
_DELIVERY_CASTS = ("bigint", "bigint", "text", "integer", "text")

MessageRow = tuple[int, int, str, bytes, str, str]
DeliveryRow = tuple[int, int, str, int, str]


class PageRow(NamedTuple):
    """A delivery waiting in the database, with its message."""

    message_id: int
    attempts: int
    #: None for a payload that is too large for Redis.
    data: bytes | None
    attributes: str
    ordering_key: str
    #: The last seek that made the subscription owe the message, or 0.
    seek: int


@dataclass(frozen=True, slots=True)
class Nack:
    """What the database keeps about the last attempt of a nacked delivery."""

    message_id: int
    attempts: int
    result: str


def _is_postgresql() -> bool:
    return connection.vendor == "postgresql"


def _length() -> str:
    """Return the SQL function for the bytes of a payload. Neither database reads the payload for it."""
    return "octet_length" if _is_postgresql() else "length"


def insert_messages(rows: Sequence[MessageRow]) -> None:
    if _is_postgresql():
        _execute_if_any(_messages_by_arrays(rows))
    elif rows:
        with connection.cursor() as cursor:
            cursor.executemany(f"{_INSERT_MESSAGES} VALUES ({', '.join(['%s'] * len(_MESSAGE_CASTS))})", rows)


def insert_deliveries(rows: Sequence[DeliveryRow]) -> None:
    if _is_postgresql():
        _execute_if_any(_deliveries_by_arrays(rows))
    elif rows:
        _insert_as_json(rows)


def insert_messages_with(rows: Sequence[MessageRow], deliveries: Sequence[DeliveryRow]) -> None:
    """Insert messages and deliveries: on PostgreSQL by one statement, which is a transaction of its own."""
    if not _is_postgresql() or not rows or not deliveries:
        insert_messages(rows)
        insert_deliveries(deliveries)
        return
    stored, message_columns = _messages_by_arrays(rows)
    queued, delivery_columns = _deliveries_by_arrays(deliveries)
    with connection.cursor() as cursor:
        cursor.execute(f"WITH stored AS ({stored}) {queued}", [*message_columns, *delivery_columns])


def _insert_as_json(rows: Sequence[DeliveryRow]) -> None:
    """Insert on SQLite, which reads all rows from one JSON array in half the time, and without Python's lock."""
    values = ", ".join(f"json_extract(value, '$[{index}]')" for index in range(len(rows[0])))
    with connection.cursor() as cursor:
        cursor.execute(
            f"{_INSERT_DELIVERIES} SELECT {values} FROM json_each(%s)",
            [orjson.dumps(rows).decode()],
        )


#: A statement with its parameters.
_Statement = tuple[str, list[Any]]


def _messages_by_arrays(rows: Sequence[MessageRow]) -> _Statement:
    return _by_arrays(_INSERT_MESSAGES, rows, casts=_MESSAGE_CASTS)


def _deliveries_by_arrays(rows: Sequence[DeliveryRow]) -> _Statement:
    return _by_arrays(_INSERT_DELIVERIES, rows, casts=_DELIVERY_CASTS)


def _by_arrays(head: str, rows: Sequence[tuple[Any, ...]], *, casts: Sequence[str], tail: str = "") -> _Statement:
    """Return the statement that inserts rows on PostgreSQL, with an array per column.

    psycopg's executemany would send a statement for each row ahead of the replies; if the client freezes between those,
    PostgreSQL doesn't take its transaction for idle, and keeps the rows locked for as long (store/writelock.py).
    """
    arrays = ", ".join(f"%s::{cast}[]" for cast in casts)
    return f"{head} SELECT * FROM unnest({arrays}) {tail}", _columns(rows)


def _columns(rows: Sequence[tuple[Any, ...]]) -> list[list[Any]]:
    return [list(column) for column in zip(*rows, strict=True)]


def _execute_if_any(statement: _Statement) -> None:
    """Execute a statement unless it would insert no rows."""
    if statement[1]:
        with connection.cursor() as cursor:
            cursor.execute(*statement)


def _in_chunks(message_ids: Sequence[int]) -> Iterable[Sequence[int]]:
    for start in range(0, len(message_ids), IN_CHUNK):
        yield message_ids[start : start + IN_CHUNK]


def _among(count: int) -> str:
    return "message_id = ANY(%s)" if _is_postgresql() else f"message_id IN ({', '.join(['%s'] * count)})"


#: Of the deliveries whose attempts had a `seek`, those that no later seek has brought back (docs/spec.md#seek). No seek
#: sets the column back to 0.
_SINCE_SEEK = " AND seek IN (0, %s)"


def delete_deliveries(
    *, subscription_id: int, region: str, message_ids: Sequence[int], seek: int | None = None
) -> None:
    """Delete deliveries of a lane. Ids that are gone already do no harm.

    With `seek`, which the attempts had that ended, deliveries that a later seek has brought back stay.
    """
    since, values = ("", []) if seek is None else (_SINCE_SEEK, [seek])
    with connection.cursor() as cursor:
        for chunk in _in_chunks(message_ids):
            ids = [list(chunk)] if _is_postgresql() else chunk
            cursor.execute(
                "DELETE FROM deliveries_delivery WHERE subscription_id = %s AND region = %s AND "
                + _among(len(chunk))
                + since,
                [subscription_id, region, *ids, *values],
            )


def deliveries_sought(*, subscription_id: int, region: str, message_ids: Sequence[int], seek: int) -> None:
    """Let deliveries of a lane begin again at the first attempt. Attempts that began before this seek don't count.

    An ack that is being stored ends first, and its delivery is gone then.
    """
    with connection.cursor() as cursor:
        for chunk in _in_chunks(message_ids):
            ids = [list(chunk)] if _is_postgresql() else chunk
            cursor.execute(
                "UPDATE deliveries_delivery SET seek = %s, attempts = 0, last_result = '', last_attempt_at = NULL"
                " WHERE subscription_id = %s AND region = %s AND " + _among(len(chunk)),
                [seek, subscription_id, region, *ids],
            )


def delete_deliveries_of(*, message_ids: Sequence[int], limit: int) -> int:
    """Delete up to `limit` deliveries of these messages, of every subscription; return how many were deleted."""
    with connection.cursor() as cursor:
        cursor.execute(
            "DELETE FROM deliveries_delivery WHERE id IN (SELECT id FROM deliveries_delivery WHERE "
            + _among(len(message_ids))
            + " LIMIT %s)",
            [list(message_ids), limit] if _is_postgresql() else [*message_ids, limit],
        )
        return int(cursor.rowcount)


def deliveries_nacked(*, subscription_id: int, region: str, nacks: Sequence[Nack], at: datetime, seek: int) -> int:
    """Count nacks of attempts that had this `seek`. Return how many there were."""
    rows = [(nack.message_id, nack.attempts, nack.result) for nack in nacks]
    with connection.cursor() as cursor:
        if _is_postgresql():
            cursor.execute(
                "UPDATE deliveries_delivery SET attempts = new.attempts, last_result = new.result, last_attempt_at = %s"
                " FROM unnest(%s::bigint[], %s::integer[], %s::text[]) AS new (message_id, attempts, result)"
                " WHERE subscription_id = %s AND region = %s AND deliveries_delivery.message_id = new.message_id"
                + _SINCE_SEEK,
                [at, *_columns(rows), subscription_id, region, seek],
            )
        else:
            cursor.executemany(
                "UPDATE deliveries_delivery SET attempts = %s, last_result = %s, last_attempt_at = %s"
                " WHERE subscription_id = %s AND region = %s AND message_id = %s" + _SINCE_SEEK,
                [(attempts, result, at, subscription_id, region, id_, seek) for id_, attempts, result in rows],
            )
        return int(cursor.rowcount)


def read_page(*, subscription_id: int, region: str, from_id: int, limit: int, inline_bytes: int) -> list[PageRow]:
    """Return the next deliveries of a lane in publish order, with their messages but without larger payloads."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT d.message_id, d.attempts,"
            f" CASE WHEN {_length()}(m.data) + length(m.attributes) <= %s THEN m.data END,"
            " m.attributes, m.ordering_key, d.seek"
            " FROM deliveries_delivery d JOIN deliveries_message m ON m.id = d.message_id"
            " WHERE d.subscription_id = %s AND d.region = %s AND d.message_id >= %s"
            " ORDER BY d.message_id LIMIT %s",
            [inline_bytes, subscription_id, region, from_id, limit],
        )
        rows = cursor.fetchall()
    return [PageRow(row[0], row[1], None if row[2] is None else bytes(row[2]), *row[3:]) for row in rows]


def payload_sizes(message_ids: Sequence[int]) -> dict[int, int]:
    """Return the bytes of data and attributes of each message that exists, without reading its data."""
    sizes: dict[int, int] = {}
    with connection.cursor() as cursor:
        for chunk in _in_chunks(message_ids):
            among = _among(len(chunk)).replace("message_id", "id")
            cursor.execute(
                f"SELECT id, {_length()}(data) + length(attributes) FROM deliveries_message WHERE {among}",
                [list(chunk)] if _is_postgresql() else list(chunk),
            )
            sizes.update(cursor.fetchall())
    return sizes


def waiting_ids(*, subscription_id: int, region: str, before_id: int, after_id: int, limit: int) -> list[int]:
    """Return the message ids of the oldest deliveries of a lane in an open range."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT message_id FROM deliveries_delivery WHERE subscription_id = %s AND region = %s"
            " AND message_id > %s AND message_id < %s ORDER BY message_id LIMIT %s",
            [subscription_id, region, after_id, before_id, limit],
        )
        return [row[0] for row in cursor.fetchall()]


def lanes_waiting(subscription_id: int) -> list[str]:
    """Return the regions in which a subscription has waiting deliveries. Takes one index step per region."""
    regions: list[str] = []
    with connection.cursor() as cursor:
        while True:
            cursor.execute(
                "SELECT region FROM deliveries_delivery WHERE subscription_id = %s AND region > %s"
                " ORDER BY region LIMIT 1",
                [subscription_id, regions[-1] if regions else ""],
            )
            row = cursor.fetchone()
            if row is None:
                return regions
            regions.append(row[0])


#: The oldest delivery of each lane: one step in the index per lane.
_LANES = """
WITH RECURSIVE lanes (id, subscription_id, region, oldest_id) AS (
    SELECT * FROM (
        SELECT id, subscription_id, region, message_id FROM deliveries_delivery
        ORDER BY subscription_id, region, message_id LIMIT 1
    ) first
    UNION ALL
    SELECT d.id, d.subscription_id, d.region, d.message_id FROM lanes JOIN deliveries_delivery d ON d.id = (
        SELECT n.id FROM deliveries_delivery n
        WHERE (n.subscription_id, n.region) > (lanes.subscription_id, lanes.region)
        ORDER BY n.subscription_id, n.region, n.message_id LIMIT 1
    )
)
SELECT lanes.subscription_id, lanes.region, lanes.oldest_id FROM lanes"""


class LaneWaiting(NamedTuple):
    """A lane with deliveries in the database, and the message id of the oldest."""

    subscription_id: int
    region: str
    oldest_id: int


def all_lanes_waiting(*, shard: int | None = None) -> list[LaneWaiting]:
    """Return all lanes with waiting deliveries, or those of a shard, even those of deleted subscriptions."""
    with connection.cursor() as cursor:
        cursor.execute(_LANES)
        return [LaneWaiting(*row) for row in cursor.fetchall() if is_in(row[0], shard)]


def lanes_of_deleted(*, shard: int | None = None) -> list[LaneWaiting]:
    """Return the lanes with deliveries of deleted subscriptions, or those of a shard.

    One statement reads both tables: a subscription that is committed in between cannot seem to be deleted.
    """
    with connection.cursor() as cursor:
        cursor.execute(
            _LANES + " WHERE NOT EXISTS (SELECT 1 FROM subscriptions_subscription s WHERE s.id = lanes.subscription_id)"
        )
        return [LaneWaiting(*row) for row in cursor.fetchall() if is_in(row[0], shard)]


def push_backlogs() -> dict[str, int]:
    """Return, for each region, the number of lanes with waiting deliveries whose subscriptions push."""
    with connection.cursor() as cursor:
        cursor.execute(
            f"{_LANES} JOIN subscriptions_subscription s ON s.id = lanes.subscription_id"
            " WHERE s.push_endpoint <> '' AND NOT s.detached AND NOT s.paused"
        )
        return Counter(region for _, region, _ in cursor.fetchall())


class LaneRange(NamedTuple):
    """The deliveries of a lane in an open range of message ids."""

    subscription_id: int
    region: str
    after_id: int
    before_id: int


def oldest_ids(ranges: Sequence[LaneRange], *, limit: int) -> list[list[str]]:
    """Return the message ids, as text, of at most `limit` of the oldest deliveries of each range, in order."""
    names = ("subscription_id", "region", "after_id", "before_id")
    source, parameters = _rows(ranges, names, ("bigint", "text", "bigint", "bigint"))
    group = "string_agg(message_id::text, ',' ORDER BY message_id)" if _is_postgresql() else "group_concat(message_id)"
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT r.number, (SELECT {group} FROM (SELECT message_id FROM deliveries_delivery d"
            " WHERE d.subscription_id = r.subscription_id AND d.region = r.region"
            " AND d.message_id > r.after_id AND d.message_id < r.before_id ORDER BY d.message_id LIMIT %s) w)"
            f" FROM {source} r",
            [limit, *parameters],
        )
        texts = dict(cursor.fetchall())
    return [texts[number].split(",") if texts[number] else [] for number in range(1, len(ranges) + 1)]


def oldest_waiting(deliveries: Sequence[tuple[int, str, int]]) -> dict[tuple[int, str], int]:
    """Return, for each lane, the lowest message id of these deliveries that are still there.

    A delivery is a subscription, a region and a message id.
    """
    source, parameters = _rows(deliveries, ("subscription_id", "region", "message_id"), ("bigint", "text", "bigint"))
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT d.subscription_id, d.region, min(d.message_id) FROM {source} r JOIN deliveries_delivery d"
            " ON d.subscription_id = r.subscription_id AND d.region = r.region AND d.message_id = r.message_id"
            " GROUP BY d.subscription_id, d.region",
            parameters,
        )
        return {(subscription_id, region): lowest for subscription_id, region, lowest in cursor.fetchall()}


def _rows(rows: Sequence[tuple[Any, ...]], names: Sequence[str], casts: Sequence[str]) -> _Statement:
    """Return a table expression of rows with these columns and `number`, which counts from 1."""
    if _is_postgresql():
        arrays = ", ".join(f"%s::{cast}[]" for cast in casts)
        columns = [list(column) for column in zip(*rows, strict=True)] if rows else [[] for _ in names]
        named = f"(SELECT * FROM unnest({arrays}) WITH ORDINALITY AS u({', '.join(names)}, number))"
        return named, columns
    values = ", ".join(f"json_extract(value, '$[{index}]') AS {name}" for index, name in enumerate(names))
    text = orjson.dumps([list(row) for row in rows]).decode()
    return f"(SELECT {values}, key + 1 AS number FROM json_each(%s))", [text]


def still_waiting(
    *, subscription_id: int, region: str, message_ids: Sequence[int], seek: int | None = None
) -> list[int]:
    """Return the messages of these deliveries that are still there.

    With `seek`, which their attempts had, leave out those that a later seek has brought back, and let no seek bring
    back the others before the transaction ends.
    """
    since, values = ("", []) if seek is None else (_SINCE_SEEK, [seek])
    if seek is not None and _is_postgresql():
        since += " FOR UPDATE"
    waiting_ids: list[int] = []
    with connection.cursor() as cursor:
        for chunk in _in_chunks(message_ids):
            ids = [list(chunk)] if _is_postgresql() else chunk
            cursor.execute(
                "SELECT message_id FROM deliveries_delivery WHERE subscription_id = %s AND region = %s AND "
                + _among(len(chunk))
                + since,
                [subscription_id, region, *ids, *values],
            )
            waiting_ids += [row[0] for row in cursor.fetchall()]
    return waiting_ids


def last_waiting_id(*, subscription_id: int, region: str) -> int:
    """Return the id of the youngest message that waits in a lane, or -1."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT max(message_id) FROM deliveries_delivery WHERE subscription_id = %s AND region = %s",
            [subscription_id, region],
        )
        last_id = cursor.fetchone()[0]
        return -1 if last_id is None else int(last_id)


def last_id_of_topic(topic_id: int) -> int:
    """Return the id of a topic's youngest message, or -1."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT max(id) FROM deliveries_message WHERE topic_id = %s", [topic_id])
        last_id = cursor.fetchone()[0]
        return -1 if last_id is None else int(last_id)


def messages_range_end(*, after_id: int, before_id: int, size: int) -> int | None:
    """Return the last id of the next `size` messages in the open range, or None if there is no message."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT max(id) FROM (SELECT id FROM deliveries_message WHERE id > %s AND id < %s ORDER BY id LIMIT %s) r",
            [after_id, before_id, size],
        )
        row = cursor.fetchone()
        return row[0] if row else None


def topics_in_range(*, after_id: int, to_id: int) -> list[int]:
    """Return the topics of the messages in a range."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT DISTINCT topic_id FROM deliveries_message WHERE id > %s AND id <= %s", [after_id, to_id])
        return [row[0] for row in cursor.fetchall()]


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
    with connection.cursor() as cursor:
        cursor.execute(
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
        deleted = int(cursor.rowcount)
        cursor.execute(
            "DELETE FROM deliveries_archivedmessage WHERE message_id > %s AND message_id <= %s AND NOT EXISTS"
            " (SELECT 1 FROM deliveries_message m WHERE m.id = deliveries_archivedmessage.message_id)",
            [after_id, to_id],
        )
        return deleted


def messages_unarchived(*, after_id: int, limit: int) -> list[int]:
    """Return the ids of the next messages that are neither in the archive nor being written to it, in order."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT m.id FROM deliveries_message m WHERE m.id > %s AND NOT EXISTS"
            " (SELECT 1 FROM deliveries_archivedmessage a WHERE a.message_id = m.id) ORDER BY m.id LIMIT %s",
            [after_id, limit],
        )
        return [row[0] for row in cursor.fetchall()]


def insert_archived(*, write_id: int, message_ids: Sequence[int]) -> None:
    """Claim messages for a write to the archive."""
    ids = "unnest(%s::bigint[]) AS ids(value)" if _is_postgresql() else "json_each(%s) AS ids"
    with connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO deliveries_archivedmessage (message_id, write_id) SELECT ids.value, %s FROM {ids}",
            [write_id, list(message_ids) if _is_postgresql() else f"[{','.join(map(str, message_ids))}]"],
        )


def insert_existing_archived(message_ids: Sequence[int]) -> int:
    """Mark messages as archived if the database has them; return how many were not marked yet."""
    count = 0
    with connection.cursor() as cursor:
        for chunk in _in_chunks(message_ids):
            among = "id = ANY(%s)" if _is_postgresql() else f"id IN ({', '.join(['%s'] * len(chunk))})"
            cursor.execute(
                "INSERT INTO deliveries_archivedmessage (message_id, write_id)"
                f" SELECT id, 0 FROM deliveries_message WHERE {among} ON CONFLICT DO NOTHING",
                [list(chunk)] if _is_postgresql() else list(chunk),
            )
            count += cursor.rowcount
    return count


def messages_of_topic(*, topic_id: int, after_id: int, limit: int) -> list[tuple[int, str, str]]:
    """Return the next messages of a topic, in publish order: id, region and attributes."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT id, region, attributes FROM deliveries_message WHERE topic_id = %s AND id > %s"
            " ORDER BY id LIMIT %s",
            [topic_id, after_id, limit],
        )
        return [(row[0], row[1], row[2]) for row in cursor.fetchall()]


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
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT COUNT(*), COALESCE(SUM({_length()}(m.data) + length(m.attributes)), 0)"
            f" FROM ({ids}) r JOIN deliveries_message m ON m.id = r.message_id",
            parameters,
        )
        count, size = cursor.fetchone()
        return int(count), int(size)


def count_messages(*, topic_id: int, from_id: int) -> int:
    """Return how many messages a topic has from an id on: a walk over an index."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT COUNT(*) FROM deliveries_message WHERE topic_id = %s AND id >= %s", [topic_id, from_id])
        return int(cursor.fetchone()[0])


def messages_bytes(*, topic_id: int, from_id: int, limit: int) -> list[tuple[str, int, int, int]]:
    """Return region, count, bytes and first id of the first messages of a topic from an id on."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT region, COUNT(*), SUM(size), MIN(id) FROM"
            f" (SELECT id, region, {_length()}(data) + length(attributes) AS size FROM deliveries_message"
            " WHERE topic_id = %s AND id >= %s ORDER BY id LIMIT %s) r GROUP BY region ORDER BY region",
            [topic_id, from_id, limit],
        )
        return [(region, int(count), int(size), int(first)) for region, count, size, first in cursor.fetchall()]


def oldest_acked_ids(*, subscription_id: int, topic_id: int, from_id: int, limit: int) -> dict[str, int]:
    """Return, by region, the oldest of a topic's first messages from an id on that a subscription is not owed."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT m.region, MIN(m.id) FROM (SELECT id, region FROM deliveries_message"
            " WHERE topic_id = %s AND id >= %s ORDER BY id LIMIT %s) m WHERE NOT EXISTS"
            " (SELECT 1 FROM deliveries_delivery d WHERE d.subscription_id = %s AND d.region = m.region"
            " AND d.message_id = m.id) GROUP BY m.region",
            [topic_id, from_id, limit, subscription_id],
        )
        return {region: int(first) for region, first in cursor.fetchall()}


def include_snapshot(*, snapshot_id: int, subscription_id: int, before_id: int) -> None:
    """Add the deliveries of a subscription that wait now, up to `before_id`, to a snapshot."""
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO deliveries_snapshotmessage (snapshot_id, message_id, region, included)"
            " SELECT DISTINCT %s, message_id, region, %s FROM deliveries_delivery"
            " WHERE subscription_id = %s AND message_id < %s",
            [snapshot_id, True, subscription_id, before_id],
        )


def delete_expired_deliveries(*, subscription_id: int, before_id: int, limit: int) -> int:
    """Delete deliveries of a subscription that are past their retention; return how many were deleted."""
    with connection.cursor() as cursor:
        cursor.execute(
            "DELETE FROM deliveries_delivery WHERE id IN (SELECT id FROM deliveries_delivery"
            " WHERE subscription_id = %s AND message_id < %s LIMIT %s)",
            [subscription_id, before_id, limit],
        )
        return int(cursor.rowcount)


METRIC_KEY = "resource, event, at, response_class, response_code, host"
METRIC_SUMS = ("count", "bytes", "latency_us_sum", "latency_us_max", "buckets")
MetricRow = tuple[str, str, str, datetime, str, int, str, int, int, int, int, str]
_METRIC_CASTS = ("text", "text", "text", "timestamptz", "text", "integer", "text", *["bigint"] * 4, "jsonb")


#: Two histograms as one. SQLite calls a function of Python for it.
MERGED_SQLITE = "pushhub_buckets_merged({table}.buckets, excluded.buckets)"
MERGED_POSTGRESQL = (
    "(SELECT coalesce(jsonb_object_agg(bucket, n), '{{}}')"
    " FROM (SELECT key AS bucket, sum(value::bigint) AS n"
    " FROM (SELECT * FROM jsonb_each_text({table}.buckets)"
    " UNION ALL SELECT * FROM jsonb_each_text(excluded.buckets)) AS both_rows"
    " GROUP BY key) AS summed)"
)


def write_metrics(table: str, rows: Sequence[MetricRow], *, add: bool) -> None:
    """Write rows of metrics: project, key, sums. Buckets are JSON.

    `add` adds the sums to those of the row with the same key; otherwise they replace them.
    """
    is_postgresql = _is_postgresql()
    changes = {name: f"excluded.{name}" for name in METRIC_SUMS}
    if add:
        changes |= {name: f"{table}.{name} + excluded.{name}" for name in ("count", "bytes", "latency_us_sum")}
        greatest = "GREATEST" if is_postgresql else "max"
        changes["latency_us_max"] = f"{greatest}({table}.latency_us_max, excluded.latency_us_max)"
        changes["buckets"] = (MERGED_POSTGRESQL if is_postgresql else MERGED_SQLITE).format(table=table)
    head = f"INSERT INTO {table} (project, {METRIC_KEY}, {', '.join(METRIC_SUMS)})"
    tail = f"ON CONFLICT ({METRIC_KEY}) DO UPDATE SET {', '.join(f'{name} = {new}' for name, new in changes.items())}"
    with connection.cursor() as cursor:
        if add and not is_postgresql:
            connection.connection.create_function("pushhub_buckets_merged", 2, _buckets_merged, deterministic=True)
        if not is_postgresql:
            cursor.executemany(
                f"{head} VALUES ({', '.join(['%s'] * len(_METRIC_CASTS))}) {tail}",
                [(*row[:3], connection.ops.adapt_datetimefield_value(row[3]), *row[4:]) for row in rows],
            )
        elif rows:
            cursor.execute(*_by_arrays(head, rows, casts=_METRIC_CASTS, tail=tail))


def _buckets_merged(first: str, second: str) -> str:
    buckets: dict[str, int] = orjson.loads(first)
    for bucket, count in orjson.loads(second).items():
        buckets[bucket] = buckets.get(bucket, 0) + count
    return orjson.dumps(buckets).decode()
