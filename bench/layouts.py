"""How messages and deliveries lie in PostgreSQL: in plain tables, or in partitions, which PushHub doesn't have."""

from __future__ import annotations

import time
from collections.abc import Callable

from bench.capacity import database_rows
from bench.processes import BenchError

#: How many of the next partitions by time exist ahead.
AHEAD = 2
#: As the sweep of PushHub: a younger message may belong to a publish that has not committed its deliveries yet.
GRACE_SECONDS = 5
Step = Callable[[], None]


def lay_out(name: str, storage: str) -> Step:
    """Give the empty tables a layout and storage parameters; return what has to run each second.

    `hash:N` makes N partitions of deliveries by the hash of their subscription. `time:SECONDS` makes a partition of
    messages for each so many seconds; its step, which replaces PushHub's sweep of messages, creates the next ones and
    drops each whose messages are all settled.
    """
    kind, _, number = name.partition(":")
    step: Step = _rest
    if kind == "hash":
        _hash_deliveries(int(number))
    elif kind == "time":
        step = MessagesByTime(int(number))
        step()
    elif kind != "plain":
        raise BenchError(f"there is no layout {name}")
    if storage:
        for table in ("deliveries_message", "deliveries_delivery"):
            children = database_rows(
                f"SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = '{table}'::regclass"
            )
            for leaf in [child for (child,) in children] or [table]:
                _execute(f"ALTER TABLE {leaf} SET ({storage})")
    return step


def _rest() -> None:
    """What plain tables need."""


def _execute(*statements: str) -> None:
    from django.db import connection

    with connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


def _hash_deliveries(count: int) -> None:
    """The primary key has to hold the subscription. Otherwise the same columns and indexes."""
    _execute(
        "ALTER TABLE deliveries_delivery RENAME TO plain_delivery",
        "CREATE SEQUENCE delivery_ids",
        "CREATE TABLE deliveries_delivery (LIKE plain_delivery INCLUDING DEFAULTS) PARTITION BY HASH (subscription_id)",
        "ALTER TABLE deliveries_delivery ALTER id SET DEFAULT nextval('delivery_ids')",
        "DROP TABLE plain_delivery",
        "ALTER TABLE deliveries_delivery ADD PRIMARY KEY (id, subscription_id)",
        "CREATE INDEX ON deliveries_delivery (subscription_id, region, message_id)",
        "CREATE INDEX ON deliveries_delivery (message_id)",
        *(
            f"CREATE TABLE deliveries_delivery_{number} PARTITION OF deliveries_delivery"
            f" FOR VALUES WITH (MODULUS {count}, REMAINDER {number})"
            for number in range(count)
        ),
    )


class MessagesByTime:
    """Partitions of the messages by their id, which begins with the publish time."""

    def __init__(self, seconds: int) -> None:
        self._seconds = seconds
        self._next = int(time.time()) // seconds
        self._live: list[int] = []
        _execute(
            "ALTER TABLE deliveries_message RENAME TO plain_message",
            "CREATE TABLE deliveries_message (LIKE plain_message INCLUDING DEFAULTS) PARTITION BY RANGE (id)",
            "DROP TABLE plain_message",
            "ALTER TABLE deliveries_message ADD PRIMARY KEY (id)",
            "CREATE INDEX ON deliveries_message (topic_id, id)",
            "CREATE INDEX ON deliveries_message (topic_id, ordering_key, id) WHERE ordering_key > ''",
            f"CREATE TABLE deliveries_message_older PARTITION OF deliveries_message FOR VALUES FROM (MINVALUE)"
            f" TO ({self._first_id(self._next)})",
        )

    def __call__(self) -> None:
        now = time.time()
        while self._next <= now / self._seconds + AHEAD:
            _execute(
                f"CREATE TABLE deliveries_message_{self._next} PARTITION OF deliveries_message"
                f" FOR VALUES FROM ({self._first_id(self._next)}) TO ({self._first_id(self._next + 1)})"
            )
            self._live.append(self._next)
            self._next += 1
        for number in [number for number in self._live if (number + 1) * self._seconds < now - GRACE_SECONDS]:
            owed = (
                "SELECT 1 FROM deliveries_delivery"
                f" WHERE message_id >= {self._first_id(number)} AND message_id < {self._first_id(number + 1)} LIMIT 1"
            )
            if not database_rows(owed):
                _execute(f"DROP TABLE deliveries_message_{number}")
                self._live.remove(number)

    def _first_id(self, number: int) -> int:
        from deliveries.rules.ids import first_id_at

        return first_id_at(number * self._seconds * 1000)
