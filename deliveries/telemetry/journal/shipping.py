"""Segments in a bucket. Each is sealed here, then uploaded, noted in the database, and removed here, in this order.

    <PUSHHUB_JOURNAL_BUCKET>/dt=2026-11-21/hour=04/<name>.parquet

After a crash, or while the bucket cannot be reached, the segment stays here. It is uploaded again under the same name.
The database says which segments are in the bucket, so nobody has to list it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from django.conf import settings

from deliveries.models import ShippedSegment
from deliveries.store.writelock import write_transaction
from deliveries.telemetry.journal import files
from pushhub.common.stores import AnyFile, RemoteFile, Store, file_of, make_folders, open_parquet

#: How long one task may upload. The worker has other tasks, one at a time.
TURN_SECONDS = 3.0
#: Copies of segments of the bucket, on the machine that counts them: a folder for each counter.
FETCHED = "fetched"
KEY = "message_id"
#: The bounds of a segment whose footer does not have them.
EVERY_ID = (0, (1 << 63) - 1)
#: Segments that are forgotten in one transaction.
CHUNK = 500


def waiting(folder: Path) -> Iterator[Path]:
    """Return the sealed segments of this machine, the oldest first."""
    for hour in sorted((folder / files.SEALED).glob("dt=*/hour=*")):
        yield from sorted(path for path in hour.iterdir() if files.is_segment_name(path.name))


def ship(folder: Path, *, monotonic: Callable[[], float] = time.monotonic) -> int:
    """Move segments into the bucket for about TURN_SECONDS; return how many. Raises OSError and PushHubError."""
    store = Store(settings.JOURNAL_BUCKET)
    give_up = monotonic() + TURN_SECONDS
    count = 0
    for path in waiting(folder):
        if monotonic() > give_up:
            break
        try:
            content, (first_id, last_id) = path.read_bytes(), id_bounds(path)
        except FileNotFoundError:
            continue  # another worker of this machine has moved it
        store.write_bytes(_place(path.name), content)
        _note(path.name, first_id, last_id)
        path.unlink(missing_ok=True)
        count += 1
    return count


def note_forgotten(*, from_ms: float, before_ms: float) -> int:
    """Note the segments of a time that are in the bucket and not in the database; return how many there were.

    They came after the backup from which the database was restored. Raises OSError.
    """
    names = [file.name.rpartition("/")[2] for file in Store(settings.JOURNAL_BUCKET).files()]
    names = [name for name in names if files.is_segment_name(name) and from_ms <= files.opened_ms(name) < before_ms]
    known = set(ShippedSegment.objects.values_list("name", flat=True))
    forgotten = [name for name in names if name not in known]
    for name in forgotten:
        _note(name, *id_bounds(address_of(name)))
    return len(forgotten)


def _note(name: str, first_id: int, last_id: int) -> None:
    row = {"opened_ms": files.opened_ms(name), "first_id": first_id, "last_id": last_id}
    with write_transaction():
        ShippedSegment.objects.get_or_create(name=name, defaults=row)


def id_bounds(path: AnyFile) -> tuple[int, int]:
    """Return the least and the greatest message id of a segment, or EVERY_ID if its footer does not have them.

    Raises FileNotFoundError.
    """
    import pyarrow as pa

    bounds = []
    try:
        with open_parquet(path) as file:
            place = file.schema_arrow.names.index(KEY)
            for number in range(file.metadata.num_row_groups):
                statistics = file.metadata.row_group(number).column(place).statistics
                if len(statistics.min) != len(statistics.max):
                    # They are the least and the greatest as texts. Ids have 19 digits from July 2027 on.
                    return EVERY_ID
                bounds.append((int(statistics.min), int(statistics.max)))
    except FileNotFoundError:
        raise
    except (OSError, pa.ArrowException, ValueError, AttributeError, TypeError):
        return EVERY_ID
    return (min(first for first, _ in bounds), max(last for _, last in bounds)) if bounds else EVERY_ID


def fetch(fetched: Path, names: Iterable[str]) -> list[Path]:
    """Copy segments from the bucket into a folder; return the copies. Skips segments that the bucket lacks.

    Raises OSError.
    """
    make_folders(fetched)
    store = Store(settings.JOURNAL_BUCKET)
    paths = []
    for name in names:
        path = fetched / name
        if not path.exists():
            # Another process of this machine may fetch it as well.
            hidden = fetched / f".{name}.{os.getpid()}"
            try:
                with store.open(_place(name)) as file:
                    hidden.write_bytes(file.read())
                hidden.rename(path)
            except FileNotFoundError:
                continue
            finally:
                hidden.unlink(missing_ok=True)
        paths.append(path)
    return paths


def address_of(name: str) -> RemoteFile | Path:
    """Return the address of a segment in the bucket."""
    return file_of(f"{Store(settings.JOURNAL_BUCKET)}/{_place(name)}")


def expire(*, before_ms: float) -> int:
    """Delete the segments of the bucket whose journals were opened before a time; return how many. Raises OSError."""
    store = Store(settings.JOURNAL_BUCKET)
    count = 0
    while names := list(ShippedSegment.objects.filter(opened_ms__lt=before_ms).values_list("name", flat=True)[:CHUNK]):
        for name in names:
            store.delete(_place(name))
        with write_transaction():
            ShippedSegment.objects.filter(name__in=names).delete()
        count += len(names)
    return count


def _place(name: str) -> str:
    """Return the path of a segment below the bucket's address."""
    path = files.segment_path(Path(), name.removesuffix(files.SEGMENT_SUFFIX))
    return path.relative_to(files.SEALED).as_posix()
