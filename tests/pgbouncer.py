"""A PgBouncer of a test's own, in front of a PostgreSQL."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

from tests.ports import wait_for
from tests.programs import pgbouncer
from tests.with_postgresql import UNPRIVILEGED, PostgresqlServer

#: Each transaction gets the connection that has been idle for the longest: what is of a session is soon found missing.
CONFIGURATION = """
[databases]
* = host={server} user=pushhub
[pgbouncer]
pool_mode = {mode}
unix_socket_dir = {folder}
listen_port = 5432
auth_type = any
logfile = {folder}/log
pidfile = {folder}/pid
max_client_conn = 200
default_pool_size = 20
min_pool_size = 3
server_round_robin = 1
"""


@contextmanager
def in_front_of(server: Path, folder: Path, *, mode: str) -> Iterator[str]:
    """Run PgBouncer with its socket in `folder`; yield the address of the database behind it.

    `server` is the folder of PostgreSQL's socket.
    """
    program = pgbouncer()
    assert program is not None, "PgBouncer is not installed"
    folder.mkdir(exist_ok=True)
    file = folder / "pgbouncer.ini"
    file.write_text(CONFIGURATION.format(server=server, folder=folder, mode=mode))
    folder.chmod(0o777)
    file.chmod(0o644)
    # It refuses to run as root too.
    user = UNPRIVILEGED if os.geteuid() == 0 else None
    with subprocess.Popen([program, "--quiet", str(file)], user=user, cwd="/") as process:

        def answers() -> bool:
            assert process.poll() is None, (folder / "log").read_text()
            try:
                psycopg.connect(host=str(folder), user="pushhub", dbname="postgres").close()
            except psycopg.OperationalError:
                return False
            return True

        try:
            wait_for(answers, what="PgBouncer")
            yield PostgresqlServer.url_at(folder)
        finally:
            process.terminate()
