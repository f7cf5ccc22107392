"""Regions whose messages wait while no push worker of the region lives: who takes them over, and who is told."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

import orjson
from django.conf import settings

from deliveries.backlog.backlog import DEAD_AFTER_MS
from deliveries.backlog.default import default_backlog

logger = logging.getLogger(__name__)

#: What the last audit found, for the console and the metrics. It ends when audits do.
KEY = "ph:unserved"
KEY_SECONDS = 120


@dataclass(frozen=True, slots=True)
class Unserved:
    """A region without a living worker of its own: for how long, and how many push backlogs wait there."""

    region: str
    seconds: int
    backlogs: int


def regions_audit(backlogs: Mapping[str, int]) -> list[Unserved]:
    """Raise the alarm for each region that no worker serves; `backlogs` tells how many wait in each region."""
    backlog = default_backlog()
    backlog.note_regions(backlogs)
    silent = backlog.regions_silent()
    found = [Unserved(name, int(seconds), backlogs[name]) for name, seconds in silent.items() if name in backlogs]
    for one in found:
        logger.warning(
            "no worker of region %s has lived for %d s, and %d backlogs wait there; workers of other regions deliver "
            "them %s",
            *(one.region, one.seconds, one.backlogs),
            "from now on" if one.seconds >= patience_seconds(one.region) else "soon",
        )
    backlog.forget_regions([name for name in silent if name not in backlogs and name not in settings.REGIONS])
    backlog.client.set(KEY, orjson.dumps([[one.region, one.seconds, one.backlogs] for one in found]), ex=KEY_SECONDS)
    return found


def regions_unserved() -> list[Unserved]:
    """What the last audit found; may raise redis.RedisError."""
    kept = default_backlog().client.get(KEY)
    return [Unserved(*row) for row in orjson.loads(kept)] if isinstance(kept, bytes) else []


def regions_to_adopt(silent: Mapping[str, float]) -> tuple[str, ...]:
    """Of the regions without a living worker, given with the seconds since, those that others take over now."""
    return tuple(sorted(name for name, seconds in silent.items() if seconds >= patience_seconds(name)))


def patience_seconds(region: str) -> float:
    """How long a region's own workers may be away. A region that this deployment does not know has none to wait for."""
    return settings.REGION_TAKEOVER_SECONDS if region in settings.REGIONS else DEAD_AFTER_MS / 1000
