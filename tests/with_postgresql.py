"""Runs a command on a throw-away PostgreSQL, by PUSHHUB_DATABASE_URL: python -m tests.with_postgresql COMMAND...

The cluster lives in a temporary folder, listens on a UNIX socket there and nowhere else, and is removed afterwards.
"""

from __future__ import annotations

import os
import pwd
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from types import FrameType
from typing import Any

import psycopg

from tests.background import wait_or_kill
from tests.programs import postgresql_programs

#: PostgreSQL refuses to run as root; if the tests run as root, it runs as the user of its package.
UNPRIVILEGED = "postgres"
#: The tests need no data after a crash of the machine, so writes need not wait for the disk. Compiling a query takes
#: longer than running it on a few rows.
FAST = "-c fsync=off -c full_page_writes=off -c autovacuum=off -c jit=off"


def as_server(command: list[str]) -> None:
    """Run one of the server's programs as a user that it accepts."""
    prefix = ["runuser", "-u", UNPRIVILEGED, "--"] if os.geteuid() == 0 else []
    subprocess.run([*prefix, *command], check=True, stdout=subprocess.DEVNULL, cwd="/")


class PostgresqlServer:
    """A server whose cluster is in `folder`. It listens on a UNIX socket there and nowhere else."""

    def __init__(self, folder: Path, *, bin_folder: Path, options: str, superuser: str = "pushhub") -> None:
        self.folder = folder
        self._superuser = superuser
        self.data = folder / "data"
        self._bin_folder = bin_folder
        self._more_options = options
        self._options = f"-c listen_addresses= -c unix_socket_directories={folder} -c max_connections=200 {options}"
        self.url = self.url_at(folder)

    @staticmethod
    def url_at(folder: Path) -> str:
        """Return the address of a server, or of a proxy in front of it, whose socket is in `folder`."""
        return f"postgres://pushhub@{str(folder).replace('/', '%2F')}/postgres"

    @property
    def pid(self) -> int:
        """The id of the server's first process."""
        return int((self.data / "postmaster.pid").read_text().split()[0])

    def create(self) -> None:
        if os.geteuid() == 0:
            os.chown(self.folder, pwd.getpwnam(UNPRIVILEGED).pw_uid, -1)
        initdb = ["--auth=trust", f"--username={self._superuser}", "--encoding=UTF8", "--no-sync", "--no-instructions"]
        as_server([str(self._bin_folder / "initdb"), f"--pgdata={self.data}", *initdb])

    def create_standby(self, folder: Path) -> PostgresqlServer:
        """Return a hot standby of this running server, whose cluster is in `folder`."""
        standby = PostgresqlServer(folder, bin_folder=self._bin_folder, options=self._more_options)
        if os.geteuid() == 0:
            os.chown(folder, pwd.getpwnam(UNPRIVILEGED).pw_uid, -1)
        source = [f"--host={self.folder}", "--username=pushhub", "--checkpoint=fast", "--no-sync"]
        copy = [f"--pgdata={standby.data}", "--write-recovery-conf", "--wal-method=stream"]
        as_server([str(self._bin_folder / "pg_basebackup"), *source, *copy])
        return standby

    def start(self) -> None:
        self._control(f"--log={self.folder / 'log'}", "start", f"--options={self._options}")

    def stop(self, *, mode: str = "immediate") -> None:
        self._control("stop", f"--mode={mode}")

    def execute(self, *statements: str) -> list[Any]:
        """Execute statements in one transaction, and return the rows of the last one."""
        with psycopg.connect(host=str(self.folder), user=self._superuser, dbname="postgres") as connection:
            *_, cursor = [connection.execute(statement.encode()) for statement in statements]
            return cursor.fetchall() if cursor.description else []

    def vacuum(self, table: str) -> None:
        """Remove the dead rows of a table, which no transaction may do."""
        with psycopg.connect(host=str(self.folder), user="pushhub", dbname="postgres", autocommit=True) as connection:
            connection.execute(f"VACUUM {table}".encode())

    def _control(self, *words: str) -> None:
        as_server([str(self._bin_folder / "pg_ctl"), f"--pgdata={self.data}", "--wait", *words])


def run(command: list[str], *, bin_folder: Path) -> int:
    """Run a command, and return its exit status. SIGTERM and Ctrl-C end it, and then the server."""
    with tempfile.TemporaryDirectory(prefix="pushhub-postgresql-", ignore_cleanup_errors=True) as name:
        server = PostgresqlServer(Path(name), bin_folder=bin_folder, options=FAST)
        server.create()
        server.start()
        try:
            return run_on_server(command, url=server.url)
        finally:
            server.stop()


def run_on_server(command: list[str], *, url: str) -> int:
    process = subprocess.Popen(command, env={**os.environ, "PUSHHUB_DATABASE_URL": url})

    def end(number: int, frame: FrameType | None) -> None:
        # Ctrl-C reaches the command as well as this process, SIGTERM only this one.
        process.send_signal(signal.SIGINT)
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, end)
    try:
        return process.wait()
    finally:
        wait_or_kill(process)


def main() -> int:
    bin_folder = postgresql_programs()
    if bin_folder:
        return run(sys.argv[1:], bin_folder=bin_folder)
    print("PostgreSQL is not installed", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
