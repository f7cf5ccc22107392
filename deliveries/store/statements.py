"""The frequent statements of the data plane, in SQL: the ORM's objects would cost more than the rows.

Only these few are here; all else uses the ORM. Each works on SQLite and PostgreSQL. Callers own the transaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

import orjson
from django.db import connection

from deliveries.store.sql import (
    Statement,
    among,
    among_each,
    execute,
    fetch_ids,
    fetch_rows,
    insert_by_arrays,
    is_postgresql,
    length_function,
    rows_table,
)

#: Rows that one transaction of a clean-up deletes: others wait that long.
DELETE_CHUNK = 2000
#: Ids have 63 bits.
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


class Settled(NamedTuple):
    """A delivery that is no longer owed, and the `seek` that its attempt had."""

    subscription_id: int
    region: str
    message_id: int
    seek: int


class Nack(NamedTuple):
    """What the database keeps about the last attempt of a nacked delivery, and the `seek` that the attempt had."""

    subscription_id: int
    region: str
    message_id: int
    seek: int
    attempts: int
    result: str


def insert_messages(rows: Sequence[MessageRow]) -> None:
    if not rows:
        return
    if is_postgresql():
        execute(*_messages_by_arrays(rows))
    else:
        with connection.cursor() as cursor:
            cursor.executemany(f"{_INSERT_MESSAGES} VALUES ({', '.join(['%s'] * len(_MESSAGE_CASTS))})", rows)


def insert_deliveries(rows: Sequence[DeliveryRow]) -> None:
    if not rows:
        return
    if is_postgresql():
        execute(*_deliveries_by_arrays(rows))
    else:
        # SQLite reads all rows from one JSON array in half the time, and without Python's lock.
        values = ", ".join(f"json_extract(value, '$[{index}]')" for index in range(len(rows[0])))
        execute(f"{_INSERT_DELIVERIES} SELECT {values} FROM json_each(%s)", [orjson.dumps(rows).decode()])


def insert_messages_with(rows: Sequence[MessageRow], deliveries: Sequence[DeliveryRow]) -> None:
    """Insert messages and deliveries: on PostgreSQL by one statement, which is a transaction of its own."""
    if not is_postgresql() or not rows or not deliveries:
        insert_messages(rows)
        insert_deliveries(deliveries)
        return
    stored, message_columns = _messages_by_arrays(rows)
    queued, delivery_columns = _deliveries_by_arrays(deliveries)
    execute(f"WITH stored AS ({stored}) {queued}", [*message_columns, *delivery_columns])


def _messages_by_arrays(rows: Sequence[MessageRow]) -> Statement:
    return insert_by_arrays(_INSERT_MESSAGES, rows, casts=_MESSAGE_CASTS)


def _deliveries_by_arrays(rows: Sequence[DeliveryRow]) -> Statement:
    return insert_by_arrays(_INSERT_DELIVERIES, rows, casts=_DELIVERY_CASTS)


#: Of deliveries whose attempts had a `seek`, those that no later seek has brought back (docs/spec-messages.md#seek).
#: No seek sets the column back to 0.
_SINCE_SEEK = " AND seek IN (0, %s)"
#: The condition that a delivery is that of an attempt, and that no later seek has brought it back.
_IS_OF_ATTEMPT = (
    "d.subscription_id = attempt.subscription_id AND d.region = attempt.region"
    " AND d.message_id = attempt.message_id AND d.seek IN (0, attempt.seek)"
)
_NACK_CASTS = ("bigint", "text", "bigint", "bigint", "integer", "text")


def delete_deliveries(
    *, subscription_id: int, region: str, message_ids: Sequence[int], seek: int | None = None
) -> set[int]:
    """Delete deliveries of a lane; return the ids of those that there were.

    With `seek`, which the attempts had that ended, deliveries that a later seek has brought back stay.
    """
    since, values = ("", []) if seek is None else (_SINCE_SEEK, [seek])
    deleted: set[int] = set()
    for condition, ids in among_each("message_id", message_ids):
        deleted |= set(
            fetch_ids(
                f"DELETE FROM deliveries_delivery WHERE subscription_id = %s AND region = %s AND {condition}{since}"
                " RETURNING message_id",
                [subscription_id, region, *ids, *values],
            )
        )
    return deleted


def deliveries_sought(*, subscription_id: int, region: str, message_ids: Sequence[int], seek: int) -> None:
    """Let deliveries of a lane begin again at the first attempt. Attempts that began before this seek don't count.

    An ack that is being stored ends first, and its delivery is gone then.
    """
    for condition, ids in among_each("message_id", message_ids):
        execute(
            "UPDATE deliveries_delivery SET seek = %s, attempts = 0, last_result = '', last_attempt_at = NULL"
            f" WHERE subscription_id = %s AND region = %s AND {condition}",
            [seek, subscription_id, region, *ids],
        )


def delete_deliveries_of(*, message_ids: Sequence[int], limit: int) -> int:
    """Delete up to `limit` deliveries of these messages, of every subscription; return how many were deleted."""
    condition, ids = among("message_id", message_ids)
    return execute(
        f"DELETE FROM deliveries_delivery WHERE id IN (SELECT id FROM deliveries_delivery WHERE {condition} LIMIT %s)",
        [*ids, limit],
    )


def delete_settled(settled: Sequence[Settled]) -> None:
    """Delete deliveries of many lanes by one statement. Those that a later seek has brought back stay."""
    if not settled:
        return
    table, parameters = rows_table(settled, Settled._fields, _NACK_CASTS[: len(Settled._fields)])
    if is_postgresql():
        execute(f"DELETE FROM deliveries_delivery d USING {table} AS attempt WHERE {_IS_OF_ATTEMPT}", parameters)
    else:
        # A CROSS JOIN makes SQLite look each attempt up.
        found = f"SELECT d.id FROM {table} AS attempt CROSS JOIN deliveries_delivery d WHERE {_IS_OF_ATTEMPT}"
        execute(f"DELETE FROM deliveries_delivery WHERE id IN ({found})", parameters)


def note_nacks(nacks: Sequence[Nack], *, at: datetime) -> int:
    """Count nacks of many lanes by one statement. Return how many there were: a later seek makes some void."""
    if not nacks:
        return 0
    table, parameters = rows_table(nacks, Nack._fields, _NACK_CASTS)
    return execute(
        "UPDATE deliveries_delivery AS d"
        " SET attempts = attempt.attempts, last_result = attempt.result, last_attempt_at = %s"
        f" FROM {table} AS attempt WHERE {_IS_OF_ATTEMPT}",
        [at, *parameters],
    )


class LastOfKeys(NamedTuple):
    """The id of the last message of each topic and ordering key, and whether a lane was not told of a message."""

    ids: dict[tuple[int, str], int]
    is_untold: bool


def last_of_keys(keys: Sequence[tuple[int, str]], *, owed: Sequence[int] = ()) -> LastOfKeys:
    """Return the last messages of keys, which are not empty. Keys without messages are left out.

    It also says whether something was lost of the subscriptions in `owed` (lostoffers.py): each publish with keys asks
    both.
    """
    if not keys:
        return LastOfKeys({}, False)
    table, parameters = rows_table(keys, ("topic_id", "ordering_key"), ("bigint", "text"))
    condition, ids = among("subscription_id", owed) if owed else ("FALSE", [])
    untold = f"EXISTS (SELECT 1 FROM deliveries_lostoffer WHERE {condition} AND message_id > 0)"
    # Without a condition on the id, SQLite reads all messages of the topic for a key that has none.
    rows = fetch_rows(
        "SELECT k.topic_id, k.ordering_key, (SELECT max(m.id) FROM deliveries_message m WHERE m.topic_id = k.topic_id"
        f" AND m.ordering_key = k.ordering_key AND m.ordering_key > '' AND m.id > 0), {untold} FROM {table} AS k",
        [*ids, *parameters],
    )
    last_ids = {(topic_id, key): last_id for topic_id, key, last_id, _ in rows if last_id is not None}
    return LastOfKeys(last_ids, bool(rows[0][3]))


class PageRange(NamedTuple):
    """The next deliveries of a lane: at most `limit` from an id on, and payloads up to `inline_bytes`.

    With `is_fresh`, only those that have not failed yet; with `of_key`, only those of the first one's ordering key.
    """

    subscription_id: int
    region: str
    from_id: int
    limit: int
    inline_bytes: int
    is_fresh: bool = False
    of_key: bool = False


def read_pages(ranges: Sequence[PageRange]) -> list[list[PageRow]]:
    """Return the deliveries of each range in publish order, with their messages but without larger payloads."""
    text, parameters = [], []
    for number, (subscription_id, region, from_id, limit, inline_bytes, is_fresh, of_key) in enumerate(ranges):
        text.append(
            f"SELECT * FROM (SELECT {number}, d.message_id, d.attempts,"
            f" CASE WHEN {length_function()}(m.data) + length(m.attributes) <= %s THEN m.data END,"
            " m.attributes, m.ordering_key, d.seek"
            f" FROM {_rows_of_key() if of_key else _rows_of_lane()}{' AND d.attempts = 0' * is_fresh}"
            f" ORDER BY {'m.id' if of_key else 'd.message_id'} LIMIT %s) page_{number}"
        )
        parameters += [inline_bytes, subscription_id, region, *[from_id] * (3 if of_key else 1), limit]
    pages: list[list[PageRow]] = [[] for _ in ranges]
    for number, message_id, attempts, data, *others in fetch_rows(" UNION ALL ".join(text), parameters):
        pages[number].append(PageRow(message_id, attempts, None if data is None else bytes(data), *others))
    # Nothing promises the order of a union.
    return [sorted(page) for page in pages]


def _rows_of_lane() -> str:
    """Return the tables and the condition of a lane's deliveries from an id on."""
    # PostgreSQL would estimate a merge join too, for which it looks for the least id in both indexes: with 380,000 rows
    # that were deleted since the last vacuum, this took 5 ms a page. A subquery with OFFSET can only be nested.
    messages = (
        "CROSS JOIN LATERAL (SELECT * FROM deliveries_message WHERE id = d.message_id OFFSET 0) m"
        if is_postgresql()
        else "JOIN deliveries_message m ON m.id = d.message_id"
    )
    return f"deliveries_delivery d {messages} WHERE d.subscription_id = %s AND d.region = %s AND d.message_id >= %s"


