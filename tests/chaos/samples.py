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
#: What of a third is compared. The connections to endpoints come and go with the faults; what leaks never goes.
TYPICAL: dict[str, Callable[[Sequence[float]], float]] = {"MB": median, "descriptors": min}
MEGABYTE = 1_000_000
#: The ordering keys whose messages lanes have left to the database, and where Redis has them (backlog/common.lua).
LEFT, LEFT_PATTERN = "keys left to the database", "ph:*:w"
#: What is on the disk, which may grow.
STORES = ("database", "log", "journal")


@dataclass(frozen=True, slots=True)
class Sample:
    """One look at everything. `megabytes` and `descriptors` are by process and, for the former, by store.

    `rows` has those of each table, the keys in Redis, and the files of the journal and the archive.
    """

    at: float
    published: int
    deliveries: int
    waiting: int
    megabytes: dict[str, float] = field(default_factory=dict)
    descriptors: dict[str, int] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)


def measure(storm: Storm) -> Sample:
    from django.apps import apps
    from django.db import Error, close_old_connections
    from redis import RedisError

    from deliveries.models import Delivery

    rows: dict[str, int] = {}
    try:
        rows = {model._meta.model_name: model.objects.count() for model in apps.get_models()}
    except Error:
        close_old_connections()
    waiting = rows.get(Delivery._meta.model_name, -1)
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
        client = storm.redis()
        megabytes["redis"] = client.info("memory")["used_memory"] / MEGABYTE
        rows["keys in Redis"] = client.dbsize()
        rows[LEFT] = sum(client.hlen(key) for key in client.scan_iter(LEFT_PATTERN, count=1000))
    files = [path for path in storm.stand.disk.rglob("*") if path.name != "filler"]
    logs = [path for path in files if path.name.endswith("-wal") or path.parent.name == "pg_wal"]
    megabytes["log"] = sum(_size(path.stat) for path in logs) / MEGABYTE
    megabytes["database"] = sum(_size(path.stat) for path in files) / MEGABYTE - megabytes["log"]
    data = list((storm.folder / "data").rglob("*"))
    megabytes["journal"] = sum(_size(path.stat) for path in data) / MEGABYTE
    rows["files of the journal"] = len(data)
    ledger = storm.ledger
    return Sample(now(), len(ledger.published), len(ledger.deliveries), waiting, megabytes, descriptors, rows)


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
            if len(values) < LEAST_SAMPLES or name in STORES:
                continue
            if unit == "descriptors" and name not in of(samples[-1]):
                continue  # connections come and go with the load, so only the calm at the end tells
            before, after = TYPICAL[unit](values[third : 2 * third]), TYPICAL[unit](values[2 * third :])
            if after > before + FLAT[unit] + before / 10:
                yield f"{name} grew from {before:.0f} to {after:.0f} {unit}"
