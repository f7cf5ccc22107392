"""The segments of the bucket that are not counted yet, copied to the machine that counts."""

from __future__ import annotations

import logging
from pathlib import Path

from deliveries.models import ShippedSegment
from deliveries.store.writelock import write_transaction
from deliveries.telemetry.counting import ledger
from deliveries.telemetry.journal import shipping

logger = logging.getLogger(__name__)

#: The most copies at a time, so that a backlog does not fill the disk.
FILES_AT_A_TIME = 64


def fetch_waiting(folder: Path) -> None:
    """Copy the oldest segments that are not counted, and remove the copies of those that are. Raises OSError."""
    while names := _uncounted():
        counted = ledger.noted(names)
        missing = set(names) - counted - {path.name for path in shipping.fetch(folder, set(names) - counted)}
        for name in missing:
            logger.error("segment %s is gone from the bucket, and is not counted", name)
        for name in counted:
            (folder / shipping.FETCHED / name).unlink(missing_ok=True)
        if not counted | missing:
            return
        with write_transaction():
            ShippedSegment.objects.filter(name__in=counted | missing).update(is_counted=True)


def _uncounted() -> list[str]:
    rows = ShippedSegment.objects.filter(is_counted=False).order_by("opened_ms", "name")
    return list(rows.values_list("name", flat=True)[:FILES_AT_A_TIME])