def _rows_of_key() -> str:
    """Return the tables and the condition of a lane's deliveries of a message's ordering key, from this message on.

    The topic and the key are known before the first row is read, so the index has the rows in their order: with a join
    with the first message, PostgreSQL read and sorted all messages of the key for each page.
    """
    # A CROSS JOIN keeps the order of the tables, and a subquery with OFFSET can only be nested, as above.
    deliveries = (
        "LATERAL (SELECT * FROM deliveries_delivery"
        " WHERE subscription_id = %s AND region = %s AND message_id = m.id OFFSET 0) d WHERE m.id >= %s"
        if is_postgresql()
        else "deliveries_delivery d"
        " WHERE d.subscription_id = %s AND d.region = %s AND d.message_id = m.id AND m.id >= %s"
    )
    first = "FROM deliveries_message WHERE id = %s"
    return (
        f"deliveries_message m CROSS JOIN {deliveries} AND m.topic_id = (SELECT topic_id {first})"
        f" AND m.ordering_key = (SELECT ordering_key {first}) AND m.ordering_key > ''"
    )


def count_of_key(subscription_id: int, region: str, first_id: int, *, limit: int) -> int:
    """Return how many deliveries of a lane have a message's ordering key, from this message on, up to `limit`."""
    [[count]] = fetch_rows(
        f"SELECT count(*) FROM (SELECT 1 FROM {_rows_of_key()} LIMIT %s) of_key",
        [subscription_id, region, *[first_id] * 3, limit],
    )
    return int(count)


