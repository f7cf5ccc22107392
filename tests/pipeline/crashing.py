"""Run a counter that kills itself at a chosen moment: `python -m tests.pipeline.crashing POINT NUMBER ARGUMENT...`.

NUMBER says in which of the ledger's transactions it dies. POINT says when: `before` the transaction's first statement,
`inside` after the last one, `after` the commit, or a number of seconds after the beginning. With the point `never` the
counter ends by itself. A transaction takes few keys, so a batch needs several. `manage.py pipeline` gets the arguments.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import django

KEYS_A_TRANSACTION = 20


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def dying(
    point: str, number: int, transaction: Callable[[], AbstractContextManager[None]]
) -> Callable[[], AbstractContextManager[None]]:
    """Return a transaction that kills this process at a point of its `number`-th use."""
    count = 0

    @contextmanager
    def doomed() -> Iterator[None]:
        nonlocal count
        count += 1
        is_last = count == number
        with transaction():
            if is_last and point == "before":
                die()
            if is_last and point[0].isdigit():
                threading.Timer(float(point), die).start()
            yield
            if is_last and point == "inside":
                die()
        if is_last and point == "after":
            die()

    return doomed


def doom(point: str, number: int) -> None:
    """Set Django up, and make the ledger's transaction kill this process."""
    django.setup()
    from deliveries.telemetry.counting import ledger

    ledger.FIRST_KEYS = ledger.LEAST_KEYS = ledger.MOST_KEYS = KEYS_A_TRANSACTION
    ledger.only_writer = dying(point, number, ledger.only_writer)


def count_embedded(environment: Mapping[str, str], folder: str, point: str, number: int) -> None:
    """Count the segments of a folder with the embedded counter. It runs in a process that tests/preloaded.py forks."""
    from tests.preloaded import settings_read_again

    os.environ.update(environment)
    settings_read_again()
    doom(point, number)
    from deliveries.telemetry.counting.embedded import EmbeddedCounter

    EmbeddedCounter(Path(folder)).turn(seconds=600)


def main() -> None:
    point, number, *arguments = sys.argv[1:]
    doom(point, int(number))
    from django.core.management import call_command

    from deliveries.telemetry.counting import rollup

    rollup.FILES_A_TASK = 1  # local[2] has two tasks
    call_command("pipeline", *arguments)


if __name__ == "__main__":
    main()
