"""Free ports, and waiting for a condition in place of sleeping."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def free_port() -> int:
    """Return a port of 127.0.0.1 on which nothing listened a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(condition: Callable[[], T], *, timeout_seconds: float = 600, what: str = "the condition") -> T:
    """Return the first true result of `condition`, which is called every 10 ms; fail after `timeout_seconds`."""
    give_up = time.monotonic() + timeout_seconds
    while True:
        answer = condition()
        if answer:
            return answer
        if time.monotonic() > give_up:
            raise AssertionError(f"{what} did not come true in {timeout_seconds} s")
        time.sleep(0.01)
