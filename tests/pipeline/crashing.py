"""A rollup or backfill that dies at a chosen moment: `python -m tests.pipeline.crashing POINT BATCH ARGUMENT...`.

Points: `before` and `after` the transaction of that batch, `inside` it, or a number of seconds into the batch. `never`
lets it end by itself. Batches are of two segments each.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

import django


def die(*_: Any, **__: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def dying(point: str, number: int, real: Callable[..., Any]) -> Callable[..., Any]:
    """`partials_add` that dies in its `number`-th call."""
    from deliveries.models import Segment

    calls = 0

    def add(*args: Any, **words: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == number and point == "before":
            die()
        if calls == number and point == "inside":
            Segment.objects.bulk_create = die
        if calls == number and point[0].isdigit():
            threading.Timer(float(point), die).start()
        found = real(*args, **words)
        if calls == number and point == "after":
            die()
        return found

    return add


def main() -> None:
    point, number, *arguments = sys.argv[1:]
    django.setup()
    from django.core.management import call_command

    from deliveries.pipeline.counting import ledger, rollup

    rollup.FILES_A_BATCH = 2
    ledger.partials_add = dying(point, int(number), ledger.partials_add)
    call_command("pipeline", *arguments)


if __name__ == "__main__":
    main()
