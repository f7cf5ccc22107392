"""Finds what a test leaves behind: processes, threads, open files, ports, temporary files, Redis keys, variables."""

from __future__ import annotations

import contextlib
import functools
import os
import tempfile
import threading
from socket import AF_INET, AF_INET6, SO_ACCEPTCONN, SOL_SOCKET, socket

import redis

#: These files are read twice for each of thousands of tests; plain strings are several times as fast as Path.
OWN = "/proc/self"
#: Django keeps its connection to the test database open, and SQLite keeps temporary files of its own beside it.
KEPT_OPEN = ("/test.sqlite3", "/etilqs_")


def holdings() -> dict[str, str]:
    """Return descriptions of everything that this process holds, each by a key that stays the same."""
    return {**_threads(), **_processes(), **_descriptors(), **_temporary_files()}


def since(before: dict[str, str], *, redis_url: str = "") -> list[str]:
    """Describe what this process holds now and did not hold before, and the keys in its Redis."""
    return [words for key, words in holdings().items() if key not in before] + _redis_keys(redis_url)


def variables() -> dict[str, str]:
    """Return PushHub's environment variables, without the one that a process sets when it first needs Java."""
    return {name: text for name, text in os.environ.items() if name.startswith("PUSHHUB_") and name != "PUSHHUB_JDK"}


def restore_variables(before: dict[str, str]) -> list[str]:
    """Give PushHub's environment variables their former values, and return the names of those that differed."""
    now = variables()
    differing = sorted(name for name in {*before, *now} if before.get(name) != now.get(name))
    for name in differing:
        os.environ.pop(name, None)
    os.environ.update({name: before[name] for name in differing if name in before})
    return differing


def _redis_keys(redis_url: str) -> list[str]:
    """Return the keys in Redis, which the fixture `redis_url` empties after each test."""
    if not redis_url:
        return []
    client = redis_client(redis_url)
    return [f"the Redis key {key!r}" for key in client.scan_iter()] if client.dbsize() else []


@functools.cache
def redis_client(url: str) -> redis.Redis:
    """Return this process's client of the tests' Redis: to connect takes longer than what it is used for."""
    return redis.Redis.from_url(url)


def _threads() -> dict[str, str]:
    """Return the threads, except those that py4j keeps for each of Spark's connections."""
    threads = [thread for thread in threading.enumerate() if not _target_module(thread).startswith("py4j")]
    return {f"thread {thread.ident}": f"thread {thread.name!r}" for thread in threads}


def _target_module(thread: threading.Thread) -> str:
    """Return the module of the function that a thread runs."""
    return str(getattr(getattr(thread, "_target", None), "__module__", ""))


def _processes() -> dict[str, str]:
    """Return the child processes. A zombie counts too, as nobody has waited for it."""
    processes = {}
    for task in _names(f"{OWN}/task"):
        for pid in _read(f"{OWN}/task/{task}/children").split():
            command = _read(f"/proc/{pid}/cmdline").replace("\0", " ").strip()
            processes[f"process {pid}"] = f"process {pid}: {command[:200] or 'ended, but nobody waited for it'}"
    return processes


def _descriptors() -> dict[str, str]:
    """Return the open files, and the sockets that listen on a TCP port."""
    descriptors = {}
    for descriptor in _names(f"{OWN}/fd"):
        try:
            target = os.readlink(f"{OWN}/fd/{descriptor}")  # noqa: PTH115
        except OSError:
            continue
        if target.startswith("/") and not target.startswith(("/dev/", "/proc/")) and not _is_kept_open(target):
            descriptors[f"file {descriptor} {target}"] = f"open file {target}"
        elif target.startswith("socket:[") and (port := _listening_port(int(descriptor))):
            descriptors[f"port {port} {target}"] = f"port {port}, still listened on"
    return descriptors


def _listening_port(descriptor: int) -> int:
    """Return the TCP port that a socket listens on, or 0. To read the ports in /proc takes milliseconds."""
    with contextlib.suppress(OSError), socket(fileno=os.dup(descriptor)) as other:
        if other.family in (AF_INET, AF_INET6) and other.getsockopt(SOL_SOCKET, SO_ACCEPTCONN):
            return int(other.getsockname()[1])
    return 0


def _temporary_files() -> dict[str, str]:
    folder = tempfile.gettempdir()
    names = [name for name in _names(folder) if not _is_kept_open(f"{folder}/{name}")]
    return {f"temporary {name}": f"temporary file {folder}/{name}" for name in names}


def _is_kept_open(path: str) -> bool:
    return any(name in path for name in KEPT_OPEN)


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)  # noqa: PTH208
    except OSError:
        return []


def _read(path: str) -> str:
    try:
        with open(path, errors="replace") as file:  # noqa: PTH123
            return file.read()
    except OSError:
        return ""