def first_of_keys(subscription_id: int, region: str, from_id: int, *, after: str, limit: int) -> list[tuple[str, int]]:
    """Return ordering keys of a lane's topic, those that come `after` one in their order, each with its first message.

    Messages before the id `from_id` don't count. An index has all of it.
    """
    topic = (
        "SELECT m.topic_id FROM deliveries_delivery d JOIN deliveries_message m ON m.id = d.message_id"
        " WHERE d.subscription_id = %s AND d.region = %s AND d.message_id >= %s ORDER BY d.message_id LIMIT 1"
    )
    return fetch_rows(
        f"SELECT ordering_key, min(id) FROM deliveries_message WHERE topic_id = ({topic}) AND ordering_key > ''"
        " AND ordering_key > %s AND id >= %s GROUP BY ordering_key ORDER BY ordering_key LIMIT %s",
        [subscription_id, region, from_id, after, from_id, limit],
    )


def ordering_keys(message_ids: Sequence[int]) -> dict[int, str]:
    """Return the ordering key of each message that exists, "" for none."""
    keys: dict[int, str] = {}
    for condition, ids in among_each("id", message_ids):
        keys.update(fetch_rows(f"SELECT id, ordering_key FROM deliveries_message WHERE {condition}", ids))
    return keys


def payload_sizes(message_ids: Sequence[int]) -> dict[int, int]:
    """Return the bytes of data and attributes of each message that exists, without reading its data."""
    sizes: dict[int, int] = {}
    for condition, ids in among_each("id", message_ids):
        query = f"SELECT id, {length_function()}(data) + length(attributes) FROM deliveries_message WHERE {condition}"
        sizes.update(fetch_rows(query, ids))
    return sizes
