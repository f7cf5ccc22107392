"""Keeps this region's hold of itself, and takes over regions that are cut off, where each has a Redis of its own."""

from __future__ import annotations

import logging
from collections.abc import Callable

from django.conf import settings
from django.db import close_old_connections, connections

from deliveries.backlog import reconcile
from deliveries.backlog.connection import beside_an_outage
from deliveries.backlog.default import default_backlog
from deliveries.backlog.elsewhere import hear_of_elsewhere
from deliveries.store import regionholds
from deliveries.store.regionholds import Hold
from pushhub.common.background import BackgroundThread

logger = logging.getLogger(__name__)

TURN_SECONDS = 1.0
#: A hold is renewed if it is so old, whichever worker of the region comes first.
RENEW_SECONDS = 2.0
#: A region that has asked for itself in this time gets itself back.
WANTED_SECONDS = 10.0


class RegionKeeper:
    """One push worker's part: each second it looks at all holds (store/regionholds.py)."""

    def __init__(self, *, is_well: Callable[[], bool], adopt: Callable[[tuple[str, ...]], None]) -> None:
        """`is_well` says whether Redis has heard of this worker lately. `adopt` gets the other regions to serve."""
        self._is_well = is_well
        self._adopt = adopt
        #: The regions whose lanes are in this region's Redis; None until this worker has looked.
        self._served: frozenset[str] | None = None
        self._thread = BackgroundThread("push-regions", self._turn, at_end=connections.close_all)

    def start(self) -> None:
        if not regionholds.is_alone():
            self._thread.start()

    def stop(self) -> None:
        if not regionholds.is_alone():
            self._thread.stop(timeout=5)

    def _turn(self) -> None:
        with beside_an_outage():
            if self._is_well():
                self.look()
        close_old_connections()
        self._thread.stopping.wait(TURN_SECONDS)

    def look(self) -> None:
        """Renew, take over, give back or ask for regions. May raise errors of the database and of Redis."""
        own = settings.REGION
        holds = regionholds.read_holds()
        if own not in {hold.region for hold in holds}:
            regionholds.make_hold(own)
        for hold in holds:
            if hold.holder == own:
                _keep(hold)
            elif hold.renewed_s >= settings.REGION_TAKEOVER_SECONDS:
                _take_over(hold)
            elif hold.region == own:
                # What Redis has of this region is outdated by the time it gets it back.
                _forget_region(own)
                regionholds.ask_for_hold(own)
        self._serve(regionholds.held_regions())

    def _serve(self, held: frozenset[str]) -> None:
        served = self._served
        for region in held - (served or frozenset()):
            reconcile.rebuild_region(region)
        if served is None:
            # Workers from before may have held others.
            served = frozenset(lane.region for lane in default_backlog().lanes())
        for region in served - held - {settings.REGION}:
            _forget_region(region)
        self._served = held
        self._adopt(tuple(sorted(held - {settings.REGION})))
        for region in held:
            hear_of_elsewhere(region)


def _keep(hold: Hold) -> None:
    if hold.region != hold.holder and hold.wanted_s is not None and hold.wanted_s < WANTED_SECONDS:
        if regionholds.pass_hold(hold, hold.region):
            logger.warning("region %s is back, and gets its messages back", hold.region)
    elif hold.renewed_s >= RENEW_SECONDS:
        regionholds.renew_hold(hold)


def _take_over(hold: Hold) -> None:
    if regionholds.pass_hold(hold, settings.REGION, silent_seconds=settings.REGION_TAKEOVER_SECONDS):
        logger.warning(
            "no worker of region %s has been heard of for %d s: region %s takes region %s over",
            *(hold.holder, hold.renewed_s, settings.REGION, hold.region),
        )


def _forget_region(region: str) -> None:
    """Make Redis forget the lanes of a region that another one holds, and what is in its queues."""
    backlog = default_backlog()
    for lane in backlog.lanes():
        if lane.region == region and not regionholds.holds_now(region):
            backlog.forget(lane)
    if not regionholds.holds_now(region):
        backlog.empty_queues(region)
