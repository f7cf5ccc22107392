"""The maintenance worker's part of the journal: it seals closed journals and moves segments to the bucket."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

from django.conf import settings

from deliveries.telemetry.journal import alarm, files, shipping
from deliveries.telemetry.journal.sealing import seal_closed
from pushhub.common.arrow import import_arrow_alone
from pushhub.common.errors import PushHubError, first_line

logger = logging.getLogger(__name__)

#: A bucket that failed is tried again after this time.
BUCKET_RETRY_SECONDS = alarm.STALE_SECONDS / 3

_trouble_since = 0.0
_bucket_trouble_since = 0.0
_bucket_retry_at = 0.0


def seal_journals() -> int:
    """Seal closed journals; return how many. If the disk cannot be written, raise the alarm: the next call retries."""
    global _trouble_since
    if not settings.JOURNAL:
        return 0
    folder = Path(settings.JOURNAL)
    try:
        if any(files.journals(folder)):
            import_arrow_alone()
        count = seal_closed(folder)
    except OSError as error:
        reason = error.strerror or str(error)
        if not _trouble_since:
            _trouble_since = time.time()
            logger.error("journals are not sealed, deliveries go on: %s", reason)
        alarm.sound(reason=reason, since=_trouble_since, lost=0)
        return 0
    if _trouble_since:
        _trouble_since = 0.0
        logger.warning("journals are sealed again")
        alarm.clear()
    return count


def ship_segments(*, clock: Callable[[], float] = time.time) -> int:
    """Move segments to the bucket; return how many. If that fails, raise the alarm: a later call tries again."""
    global _bucket_trouble_since, _bucket_retry_at
    if not (settings.JOURNAL and settings.JOURNAL_BUCKET) or clock() < _bucket_retry_at:
        return 0
    folder = Path(settings.JOURNAL)
    try:
        count = shipping.ship(folder)
    except (OSError, PushHubError) as error:
        reason = first_line(error)
        if not _bucket_trouble_since:
            _bucket_trouble_since = clock()
            logger.error("segments stay on this machine, %s cannot be written: %s", settings.JOURNAL_BUCKET, reason)
        _bucket_retry_at = clock() + BUCKET_RETRY_SECONDS
        alarm.sound(reason=reason, since=_bucket_trouble_since, waiting=sum(1 for _ in shipping.waiting(folder)))
        return 0
    _bucket_retry_at = 0.0
    if _bucket_trouble_since:
        _bucket_trouble_since = 0.0
        logger.warning("segments go to %s again", settings.JOURNAL_BUCKET)
        alarm.clear(of_bucket=True)
    return count
