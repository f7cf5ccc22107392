"""Free ports, and waiting for a condition in place of sleeping."""

from __future__ import annotations

import atexit
import random
import socket
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
#: The ports to choose from: below those that the system gives to connections, and to servers that ask for any port.
PORTS = (10_000, 32_000)
#: The least and the most that is waited before a condition is looked at again, and how much more than a look takes.
LEAST_PAUSE_SECONDS, MOST_PAUSE_SECONDS, LOOKS_TO_PAUSES = 0.01, 0.5, 4
_dice = random.SystemRandom()


def free_port() -> int:
    """Return a port of 127.0.0.1 on which nothing listens, and which no other process of tests on this machine gets.

    Whoever leaves the choice of a port to the system never gets it either, so a server may start on it much later.
    """
    while True:
        port = _dice.randrange(*PORTS)
        claim = socket.socket(socket.AF_UNIX)
        try:
            claim.bind(f"\0pushhub-tests-port-{port}")
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", port))
        except OSError:
            claim.close()
        else:
            atexit.register(claim.close)
            return port


def wait_for(condition: Callable[[], T], *, timeout_seconds: float = 600, what: str = "the condition") -> T:
    """Return the first true result of `condition`, which is called again and again; fail after `timeout_seconds`."""
    give_up = time.monotonic() + timeout_seconds
    while True:
        began = time.monotonic()
        answer = condition()
        if answer:
            return answer
        ended = time.monotonic()
        if ended > give_up:
            raise AssertionError(f"{what} did not come true in {timeout_seconds} s")
        time.sleep(pause_after(ended - began))


def pause_after(seconds: float) -> float:
    """Return the pause after a look that took so many seconds: a look that computes takes a fifth of a core at most."""
    return min(max(LEAST_PAUSE_SECONDS, seconds * LOOKS_TO_PAUSES), MOST_PAUSE_SECONDS)
