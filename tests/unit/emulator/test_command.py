"""The emulator's command line, without the emulator."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from unittest import mock

import pytest

from pushhub.common.environment import parse_address
from pushhub.emulator import command, process


def start(look: Callable[[], None]) -> None:
    """Start an emulator that only looks."""

    class Starting:
        def __init__(self, *_: object, **__: object) -> None:
            pass

        def run(self) -> int:
            look()
            return 0

    with mock.patch.dict(os.environ), mock.patch.object(process, "Emulator", Starting):
        assert command.main(["--host-port=127.0.0.1:0"]) == 0


def test_its_free_ports_stay_taken_from_the_choice_until_the_servers_answer() -> None:
    taken = []

    def look() -> None:
        for name in ("PUSHHUB_GRPC", "PUSHHUB_HTTP"):
            with socket.create_connection(parse_address(os.environ[name]), timeout=60):
                taken.append(name)

    start(look)
    assert taken == ["PUSHHUB_GRPC", "PUSHHUB_HTTP"]


@pytest.mark.parametrize("name", ["DATABASE_URL", "REPLICA_URL", "REDIS_URL", "BROKER_URL"])
@pytest.mark.parametrize("suffix", ["", "_FILE"])
def test_it_has_a_database_and_a_redis_of_its_own_whatever_a_server_has_here(
    name: str, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reset deletes everything."""
    variable, seen = f"PUSHHUB_{name}{suffix}", []
    monkeypatch.setenv(variable, "/run/secrets/pushhub/database_url")
    start(lambda: seen.append(variable in os.environ))
    assert seen == [False]


def test_an_empty_variable_names_no_project(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PUBSUB_PROJECT1", "")
    monkeypatch.setenv("PUBSUB_PROJECT2", "demo,orders")
    assert [*command._projects(["shop"])] == [("--project", "shop"), ("PUBSUB_PROJECT2", "demo,orders")]
