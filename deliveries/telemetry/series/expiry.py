"""Deletes old metrics and old segments of the journal."""

from __future__ import annotations

import logging
import time
from datetime import timedelta
from pathlib import Path

from django.conf import settings

from deliveries.models import GaugeMinute, GaugeRound, MetricHour, MetricMinute, RegionGaugeMinute, Segment
from deliveries.store.writelock import write_transaction
from deliveries.telemetry.journal import files, shipping
from pushhub.common.clock import Clock, utcnow
from pushhub.common.errors import PushHubError

logger = logging.getLogger(__name__)

#: How long rows of minutes are kept. One day more than a week, to compare a day with that of the week before.
MINUTES_KEPT = timedelta(days=8)
HOURS_KEPT = timedelta(days=90)
#: Rows per transaction, because other writers wait for it.
CHUNK = 5000


def expire_metrics(*, clock: Clock = utcnow) -> int:
    """Delete old rows of minutes and hours, and old entries of the ledger. Return how many. Rows of days stay."""
    now = clock()
    # The ledger's entries stay twice as long as the segments, so that no segment can be counted again.
    ledger_kept = timedelta(days=2 * settings.JOURNAL_DAYS)
    deleted = 0
    minutes = ((model, MINUTES_KEPT) for model in (MetricMinute, GaugeMinute, RegionGaugeMinute, GaugeRound))
    kept_times = (*minutes, (MetricHour, HOURS_KEPT), (Segment, ledger_kept))
    for model, kept in kept_times:
        while True:
            old = model._default_manager.filter(at__lt=now - kept).values_list("pk", flat=True)[:CHUNK]
            with write_transaction():
                count, _ = model._default_manager.filter(pk__in=list(old)).delete()
            deleted += count
            if count < CHUNK:
                break
    return deleted


def expire_segments(folder: Path) -> int:
    """Delete segments older than PUSHHUB_JOURNAL_DAYS, counted or not, and folders that become empty. Return how many.

    Other files, such as the remains of deleted files on NFS, stay and do no harm.
    """
    before_ms = (time.time() - settings.JOURNAL_DAYS * 86400) * 1000
    deleted = _expire_shipped(before_ms) if settings.JOURNAL_BUCKET else 0
    for hour in sorted((folder / files.SEALED).glob("dt=*/hour=*")):
        has_younger = False
        for path in hour.iterdir():
            name = files.NAME.fullmatch(path.name.strip(".").removesuffix(".new").removesuffix(files.SEGMENT_SUFFIX))
            if name is None:
                continue
            if int(name["opened_ms"]) < before_ms:
                path.unlink(missing_ok=True)
                deleted += 1
            else:
                has_younger = True
        if has_younger:
            break  # the next ones are younger
        for empty in (hour, hour.parent):
            if not any(empty.iterdir()):
                empty.rmdir()
    return deleted


def _expire_shipped(before_ms: float) -> int:
    try:
        return shipping.expire(before_ms=before_ms)
    except (OSError, PushHubError) as error:
        logger.warning("old segments stay in the bucket until the next sweep: %s", error)
        return 0
