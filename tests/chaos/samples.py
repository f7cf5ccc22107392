"""What the processes of a storm take, measured every few seconds, and whether it grows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING

import psutil

from tests.chaos.ledger import now

if TYPE_CHECKING:
    from tests.chaos.storm import Storm

#: A process that was started again begins small, so growth is judged from this number of samples of one process on.
LEAST_SAMPLES = 40
#: What is flat: the last third of the samples has at most this much more than the middle third, in its unit.
FLAT = {"MB": 25.0, "descriptors": 30.0}
MEGABYTE = 1_000_000


@dataclass(frozen=True, slots=True)
class Sample:
    """One look at everything. `megabytes` and `descriptors` are by process and, for the former, by store."""

    at: float
    published: int
    deliveries: int
    waiting: int
    megabytes: dict[str, float] = field(default_factory=dict)
    descriptors: dict[str, int] = field(default_factory=dict)


def measure(storm: Storm) -> Sample:
    from django.db import Error, close_old_connections

    from deliveries.models import Delivery
    from redis import RedisError

    waiting = -1
    try:
        waiting = Delivery.objects.count()
    except Error:
        close_old_connections()
    megabytes: dict[str, float] = {}
    descriptors: dict[str, int] = {}
    for member in storm.stand.members.values():
        with suppress(psutil.Error, AssertionError):
            process = psutil.Process(member.pid)
            # After a restart it is another process, whose growth begins anew.
            name = f"{member.name} {member.pid}"
            megabytes[name] = process.memory_info().rss / MEGABYTE
            descriptors[name] = process.num_fds()
    with suppress(RedisError, OSError):
        megabytes["redis"] = storm.redis().info("memory")["used_memory"] / MEGABYTE
    files = (path for path in storm.stand.disk.rglob("*") if path.name != "filler")
    megabytes["database"] = sum(_size(path.stat) for path in files) / MEGABYTE
    ledger = storm.ledger
    return Sample(now(), len(ledger.published), len(ledger.deliveries), waiting, megabytes, descriptors)


def _size(stat: Callable[[], object]) -> int:
    try:
        return int(getattr(stat(), "st_size", 0))
    except OSError:  # it is gone meanwhile
        return 0


def growing(samples: Sequence[Sample]) -> Iterator[str]:
    """Describe what grew from the middle third of a long storm to its last third."""
    for unit, of in (("MB", lambda it: it.megabytes), ("descriptors", lambda it: it.descriptors)):
        for name in sorted({name for sample in samples for name in of(sample)}):
            values = [of(sample)[name] for sample in samples if name in of(sample)]
            third = len(values) // 3
            if len(values) < LEAST_SAMPLES or name == "database":
                continue
            before, after = median(values[third : 2 * third]), median(values[2 * third :])
            if after > before + FLAT[unit] + before / 10:
                yield f"{name} grew from {before:.0f} to {after:.0f} {unit}"
