"""The worker processes of the web server."""

from __future__ import annotations

import socket

import psutil
import pytest
import requests

from pushhub.common.servers import listen
from pushhub.runtime.webserver import Workers
from tests.ownprocess import is_alive
from tests.ports import wait_for
from tests.webservers import WebServer


def two_workers(parent: psutil.Process) -> set[psutil.Process]:
    """Return the workers, once there are two."""
    alive = set(filter(is_alive, parent.children()))
    return alive if len(alive) == 2 else set()


def test_workers_are_forked_replaced_and_end_with_their_parent(redis_url: str) -> None:
    with WebServer(redis_url, PUSHHUB_WEB_WORKERS="2") as server:
        parent = psutil.Process(server.process.pid)
        first = wait_for(lambda: two_workers(parent), what="two workers")
        assert {tuple(worker.cmdline()) for worker in first} == {tuple(parent.cmdline())}, "a new Python was started"
        # When one is killed, another takes its place
        killed = first.pop()
        killed.kill()
        wait_for(lambda: not is_alive(killed), what="the end of a worker")
        last = wait_for(lambda: two_workers(parent), what="another worker")
        assert requests.get(f"{server.url}/healthz", timeout=60).status_code == 200
        # When the parent is killed, and can stop nobody any more, then its workers end
        server.process.kill()
        wait_for(lambda: not any(map(is_alive, last)), what="the end of the workers")
        assert "Traceback" not in server.log


def test_workers_do_what_is_left_to_their_end_when_the_server_is_stopped(redis_url: str) -> None:
    """The journal and the counters are closed then."""
    left = "import atexit; atexit.register(lambda: print('closed', flush=True))"
    with WebServer(redis_url, first=left, PUSHHUB_WEB_WORKERS="2") as server:
        parent = psutil.Process(server.process.pid)
        workers = wait_for(lambda: two_workers(parent), what="two workers")
        # A worker that has answered is past its start.
        assert requests.get(f"{server.url}/healthz", timeout=60).status_code == 200
        assert server.stop() == 0
        assert not any(map(is_alive, workers))
        assert server.log.count("closed") >= 2, "the parent's and a worker's"
        assert "Traceback" not in server.log


def test_a_server_that_stops_refuses_connections_at_once() -> None:
    """A proxy goes to the next server then. To a connection that nobody accepts any more it would send a request."""
    listening = listen(("127.0.0.1", 0))
    address = listening.getsockname()
    socket.create_connection(address).close()
    Workers(listening, 0)._stop_all()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address)
