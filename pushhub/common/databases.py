"""From the URL of a database to Django's settings of it. It knows neither Django's settings nor the environment."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import dj_database_url

from pushhub.common.errors import InvalidArgument, first_line

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper
    from django.db.models import QuerySet

#: The end of errors about URLs with passwords.
ESCAPED = "with %2F, %23 and %40 for /, # and @ in a password"
#: What SQLite takes for no file.
IN_MEMORY = ":memory:"
#: How SQLite says that a database lacks a table or a column, and the codes by which PostgreSQL says it in any language.
SQLITE_LACKS = ("no such table", "no such column")
POSTGRESQL_LACKS = ("42P01", "42703")
#: In the table of migrations, until a restore is through.
UNFINISHED_RESTORE = ("pushhub", "restore")
HALF_RESTORED = "The database has only a part of a backup's rows."
FINISH_RESTORE = "Run `pushhub restore FILE`, or the move, again to its end, or name another database."
SQLITE = "pushhub.common.sqlite"
#: Django's engines and those in their place.
ENGINES = {"django.db.backends.sqlite3": SQLITE, "django.db.backends.postgresql": "django.db.backends.postgresql"}
#: What each session of PostgreSQL needs. The just-in-time compiler takes seconds for a query that it believes to be
#: expensive, such as a viewer's search for messages, which ends in milliseconds because it reads a bounded number of
#: rows. A process that is frozen within a transaction loses it, with its locks; none that works waits so long.
SESSION_SETTINGS = {"jit": "off", "idle_in_transaction_session_timeout": "60s"}
#: Connections to a replica give up on a host that is gone, so that reads soon go to the primary (libpq's parameters).
REPLICA_TIMEOUTS = {
    "connect_timeout": 2,
    "tcp_user_timeout": 5000,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
}


def database_config(url: str, *, password: str = "", synchronous: str = "FULL") -> dict[str, Any]:
    """Return the settings; `synchronous` is SQLite's. Raises InvalidArgument for a URL that names no database."""
    try:
        config: dict[str, Any] = dict(dj_database_url.parse(url, conn_max_age=600))
    except ValueError:
        config = {}
    if config.get("NAME") == IN_MEMORY:
        raise InvalidArgument("each process would have a SQLite of its own in memory: give sqlite:////path")
    if config.get("ENGINE") not in ENGINES or not (config["NAME"] or "service" in config.get("OPTIONS", {})):
        raise InvalidArgument(f"give postgres://user:password@host:5432/name or sqlite:////path, {ESCAPED}")
    config |= {"ENGINE": ENGINES[config["ENGINE"]], "PASSWORD": config.get("PASSWORD") or password}
    if config["ENGINE"] == SQLITE:
        config["OPTIONS"] = {
            "init_command": f"PRAGMA journal_mode=WAL; PRAGMA synchronous={synchronous}; PRAGMA cache_size=-65536;",
            # A write transaction waits for the write lock at its beginning and can't fail half-way.
            "transaction_mode": "IMMEDIATE",
            "timeout": 30,
        }
    else:
        config["CONN_HEALTH_CHECKS"] = True
        # PgBouncer in transaction mode would ask another connection of PostgreSQL for the next rows of a cursor.
        config["DISABLE_SERVER_SIDE_CURSORS"] = True
    return config


def replica_config(url: str, *, password: str = "") -> dict[str, Any]:
    """Return the settings of a read replica. Raises InvalidArgument for a URL that names no PostgreSQL."""
    if not url.startswith(("postgres://", "postgresql://")):
        raise InvalidArgument("give postgres://user:password@host:5432/name")
    config = database_config(url, password=password)
    return config | {"OPTIONS": REPLICA_TIMEOUTS | config.get("OPTIONS", {})}


def lacks_migrations(error: BaseException) -> bool:
    """Return whether a database lacks what migrations make."""
    state = getattr(error.__cause__, "sqlstate", None)
    return state in POSTGRESQL_LACKS or first_line(error).startswith(SQLITE_LACKS)


def database_line(error: BaseException) -> str:
    """Return an error of the database in one line, for an operator."""
    hint = ": `migrate` makes what this version needs" if lacks_migrations(error) else ""
    return f"{first_line(error)}{hint}"


def is_half_restored(connection: BaseDatabaseWrapper) -> bool:
    """Return whether a restore was interrupted. Django need not be set up."""
    with connection.cursor() as cursor:
        if "django_migrations" not in connection.introspection.table_names(cursor):
            return False
        cursor.execute("SELECT 1 FROM django_migrations WHERE app = %s AND name = %s", UNFINISHED_RESTORE)
        return cursor.fetchone() is not None


def refusal_line(using: str) -> str:
    """Return in one line why the checks refuse a database; "" if they take it. Django has to be set up."""
    from django.core.checks import Tags, run_checks

    refusals = (found for found in run_checks(tags=[Tags.database], databases=[using]) if found.is_serious())
    return " ".join(f"{found.msg} {found.hint}" for found in refusals)


def iterate_rows(rows: QuerySet[Any, Any], names: Sequence[str], *, size: int = 5000) -> Iterator[Sequence[Any]]:
    """Yield the values of these fields of each row, in the order of the primary key, by queries of `size` rows each."""
    left = rows = rows.order_by("pk")
    while chunk := list(left.values_list("pk", *names)[:size]):
        yield from (values for _, *values in chunk)
        left = rows.filter(pk__gt=chunk[-1][0])
