"""Processes of a benchmark: started on loopback, measured from /proc, and always stopped."""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.preloaded import PreloadedProcess

ROOT = Path(__file__).parent.parent
PAGE_BYTES = resource.getpagesize()
TICKS = os.sysconf("SC_CLK_TCK")
#: How long a bench may take to end the processes that it has started.
END_SECONDS = 60
#: Debian's names of the packages that bring a program.
PACKAGES = {"h2load": "nghttp2-client", "nginx": "nginx-light", "wrk": "wrk"}


class BenchError(Exception):
    """A row could not be measured; the text has the reason."""


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def wait_until(condition: Callable[[], Any], *, seconds: float, what: str, every: float = 0.02) -> float:
    """Wait for a condition, and return the seconds until it was true."""
    started = time.monotonic()
    while not condition():
        if time.monotonic() - started > seconds:
            raise BenchError(f"{what} took more than {seconds:.0f} s")
        time.sleep(every)
    return time.monotonic() - started


def raise_file_limit() -> int:
    """Raise the limit of open files of this process and its children to the hard limit, and return it."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def clean_environment() -> dict[str, str]:
    """Return this process' environment without PushHub's and Django's variables, which would make Celery slower."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("PUSHHUB_") and name != "DJANGO_SETTINGS_MODULE"
    }


def needed(program: str) -> str:
    path = shutil.which(program) or shutil.which(program, path="/usr/sbin:/usr/local/sbin")
    if path is None:
        raise BenchError(f"{program} is not installed (Debian: apt-get install {PACKAGES[program]})")
    return path


def cpu_seconds(*pids: int) -> float:
    """Return the seconds of CPU of the living threads of processes, in µs resolution if the kernel has it."""
    return sum(_thread_seconds(task) for pid in pids for task in Path(f"/proc/{pid}/task").iterdir())


def _thread_seconds(task: Path) -> float:
    try:
        return int((task / "schedstat").read_text().split()[0]) / 1e9
    except FileNotFoundError:  # the thread has ended
        return 0.0


def family(pid: int) -> list[int]:
    """Return the ids of a process and its living descendants."""
    children = [
        child for listing in Path(f"/proc/{pid}/task").glob("*/children") for child in listing.read_text().split()
    ]
    return [pid, *(member for child in children for member in family(int(child)))]


def used_seconds(*pids: int) -> float:
    """Return the seconds of CPU of processes, with those of threads and children that have ended, in hundredths."""
    ticks = 0
    for pid in pids:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended, so its parent has them
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += sum(map(int, fields[11:15]))
    return ticks / TICKS


def pss_mb(pid: int) -> float:
    """Return a process' share of memory, 0 once it has ended. A page that several processes share counts in parts."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    match = re.search(r"^Pss:\s+(\d+) kB", text, re.MULTILINE)
    return int(match[1]) / 1000 if match else 0.0


def rss_mb(*pids: int) -> float:
    return sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids) * PAGE_BYTES / 1e6


#: Whether Python modules are forked from a process that has imported PushHub. Their memory and their start aren't real
#: then, and a second of CPU is saved for each.
_are_forked = False
Started = subprocess.Popen[Any] | PreloadedProcess


def fork_modules() -> None:
    """Have `process` fork Python's modules from now on."""
    global _are_forked
    _are_forked = True


@contextmanager
def process(command: list[str], *, env: dict[str, str] | None = None, is_new: bool = False) -> Iterator[Started]:
    """A process in a group of its own; the group is ended with the block, gently at first.

    What it printed is shown when the block fails. With `is_new` it is never forked.
    """
    env = dict(os.environ) if env is None else env
    with tempfile.NamedTemporaryFile() as log:
        started: Started
        is_module = command[:2] == [sys.executable, "-m"] and "DJANGO_SETTINGS_MODULE" in env
        if _are_forked and is_module and not is_new:
            started = PreloadedProcess(*command[2:], first="import os; os.setsid()", environment=env, log=log.name)
        else:
            started = subprocess.Popen(
                command, env=env, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )
        try:
            yield started
        except Exception:
            log.seek(0)
            printed = log.read().decode(errors="replace")[-2000:]
            say(f"--- the last of what `{' '.join(command)[:120]}` printed\n{printed}")
            raise
        finally:
            started.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                started.wait(timeout=25)
            # Prefork children and web workers outlive a parent that had to be killed.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(started.pid, signal.SIGKILL)
            started.wait(timeout=10)


def run_to_end(
    command: Sequence[str], *, seconds: float, cwd: Path = ROOT, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run a command that has to end processes of its own, in a session of its own, so that Ctrl-C doesn't reach it.

    If the time is over or this process is interrupted, the command is asked to end once, and waited for. Raises
    TimeoutExpired. `options` are those of Popen.
    """
    with subprocess.Popen(command, cwd=cwd, text=True, start_new_session=True, **options) as started:
        try:
            out, err = started.communicate(timeout=seconds)
        finally:
            started.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                started.wait(timeout=END_SECONDS)
            started.kill()
    return subprocess.CompletedProcess(command, started.returncode, out, err)


def answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


class Nginx:
    """An endpoint that answers every request with 204 and counts them."""

    def __init__(self, port: int, pid: int) -> None:
        self.url = f"http://127.0.0.1:{port}/push"
        self.pid = pid
        self._status = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        self._asked = 0

    def received(self) -> int:
        """Return the number of requests so far, without those of this method."""
        self._status.request("GET", "/status")
        text = self._status.getresponse().read().decode()
        self._asked += 1
        return int(text.splitlines()[2].split()[2]) - self._asked


@contextmanager
def nginx(port: int) -> Iterator[Nginx]:
    with tempfile.TemporaryDirectory(prefix="pushhub-bench-nginx-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        config = folder / "nginx.conf"
        temporary = " ".join(f"{kind}_temp_path {folder};" for kind in TEMPORARY)
        config.write_text(NGINX.format(folder=folder, port=port, temporary=temporary))
        with process([needed("nginx"), "-c", str(config), "-e", f"{folder}/nginx.log"]) as started:
            wait_until(lambda: started.poll() is not None or answers(port), seconds=10, what="nginx")
            if started.poll() is not None:
                raise BenchError("nginx did not start")
            yield Nginx(port, started.pid)


TEMPORARY = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
NGINX = """
worker_processes 1; daemon off; pid {folder}/nginx.pid; error_log {folder}/nginx.log;
events {{ worker_connections 16000; }}
http {{
  access_log off; keepalive_requests 1000000000; keepalive_timeout 300; client_max_body_size 0; {temporary}
  server {{
    listen 127.0.0.1:{port} backlog=8192;
    location / {{ return 204; }}
    location = /status {{ stub_status; }}
  }}
}}
"""
