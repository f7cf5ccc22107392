"""Each process of docker-compose.yml, without its container: with the environment and the command of the file."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import yaml

from tests.ports import free_port, wait_for
from tests.programs import postgresql_programs
from tests.settings import TEMPORARY
from tests.with_postgresql import FAST, PostgresqlServer
from tests.workers import database_url

ROOT = Path(__file__).parents[2]
PROCESSES = ("web", "grpc", "push", "maintenance", "flower")


@contextmanager
def running(command: list[str], environment: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(command, env=environment, cwd=ROOT)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(timeout=60)


def is_over_or_ready(process: subprocess.Popen[bytes], check: list[str], environment: dict[str, str]) -> bool:
    return process.poll() is not None or not subprocess.run(check, env=environment, cwd=ROOT, check=False).returncode


@pytest.mark.django_db(transaction=True)
@pytest.mark.any_database
def test_every_process_is_ready_with_the_environment_of_the_file(redis_url: str, tmp_path: Path) -> None:
    services: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))["services"]
    for name in ("secret_key", "postgres_password", "redis_password", "metrics_token", "spark_secret"):
        (tmp_path / name).write_text("0123456789abcdef" * 4)
    (tmp_path / "flower_login").write_text("admin:correct horse battery")
    ports = {name: free_port() for name in ("web", "grpc", "flower")}
    places = {
        "/run/secrets": str(tmp_path),
        "/journal": str(tmp_path / "journal"),
        "/archive": str(tmp_path / "archive"),
        "postgres://pushhub@postgres:5432/pushhub": database_url(),
        "${PUSHHUB_REDIS_URL:-redis://redis:6379/0}": redis_url,
        "${PUSHHUB_PUBLIC_URL:?the URL at which publishers and endpoints reach PushHub}": "https://pushhub.example.com",
        "web:8000": f"127.0.0.1:{ports['web']}",
    }
    # The image sets these.
    addresses = {
        "PUSHHUB_DATA": str(tmp_path),
        "PUSHHUB_HTTP": f"127.0.0.1:{ports['web']}",
        "PUSHHUB_GRPC": f"127.0.0.1:{ports['grpc']}",
        "PUSHHUB_FLOWER": f"127.0.0.1:{ports['flower']}",
    }
    own = {name: value for name, value in os.environ.items() if not name.startswith(("PUSHHUB_", "DJANGO_"))}
    processes, checks = [], []
    with ExitStack() as stack:
        for name in PROCESSES:
            environment = own | addresses
            for variable, value in services[name]["environment"].items():
                text = str(value)
                for place, here in places.items():
                    text = text.replace(place, here)
                environment[variable] = text
            # Neither the embedded Redis nor SQLite has a password.
            del environment["PUSHHUB_REDIS_PASSWORD_FILE"], environment["PUSHHUB_DATABASE_PASSWORD_FILE"]
            command = [sys.executable if word == "python" else word for word in services[name]["command"]]
            process = stack.enter_context(running(command, environment))
            processes.append(process)
            checks.append(partial(is_over_or_ready, process, [*command, "--check"], environment))
        for check in checks:
            wait_for(check, what="a process")
        assert [process.poll() for process in processes] == [None] * len(PROCESSES)


@pytest.mark.skipif(postgresql_programs() is None, reason="PostgreSQL is not installed")
def test_pushhub_is_no_superuser_of_its_database_and_nobody_is_one_by_a_password(tmp_path: Path) -> None:
    programs = postgresql_programs()
    assert programs is not None
    (password := tmp_path / "password").write_text("a b'c\n")
    script = (ROOT / "deploy" / "postgres.sql").read_text(encoding="utf-8")
    assert "/run/secrets/postgres_password" in script
    (tmp_path / "pushhub.sql").write_text(script.replace("/run/secrets/postgres_password", str(password)))
    with TemporaryDirectory(prefix="pushhub-compose-", dir=TEMPORARY, ignore_cleanup_errors=True) as name:
        server = PostgresqlServer(Path(name), bin_folder=programs, options=FAST, superuser="postgres")
        server.create()
        server.start()
        try:
            # As the image runs it
            psql = [programs / "psql", "--set=ON_ERROR_STOP=1", "--no-password", "--no-psqlrc", f"--host={name}"]
            subprocess.run([*psql, "--username=postgres", f"--file={tmp_path / 'pushhub.sql'}"], check=True)
            roles = server.execute("SELECT rolname, rolsuper, rolpassword FROM pg_authid WHERE rolcanlogin ORDER BY 1")
            assert [(role, is_superuser, bool(stored)) for role, is_superuser, stored in roles] == [
                ("postgres", True, False),
                ("pushhub", False, True),
            ]
            own = {"PUSHHUB_DATABASE_URL": server.url.removesuffix("postgres") + "pushhub", "PUSHHUB_SECRET_KEY": "x"}
            migrate = [sys.executable, "manage.py", "migrate", "--noinput", "--verbosity=0"]
            subprocess.run(migrate, env=os.environ | own, cwd=ROOT, check=True)
        finally:
            server.stop()
