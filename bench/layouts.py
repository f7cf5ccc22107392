"""How messages and deliveries lie in PostgreSQL: in plain tables, or in partitions, which PushHub doesn't have.

`python -m bench.layouts` measures what PostgreSQL's processes take for PushHub's own statements in each layout: one
connection publishes batches of 100, reads pages of 500, settles 100 deliveries at a time and sweeps the messages, and
VACUUM follows, as autovacuum is off. It counts CPU and not time, so other programs matter little. The figures go to
bench/results/layouts.json, from which `python -m bench.scale` writes docs/scale.md.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from itertools import product
from statistics import mean

from bench import machine
from bench.__main__ import prepare_django
from bench.capacity import database_rows, postmaster
from bench.message import ATTRIBUTES, HELLO
from bench.postgresql import postgresql
from bench.processes import ROOT, BenchError, family, say, used_seconds

RESULTS = ROOT / "bench" / "results" / "layouts.json"
#: The layouts that are compared.
LAYOUTS = ("plain", "hash:16", "time:2")
#: Messages of a publish, rows of a page, deliveries of a settle, and messages of a range of the sweep.
BATCH, PAGE, SETTLED, RANGE = 100, 500, 100, 2_000
#: Subscriptions with a topic each, and a further one whose messages wait: it gets every hundredth.
LANES, AWAY = 16, 99
ROUNDS = 2
TABLES = ("deliveries_message", "deliveries_delivery")

#: How many of the next partitions by time exist ahead.
AHEAD = 2
#: As the sweep of PushHub: a younger message may belong to a publish that has not committed its deliveries yet.
GRACE_SECONDS = 5
Step = Callable[[], None]
Figures = dict[str, float]


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
        for table in TABLES:
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
        self._next = max(self._next, int(now) // self._seconds)
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


class Traffic:
    """PushHub's statements for messages that pass through the database."""

    def __init__(self, step: Step, *, is_behind: bool, sweeps: bool) -> None:
        from deliveries.rules.ids import MessageIds

        self._step, self._is_behind, self._sweeps = step, is_behind, sweeps
        self._ids = MessageIds(node=1)
        self._from_ids = dict.fromkeys(range(LANES), 0)
        self._swept = 0

    def pass_through(self, messages: int) -> None:
        """Publish, page and settle so many messages, a page for each lane at a time."""
        for _ in range(messages // (LANES * PAGE)):
            for number in range(LANES * PAGE // BATCH):
                self._publish(number % LANES, BATCH)
            if self._is_behind:
                self._publish(AWAY, LANES * PAGE // 100)
            self._page_and_settle()
            self._sweep()
            self._step()

    def _publish(self, lane: int, count: int) -> None:
        from deliveries.store import statements

        ids = self._ids.take(count, now_ms=time.time_ns() // 1_000_000)
        attributes = json.dumps(ATTRIBUTES)
        statements.insert_messages_with(
            [(each, lane, "local", HELLO, attributes, "") for each in ids],
            [(each, lane, "local", 0, "") for each in ids],
        )

    def _page_and_settle(self) -> None:
        from deliveries.store import statements

        settled = []
        for lane in range(LANES):
            [page] = statements.read_pages([statements.PageRange(lane, "local", self._from_ids[lane], PAGE, 1_000_000)])
            if len(page) != PAGE:
                raise BenchError(f"a page has {len(page)} rows")
            self._from_ids[lane] = page[-1].message_id + 1
            settled += [statements.Settled(lane, "local", row.message_id, 0) for row in page]
        for start in range(0, len(settled), SETTLED):
            # Of all lanes, as the push workers' results come.
            statements.delete_settled(settled[start // SETTLED :: len(settled) // SETTLED])

    def _sweep(self) -> None:
        from deliveries.store import messagerows
        from deliveries.store.statements import LAST_ID

        while self._sweeps:
            to_id = messagerows.messages_range_end(after_id=self._swept, before_id=LAST_ID, size=RANGE)
            if to_id is None:
                return
            messagerows.topics_in_range(after_id=self._swept, to_id=to_id)
            messagerows.delete_settled_messages(after_id=self._swept, to_id=to_id, kept_from={})
            self._swept = to_id


def measure(layout: str, *, messages: int, behind: int) -> Figures:
    """Return µs of PostgreSQL's CPU a message for the statements and for VACUUM, and MB and dead rows before it.

    `behind` messages wait for a subscription meanwhile, which gets one more in a hundred.
    """
    from bench.consolerows import insert_waiting

    for table in TABLES:
        _execute(f"DROP TABLE {table}", f"CREATE TABLE {table} (LIKE empty_{table} INCLUDING ALL)")
    _execute("DROP SEQUENCE IF EXISTS delivery_ids")
    step = lay_out(layout, "")
    traffic = Traffic(step, is_behind=bool(behind), sweeps=not layout.startswith("time"))
    if behind:
        insert_waiting(behind, topic=AWAY, deliveries=[f"{AWAY}, 'local', 0, NULL, ''"])
    _execute("VACUUM ANALYZE", "CHECKPOINT")
    step()  # the time above may have taken it out of its partitions
    before, wal = _cpu_seconds(), _wal_bytes()
    traffic.pass_through(messages)
    passed, size = _cpu_seconds(), database_rows(_SIZE)[0]
    _execute("VACUUM deliveries_message", "VACUUM deliveries_delivery")
    vacuumed = _cpu_seconds()
    return {
        "statements_us": round((passed - before) * 1e6 / messages, 1),
        "vacuum_us": round((vacuumed - passed) * 1e6 / messages, 1),
        "wal_bytes": round((_wal_bytes() - wal) / messages),
        "mb": round(float(size[0]), 1),
    }


_SIZE = """
SELECT sum(pg_total_relation_size(relid)) / 1e6 FROM pg_stat_user_tables
WHERE relname ~ '^deliveries_(message|delivery)'
"""


def _cpu_seconds() -> float:
    return used_seconds(*family(postmaster()))


def _wal_bytes() -> float:
    return float(database_rows("SELECT pg_current_wal_lsn() - '0/0'")[0][0])


def main() -> None:
    from django.core.management import call_command

    parser = argparse.ArgumentParser(
        prog="python -m bench.layouts", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--messages", type=int, default=160_000, help="so many in each round (default: 160000)")
    parser.add_argument("--behind", type=int, default=400_000, help="so many wait meanwhile (default: 400000)")
    parser.add_argument("--quick", action="store_true", help="small counts, to try the harness: writes no results")
    arguments = parser.parse_args()
    messages = LANES * PAGE if arguments.quick else arguments.messages
    behind = 1000 if arguments.quick else arguments.behind
    moment = machine.moment()
    with postgresql() as url, tempfile.TemporaryDirectory(prefix="pushhub-bench-") as folder:
        os.environ["PUSHHUB_DATABASE_URL"] = url
        prepare_django(folder, on_postgresql=True)
        call_command("migrate", verbosity=0)
        _execute("ALTER SYSTEM SET autovacuum = off", "SELECT pg_reload_conf()")
        _execute(*(f"CREATE TABLE empty_{table} (LIKE {table} INCLUDING ALL)" for table in TABLES))
        rounds: dict[str, list[Figures]] = defaultdict(list)
        for number in range(1 if arguments.quick else ROUNDS):
            for waiting, layout in product((0, behind), LAYOUTS):
                name = f"{layout}, {waiting:,} behind" if waiting else layout
                rounds[name].append(measure(layout, messages=messages, behind=waiting))
                say(f"  {number + 1} {name}: {rounds[name][-1]}")
    layouts = {name: {key: mean(row[key] for row in rows) for key in rows[0]} for name, rows in rounds.items()}
    print(json.dumps(layouts, indent=1))
    if not arguments.quick:
        RESULTS.write_text(json.dumps({**moment, "messages": messages, "layouts": layouts}, indent=1) + "\n")


if __name__ == "__main__":
    main()
