"""The segments of the bucket that are not counted yet, copied to the machine that counts."""

from __future__ import annotations

import logging
from pathlib import Path

from deliveries.models import ShippedSegment
from deliveries.store.writelock import write_transaction
from deliveries.telemetry.counting import ledger
from deliveries.telemetry.journal import files, shipping

logger = logging.getLogger(__name__)

#: The most copies at a time, so that a backlog does not fill the disk.
FILES_AT_A_TIME = 64


def fetch_waiting(fetched: Path) -> None:
    """Copy the oldest segments that are not counted, and remove the copies of those that are. Raises OSError.

    Each counter has a folder of its own, because another one may still read what this one has counted.
    """
    remove_counted(fetched)
    while names := _uncounted():
        counted = ledger.noted(names)
        missing = set(names) - counted - {path.name for path in shipping.fetch(fetched, set(names) - counted)}
        for name in missing:
            logger.error("segment %s is gone from the bucket, and is not counted", name)
        if not counted | missing:
            return
        with write_transaction():
            ShippedSegment.objects.filter(name__in=counted | missing).update(is_counted=True)


def remove_counted(fetched: Path) -> None:
    """Remove the copies of segments that are counted, by whichever counter, and those of an older version."""
    for path in fetched.parent.glob(f"*{files.SEGMENT_SUFFIX}"):
        path.unlink(missing_ok=True)
    copies = [path.name for path in fetched.glob(f"*{files.SEGMENT_SUFFIX}")]
    for name in ledger.noted(copies):
        (fetched / name).unlink(missing_ok=True)


def _uncounted() -> list[str]:
    rows = ShippedSegment.objects.filter(is_counted=False).order_by("opened_ms", "name")
    return list(rows.values_list("name", flat=True)[:FILES_AT_A_TIME])
