"""A temporary PostgreSQL for one row. Unlike the one of the tests it is durable: a commit waits for the disk."""

from __future__ import annotations

import os
import pwd
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote, urlsplit

from bench.processes import BenchError
from tests.pgbouncer import in_front_of
from tests.programs import postgresql_programs
from tests.with_postgresql import UNPRIVILEGED, PostgresqlServer, as_server


@contextmanager
def postgresql(*, pooled: bool = False) -> Iterator[str]:
    """Yield its URL, or with `pooled` that of a PgBouncer in transaction mode in front of it.

    It listens on a UNIX socket only and has the default settings. Its log is beside its data directory.
    """
    bin_folder = postgresql_programs()
    if bin_folder is None:
        raise BenchError("PostgreSQL is not installed (Debian: apt-get install postgresql)")
    with tempfile.TemporaryDirectory(prefix="pushhub-bench-postgresql-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        if os.geteuid() == 0:
            os.chown(folder, pwd.getpwnam(UNPRIVILEGED).pw_uid, -1)
        data = f"--pgdata={folder / 'data'}"
        as_server([str(bin_folder / "initdb"), data, "--auth=trust", "--username=pushhub", "--encoding=UTF8"])
        pg_ctl = [str(bin_folder / "pg_ctl"), data, f"--log={folder / 'log'}", "--wait"]
        as_server([*pg_ctl, "start", f"--options=-c listen_addresses= -c unix_socket_directories={folder}"])
        try:
            if pooled:
                with in_front_of(folder, folder / "pooler", mode="transaction") as url:
                    yield url
            else:
                yield PostgresqlServer.url_at(folder)
        finally:
            as_server([*pg_ctl, "stop", "--mode=immediate"])


@contextmanager
def standby_of(url: str) -> Iterator[str]:
    """Yield the URL of a hot standby of that server."""
    bin_folder = postgresql_programs()
    assert bin_folder is not None
    folder = Path(unquote(urlsplit(url).netloc.rpartition("@")[2]))
    primary = PostgresqlServer(folder, bin_folder=bin_folder, options="")
    with tempfile.TemporaryDirectory(prefix="pushhub-bench-standby-", ignore_cleanup_errors=True) as name:
        standby = primary.create_standby(Path(name))
        standby.start()
        try:
            yield standby.url
        finally:
            standby.stop()
