"""The sockets on which servers listen, and the limit of their open files."""

from __future__ import annotations

import resource
import socket
from collections.abc import Iterator

import pytest

from pushhub.common.servers import listen, raise_open_files


@pytest.fixture
def hard() -> Iterator[int]:
    """A limit as shells and containers have it; the hard limit."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, limits[1]))
    yield limits[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_the_limit_becomes_the_hard_limit(hard: int) -> None:
    assert raise_open_files() == hard
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)


@pytest.mark.parametrize(("soft", "most"), [(256, 10_240), (20_000, 20_000)])
def test_macos_calls_its_limit_infinite_and_takes_less(soft: int, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = [(soft, resource.RLIM_INFINITY)]

    def set_limit(_kind: int, wanted: tuple[int, int]) -> None:
        if wanted[0] == resource.RLIM_INFINITY:
            raise ValueError("current limit exceeds maximum limit")
        limits.append(wanted)

    monkeypatch.setattr(resource, "getrlimit", lambda _kind: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", set_limit)
    assert raise_open_files() == most
    assert limits[-1] == (most, resource.RLIM_INFINITY)


def test_a_server_of_all_addresses_takes_ipv4_too() -> None:
    with listen(("::", 0)) as server, socket.create_connection(("127.0.0.1", server.getsockname()[1]), timeout=60):
        connection, (host, *_) = server.accept()
        connection.close()
    assert host == "::ffff:127.0.0.1"
