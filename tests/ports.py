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
#: How late the end of a wait may be noticed, as a share of the wait and at most.
LATE_SHARE, MOST_LATE_SECONDS = 0.04, 0.1
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
    started = time.monotonic()
    while True:
        began = time.monotonic()
        answer = condition()
        if answer:
            return answer
        ended = time.monotonic()
        if ended > started + timeout_seconds:
            raise AssertionError(f"{what} did not come true in {timeout_seconds} s")
        time.sleep(pause_after(ended - began, waited=ended - started))


def pause_after(look: float, *, waited: float) -> float:
    """Return the pause after a look that took so many seconds, of a wait that has taken so many.

    A look that computes takes a fifth of a core at most, and long waits need few looks.
    """
    late = min(waited * LATE_SHARE, MOST_LATE_SECONDS)
    return min(max(LEAST_PAUSE_SECONDS, look * LOOKS_TO_PAUSES, late), MOST_PAUSE_SECONDS)
