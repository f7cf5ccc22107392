"""The emulator's command line, without the emulator."""

from __future__ import annotations

import os
import socket
from unittest import mock

from pushhub.common.environment import parse_address
from pushhub.emulator import command, process


def test_its_free_ports_stay_taken_from_the_choice_until_the_servers_answer() -> None:
    taken = []

    class Starting:
        def __init__(self, *_: object, **__: object) -> None:
            pass

        def run(self) -> int:
            for name in ("PUSHHUB_GRPC", "PUSHHUB_HTTP"):
                with socket.create_connection(parse_address(os.environ[name]), timeout=60):
                    taken.append(name)
            return 0

    with mock.patch.dict(os.environ), mock.patch.object(process, "Emulator", Starting):
        assert command.main(["--host-port=127.0.0.1:0"]) == 0
    assert taken == ["PUSHHUB_GRPC", "PUSHHUB_HTTP"]
