"""Regions without a living push worker: other workers take their messages over, and operators are warned."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

import orjson
import redis
from django.conf import settings

from deliveries.backlog.default import default_backlog
from deliveries.backlog.workerverbs import DEAD_AFTER_MS
from deliveries.store import lanerows, regionholds

logger = logging.getLogger(__name__)

#: The result of the last audit, for the console and the metrics. It expires if audits stop.
KEY = "ph:unserved"
KEY_SECONDS = 120


@dataclass(frozen=True, slots=True)
class Unserved:
    """A region without a living worker of its own, since when, and how many push backlogs wait there."""

    region: str
    seconds: int
    backlogs: int


def audit_regions() -> list[Unserved]:
    """Log a warning for each region in which messages wait for pushes and that no worker serves."""
    backlogs = lanerows.push_backlogs()
    backlog = default_backlog()
    backlog.note_regions(backlogs)
    silent = _regions_silent()
    unserved = [Unserved(name, int(seconds), backlogs[name]) for name, seconds in silent.items() if name in backlogs]
    for region in unserved:
        logger.warning(
            "no worker of region %s has lived for %d s; backlogs that wait there: %d; workers of other regions deliver "
            "them %s",
            *(region.region, region.seconds, region.backlogs),
            "from now on" if region.seconds >= patience_seconds(region.region) else "soon",
        )
    backlog.forget_regions([name for name in silent if name not in backlogs and name not in settings.REGIONS])
    rows = [[region.region, region.seconds, region.backlogs] for region in unserved]
    backlog.shared.set(KEY, orjson.dumps(rows), ex=KEY_SECONDS)
    return unserved


def _regions_silent() -> dict[str, float]:
    """Return the regions without a living worker, with the seconds since there was one."""
    if regionholds.is_alone():
        return default_backlog().regions_silent()
    return {hold.region: hold.renewed_s for hold in regionholds.read_holds() if hold.renewed_s * 1000 >= DEAD_AFTER_MS}


def regions_unserved(client: redis.Redis | None = None) -> list[Unserved]:
    """Return the result of the last audit. May raise redis.RedisError."""
    rows = (client or default_backlog().shared).get(KEY)
    return [Unserved(*row) for row in orjson.loads(rows)] if isinstance(rows, bytes) else []


def regions_to_adopt(silent: Mapping[str, float]) -> tuple[str, ...]:
    """Return the regions that other workers take over now; `silent` has the seconds since each had a living worker."""
    return tuple(sorted(name for name, seconds in silent.items() if seconds >= patience_seconds(name)))


def patience_seconds(region: str) -> float:
    """Return how long a region's own workers may be away; a region unknown to this deployment has no workers."""
    return settings.REGION_TAKEOVER_SECONDS if region in settings.REGIONS else DEAD_AFTER_MS / 1000
