"""What time lets go of the metrics and of what they were counted from."""

from __future__ import annotations

import logging
import time
from datetime import timedelta
from pathlib import Path

from django.conf import settings

from deliveries.journal import files, shipping
from deliveries.models import GaugeMinute, GaugeRound, MetricHour, MetricMinute, RegionGaugeMinute, Segment
from deliveries.store.writelock import write_transaction
from pushhub.common.clock import Clock, utcnow
from pushhub.common.errors import PushHubError

logger = logging.getLogger(__name__)

#: A day more than a week, so that a day can be compared with the same day of the week before.
MINUTES_KEPT = timedelta(days=8)
HOURS_KEPT = timedelta(days=90)
#: Rows of a transaction: others wait for it.
CHUNK = 5000


def metrics_expire(*, clock: Clock = utcnow) -> int:
    """Delete minutes and hours that are old enough, and the ledger's word of segments long gone. Days stay."""
    now = clock()
    # Twice as long as the segments, so that one cannot come back unknown.
    noted = timedelta(days=2 * settings.JOURNAL_DAYS)
    deleted = 0
    minutes = ((model, MINUTES_KEPT) for model in (MetricMinute, GaugeMinute, RegionGaugeMinute, GaugeRound))
    kept_times = (*minutes, (MetricHour, HOURS_KEPT), (Segment, noted))
    for model, kept in kept_times:
        while True:
            old = model._default_manager.filter(at__lt=now - kept).values_list("pk", flat=True)[:CHUNK]
            with write_transaction():
                count, _ = model._default_manager.filter(pk__in=list(old)).delete()
            deleted += count
            if count < CHUNK:
                break
    return deleted


def segments_expire(folder: Path) -> int:
    """Delete segments past PUSHHUB_JOURNAL_DAYS, counted or not, and the folders they leave empty.

    Files that are no segments, such as those that NFS leaves of deleted ones, stay and stop nothing.
    """
    before_ms = (time.time() - settings.JOURNAL_DAYS * 86400) * 1000
    gone = _shipped_expire(before_ms) if settings.JOURNAL_BUCKET else 0
    for hour in sorted((folder / files.SEALED).glob("dt=*/hour=*")):
        has_younger = False
        for path in hour.iterdir():
            named = files.NAME.fullmatch(path.name.strip(".").removesuffix(files.SEGMENT_SUFFIX))
            if named is None:
                continue
            if int(named["opened_ms"]) < before_ms:
                path.unlink(missing_ok=True)
                gone += 1
            else:
                has_younger = True
        if has_younger:
            break  # the next ones are younger
        for empty in (hour, hour.parent):
            if not any(empty.iterdir()):
                empty.rmdir()
    return gone


def _shipped_expire(before_ms: float) -> int:
    try:
        return shipping.expire(before_ms=before_ms)
    except (OSError, PushHubError) as error:
        logger.warning("old segments stay in the bucket until the next sweep: %s", error)
        return 0
