"""A port for a server that starts later: nobody else on this machine gets it meanwhile."""

from __future__ import annotations

import random
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests import ports
from tests.workers import ROOT


class Dice(random.SystemRandom):
    """Dice that first fall as the test says."""

    def __init__(self, *numbers: int) -> None:
        super().__init__()
        self._numbers = list(numbers)

    def randrange(self, *limits: int) -> int:  # type: ignore[override]
        return self._numbers.pop(0) if self._numbers else super().randrange(*limits)


def test_a_port_is_handed_out_once_even_if_nothing_listens_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = ports.free_port(), ports.free_port()
    monkeypatch.setattr(ports, "_dice", Dice(first, second))
    assert ports.free_port() not in (first, second)


def test_other_processes_do_not_get_it() -> None:
    port = ports.free_port()
    code = (
        "from tests import ports; from tests.unit.test_ports import Dice;"
        f"ports._dice = Dice({port}); print(ports.free_port())"
    )
    printed = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert int(printed) != port


def test_a_port_that_is_listened_on_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        listening = server.getsockname()[1]
        monkeypatch.setattr(ports, "_dice", Dice(listening))
        assert ports.free_port() != listening


def test_the_system_gives_none_of_these_ports_to_connections() -> None:
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert ports.PORTS[1] <= first


@pytest.mark.parametrize(
    ("look", "waited", "pause"),
    [(0.0001, 0.1, 0.01), (0.02, 0.1, 0.08), (60, 60, 0.5), (0.0001, 1, 0.04), (0.0001, 60, 0.1), (0.1, 60, 0.4)],
)
def test_what_takes_long_is_looked_at_less_often(look: float, waited: float, pause: float) -> None:
    assert ports.pause_after(look, waited=waited) == pytest.approx(pause)
