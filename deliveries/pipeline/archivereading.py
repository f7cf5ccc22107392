"""Reads messages from the service's database where Spark's tasks run: no Django there, only a way to connect."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

#: Rows of one Arrow batch.
BATCH_ROWS = 5_000
SQLITE = "sqlite:///"
DELETED_TOPIC = ("_deleted-project_", "_deleted-topic_")
QUERY = (
    "SELECT id, topic_id, data, attributes, ordering_key FROM deliveries_message"
    " WHERE id > {0} AND id <= {0} ORDER BY id"
)


@dataclass(frozen=True, slots=True)
class Source:
    """How a task reaches the database, and what topics are called."""

    #: Holds a password where PostgreSQL asks for one, so it is not shown.
    database_url: str = field(repr=False)
    #: Project and full name, by primary key.
    topics: Mapping[int, tuple[str, str]]
    #: Milliseconds since 1970 of the ids' epoch, and how far the time is shifted (rules/ids.py).
    epoch_ms: int
    time_shift: int


def read_ranges(batches: Iterator[pa.RecordBatch], source: Source) -> Iterator[pa.RecordBatch]:
    """The messages of ranges that are given as rows of (after, to)."""
    for batch in batches:
        for row in batch.to_pylist():
            yield from _read_range(source, row["after"], row["to"])


def _read_range(source: Source, after: int, to: int) -> Iterator[pa.RecordBatch]:
    connection, mark = _connected(source)
    try:
        cursor = connection.cursor()
        cursor.execute(QUERY.format(mark), (after, to))
        while rows := cursor.fetchmany(BATCH_ROWS):
            yield _batch(source, rows)
    finally:
        connection.close()


def _connected(source: Source) -> tuple[Any, str]:
    """A connection that reads only, and its mark for parameters."""
    if source.database_url.startswith(SQLITE):
        import sqlite3

        path = source.database_url.removeprefix(SQLITE)  # quoted, as SQLite's own URIs are
        return sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=60), "?"
    import psycopg

    return psycopg.connect(source.database_url), "%s"


def _batch(source: Source, rows: list[Any]) -> pa.RecordBatch:
    import pyarrow as pa

    topics = [source.topics.get(row[1], DELETED_TOPIC) for row in rows]
    times = [((row[0] >> source.time_shift) + source.epoch_ms) * 1000 for row in rows]
    attributes = [list(json.loads(row[3]).items()) if row[3] else [] for row in rows]
    return pa.RecordBatch.from_arrays(
        [
            pa.array([project for project, _ in topics], pa.string()),
            pa.array([name for _, name in topics], pa.string()),
            pa.array([str(row[0]) for row in rows], pa.string()),
            pa.array(times, pa.timestamp("us", "UTC")),
            pa.array([bytes(row[2]) for row in rows], pa.binary()),
            pa.array(attributes, pa.map_(pa.string(), pa.string())),
            pa.array([row[4] for row in rows], pa.string()),
        ],
        names=["project", "topic", "message_id", "publish_time", "data", "attributes", "ordering_key"],
    )
