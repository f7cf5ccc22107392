"""Reads messages from the service's database in Spark's tasks, which have a database driver but no Django."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from deliveries.pipeline.archiving.columns import MESSAGE, arrow_schema
from deliveries.rules.ids import publish_time_ms
from pushhub.common.batches import gather

if TYPE_CHECKING:
    import pyarrow as pa

#: The most rows and bytes of an Arrow batch.
BATCH_ROWS = 5_000
BATCH_BYTES = 16 * 1024 * 1024
#: Rows that PostgreSQL sends at a time: a message may have 10 MB.
FETCH_ROWS = 100
SQLITE = "sqlite:///"
DELETED_TOPIC = ("_deleted-project_", "_deleted-topic_")
QUERY = (
    "SELECT m.id, m.topic_id, m.data, m.attributes, m.ordering_key FROM deliveries_message m"
    " JOIN deliveries_archivedmessage a ON a.message_id = m.id"
    " WHERE m.id > {0} AND m.id <= {0} AND a.write_id = {0} ORDER BY m.id"
)


@dataclass(frozen=True, slots=True)
class Source:
    """How a task reaches the database, and the names of the topics."""

    #: May hold the password of PostgreSQL, so it is not shown.
    database_url: str = field(repr=False)
    #: Project and full name, by primary key.
    topics: Mapping[int, tuple[str, str]]
    #: The write whose messages are read.
    write_id: int


def read_ranges(batches: Iterator[pa.RecordBatch], source: Source) -> Iterator[pa.RecordBatch]:
    """For `mapInArrow`: return the messages of a write. Each input row is a range of ids, (after, to)."""
    for batch in batches:
        for row in batch.to_pylist():
            cursor, mark = _cursor(source)
            try:
                cursor.execute(QUERY.format(mark), (row["after"], row["to"], source.write_id))
                yield from _batches(source, cursor)
            finally:
                cursor.connection.close()


def _cursor(source: Source) -> tuple[Any, str]:
    """Return a cursor with its own connection, which reads row by row, and its placeholder for parameters."""
    if source.database_url.startswith(SQLITE):
        import sqlite3

        path = source.database_url.removeprefix(SQLITE)  # quoted, as SQLite's own URIs are
        return sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=60).cursor(), "?"
    import psycopg

    # A cursor with a name is on the server. Without a name, psycopg would load the whole range before the first row.
    cursor = psycopg.connect(source.database_url).cursor("archive")
    cursor.itersize = FETCH_ROWS
    return cursor, "%s"


def _batches(source: Source, rows: Iterable[Any]) -> Iterator[pa.RecordBatch]:
    for some in gather(rows, most=BATCH_ROWS, size_of=lambda row: len(row[2]) + len(row[3]), size=BATCH_BYTES):
        yield _batch(source, some)


def _batch(source: Source, rows: list[Any]) -> pa.RecordBatch:
    import pyarrow as pa

    topics = [source.topics.get(row[1], DELETED_TOPIC) for row in rows]
    columns = {
        "project": [project for project, _ in topics],
        "topic": [name for _, name in topics],
        "message_id": [str(row[0]) for row in rows],
        "publish_time": [publish_time_ms(row[0]) * 1000 for row in rows],
        "data": [bytes(row[2]) for row in rows],
        "attributes": [list(json.loads(row[3]).items()) if row[3] else [] for row in rows],
        "ordering_key": [row[4] for row in rows],
    }
    return pa.RecordBatch.from_pydict(columns, schema=arrow_schema(MESSAGE))
