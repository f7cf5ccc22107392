"""The check after each test reports everything that a test may leave behind, and nothing that existed before."""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis

from tests import leftovers


@contextmanager
def a_process() -> Iterator[str]:
    code = "print(flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdout.readline()  # a newly forked process has no command line yet
        yield f"process {process.pid}: {sys.executable} -c {code}"
        process.stdin.write(b"\n")


@contextmanager
def a_thread() -> Iterator[str]:
    end = threading.Event()
    thread = threading.Thread(target=end.wait, name="forgotten")
    thread.start()
    yield "thread 'forgotten'"
    end.set()
    thread.join()


@contextmanager
def an_open_file() -> Iterator[str]:
    with Path(__file__).open() as file:
        yield f"open file {file.name}"


@contextmanager
def a_port() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"port {server.getsockname()[1]}, still listened on"


@contextmanager
def a_temporary_file() -> Iterator[str]:
    path = Path(tempfile.mkdtemp())
    yield f"temporary file {path}"
    path.rmdir()


@pytest.mark.parametrize("thing", [a_process, a_thread, an_open_file, a_port, a_temporary_file])
def test_a_leftover_is_named_until_it_is_gone(thing: object) -> None:
    before = leftovers.holdings()
    with thing() as words:  # type: ignore[operator]
        assert words in leftovers.since(before)
    assert leftovers.since(before) == []


def test_a_key_in_redis_is_named(redis_url: str) -> None:
    with redis.Redis.from_url(redis_url) as client:
        client.set("forgotten", 1)
        assert "the Redis key b'forgotten'" in leftovers.since(leftovers.holdings(), redis_url=redis_url)


def test_changed_variables_are_named_and_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PUSHHUB_KEPT", "a")
    monkeypatch.setenv("PUSHHUB_GONE", "b")
    before = leftovers.variables()
    monkeypatch.setenv("PUSHHUB_KEPT", "c")
    monkeypatch.delenv("PUSHHUB_GONE")
    monkeypatch.setenv("PUSHHUB_NEW", "d")

    assert leftovers.restore_variables(before) == ["PUSHHUB_GONE", "PUSHHUB_KEPT", "PUSHHUB_NEW"]
    assert leftovers.variables() == before
