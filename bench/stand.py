"""What a benchmark runs on: Redis, database, endpoint and PushHub's processes, all of its own and on loopback."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
HELLO = b"Hello Cloud Pub/Sub! Here is my message!"
TICKS = os.sysconf("SC_CLK_TCK")


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def wait_until(condition: Callable[[], Any], *, seconds: float, what: str) -> float:
    """Wait for a condition; returns how long that took, and ends the benchmark when it takes too long."""
    started = time.monotonic()
    while not condition():
        if time.monotonic() - started > seconds:
            raise SystemExit(f"bench: {what} took more than {seconds:.0f} s")
        time.sleep(0.02)
    return time.monotonic() - started


def cpu_seconds(pid: int) -> float:
    """CPU of a process and the children it has waited for."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / TICKS


def rss_mb(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


@contextmanager
def process(
    command: list[str], *, env: dict[str, str] | None = None, cwd: Path = ROOT
) -> Iterator[subprocess.Popen[Any]]:
    """A process that is stopped at the end, gently at first."""
    with tempfile.TemporaryFile() as log:
        started = subprocess.Popen(command, env=env, cwd=cwd, stdout=log, stderr=subprocess.STDOUT)
        try:
            yield started
        finally:
            started.terminate()
            try:
                started.wait(timeout=20)
            except subprocess.TimeoutExpired:
                started.kill()
                started.wait()


def needed(program: str) -> str:
    found = shutil.which(program) or shutil.which(program, path="/usr/sbin:/usr/local/sbin")
    if found is None:
        raise SystemExit(f"bench: {program} is not installed (Debian: apt-get install {program})")
    return found


@contextmanager
def nginx(folder: Path, *, port: int) -> Iterator[str]:
    """An endpoint that answers 204 to everything; yields its URL."""
    config = folder / "nginx.conf"
    config.write_text(
        f"""worker_processes 1; daemon off; pid {folder}/nginx.pid; error_log {folder}/nginx.log;
        events {{ worker_connections 16000; }}
        http {{ access_log off; keepalive_requests 1000000000; keepalive_timeout 300;
          client_body_temp_path {folder}/body; proxy_temp_path {folder}/p; fastcgi_temp_path {folder}/f;
          uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
          server {{ listen 127.0.0.1:{port} backlog=8192; location / {{ return 204; }} }} }}"""
    )
    with process([needed("nginx"), "-c", str(config), "-e", f"{folder}/nginx.log"]):
        wait_until(lambda: _answers(port), seconds=10, what="nginx")
        yield f"http://127.0.0.1:{port}/push"


def _answers(port: int) -> bool:
    import socket

    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def environment(folder: Path, *, redis_url: str, http_port: int, database_url: str = "") -> dict[str, str]:
    """The environment of PushHub's processes."""
    given = {
        "PUSHHUB_DATA": str(folder),
        "PUSHHUB_DEVELOPMENT": "1",
        "PUSHHUB_ALLOW_HTTP": "1",
        "PUSHHUB_ALLOW_PRIVATE": "1",
        "PUSHHUB_ANONYMOUS": "user:developer@localhost",
        "PUSHHUB_REDIS_URL": redis_url,
        "PUSHHUB_HTTP": f"127.0.0.1:{http_port}",
        "PUSHHUB_LOG_LEVEL": "WARNING",
        "DJANGO_SETTINGS_MODULE": "pushhub.settings",
        "PYTHONWARNINGS": "ignore",
    }
    if database_url:
        given["PUSHHUB_DATABASE_URL"] = database_url
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PUSHHUB_")}
    return {**clean, **given}


def worker_command(name: str = "bench") -> list[str]:
    """One push worker, as `make up` starts it."""
    options = ["-Q", "deliveries.local", "-P", "solo", "-n", f"{name}@bench", "--events", "--without-mingle"]
    return [sys.executable, "-m", "celery", "-A", "pushhub", "worker", *options]


def maintenance_command(folder: Path) -> list[str]:
    options = ["-Q", "maintenance", "-P", "solo", "-n", "maintenance@bench", "-B", "-s", str(folder / "beat")]
    return [sys.executable, "-m", "celery", "-A", "pushhub", "worker", *options]
