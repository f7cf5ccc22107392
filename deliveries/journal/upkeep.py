"""The maintenance worker's part of the journal: it seals what writers have closed or left behind."""

from __future__ import annotations

import logging
import time
from pathlib import Path

from django.conf import settings

from deliveries.journal import alarm
from deliveries.journal.sealing import seal_closed

logger = logging.getLogger(__name__)

_trouble_since = 0.0


def journals_seal() -> int:
    """Seal closed journals; return how many. If the disk cannot be written, raise the alarm: the next call retries."""
    global _trouble_since
    if not settings.JOURNAL:
        return 0
    try:
        count = seal_closed(Path(settings.JOURNAL))
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
