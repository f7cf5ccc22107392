"""What the doctor finds in the database: version, tables, clock, connections, and a pooler in front of it."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

from django.conf import settings
from django.core import checks
from django.db import connection
from django.db.migrations.executor import MigrationExecutor

from pushhub.common.databases import SESSION_SETTINGS
from pushhub.doctor.finding import Finding, failed, judge_clock, ok, warning

#: PostgreSQL's own values of SESSION_SETTINGS.
NOT_SET = {"jit": "on", "idle_in_transaction_session_timeout": "0"}
#: From this share of PostgreSQL's connections on, a further worker may get none.
CONNECTIONS_SHARE = 0.8


def database() -> Iterator[Finding]:
    """Judge the database. Raises django.db.Error if it is away."""
    if settings.IS_SQLITE:
        yield ok("database", f"SQLite {sqlite3.sqlite_version} at {settings.DATABASES['default']['NAME']}")
    else:
        yield from _postgresql()
    yield from _tables()


def missing() -> Iterator[Finding]:
    """Say that there is no SQLite database, which a connection would create."""
    text = f"there is none yet at {settings.DATABASES['default']['NAME']}"
    yield failed("database", text, "Start PushHub, which creates it, or run `pushhub migrate`.")


def _tables() -> Iterator[Finding]:
    executor = MigrationExecutor(connection)
    plan = executor.migration_plan(executor.loader.graph.leaf_nodes())
    if plan:
        names = ", ".join(f"{migration.app_label}.{migration.name}" for migration, _ in plan[:3])
        text = f"{len(plan)} migrations are to come, such as {names}"
        yield failed("database", text, "Run `pushhub migrate`; the processes of the release before go on meanwhile.")
    else:
        yield ok("database", "its tables are those of this version")
        for message in checks.run_checks(tags=[checks.Tags.database], databases=["default"]):
            judge = failed if message.is_serious() else warning
            yield judge("database", message.msg, message.hint or "See docs/settings.md.")


def _postgresql() -> Iterator[Finding]:
    wrapper: Any = connection
    version = wrapper.pg_version
    where = f"{settings.DATABASES['default']['NAME']} at {settings.DATABASES['default']['HOST'] or 'a socket'}"
    yield ok("database", f"PostgreSQL {version // 10_000}.{version % 10_000}, {where}")
    with connection.cursor() as cursor:
        began = time.time()
        cursor.execute("SELECT extract(epoch FROM clock_timestamp())")
        middle = (began + time.time()) / 2
        yield judge_clock("clocks", "PostgreSQL", float(cursor.fetchone()[0]) - middle)
        cursor.execute(
            "SELECT current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int, "
            "(SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'), "
            "current_setting('synchronous_commit'), current_setting('fsync')"
        )
        most, used, commit, fsync = cursor.fetchone()
    text = f"{used} of {most} connections are in use"
    if used > most * CONNECTIONS_SHARE:
        yield warning("database", text, "Raise max_connections, or put PgBouncer in front.")
    else:
        yield ok("database", text)
    if commit == "off" or fsync == "off":
        text = f"synchronous_commit is {commit} and fsync is {fsync}: a crash of its machine loses messages"
        yield warning("database", text, "Set both to on.")
    yield from pooler()


def pooler() -> Iterator[Finding]:
    """Find out whether a pooler such as PgBouncer gives the server's connections to each transaction anew.

    Then a second client gets the server's process that the first has just used. In statement mode it refuses BEGIN.
    """
    with closing(connection.copy()) as first, closing(connection.copy()) as second:
        before = _process_of(first)
        try:
            second.ensure_connection()
            second.set_autocommit(False)
            other = _process_of(second)
        except Exception as error:
            if "statement pooling" in str(error):
                remedy = "Set pool_mode = transaction: PushHub needs transactions."
                yield failed("pooler", "PgBouncer is in statement mode", remedy)
                return
            raise
        after = _process_of(first)
        second.rollback()
        second.set_autocommit(True)
    if other == before or after != before:
        yield ok("pooler", "a pooler such as PgBouncer in transaction mode is in front of PostgreSQL, which works")
        yield from _session_settings()
    else:
        yield ok("pooler", "each connection has a process of PostgreSQL: no pooler, or one in session mode")


def _session_settings() -> Iterator[Finding]:
    """Judge with what sessions of PostgreSQL begin, as what a client sets is soon another client's."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT name, reset_val FROM pg_settings WHERE name = ANY(%s)", [[*SESSION_SETTINGS]])
        lacking = sorted(name for name, value in cursor.fetchall() if value == NOT_SET[name])
    if lacking:
        role = connection.settings_dict["USER"]
        commands = [f"ALTER ROLE {role} SET {name} = '{SESSION_SETTINGS[name]}';" for name in lacking]
        text = f"sessions begin without PushHub's {' and '.join(lacking)}, as a pooler in transaction mode loses them"
        yield warning("pooler", text, f"Run {' '.join(commands)} and restart the pooler.")


def _process_of(of: Any) -> int:
    with of.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        return int(cursor.fetchone()[0])
