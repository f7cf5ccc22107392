"""The reconciler: makes Redis agree with the database again.

They may disagree for three reasons: Redis was wiped; a publisher died or lost Redis between its commit and its offer;
or a message with a token was lost together with a worker of another kind. The remedy is always the same: the lane reads
the database again from some id on, and Redis skips the deliveries that it already has.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterable

from deliveries.backlog.backlog import Lane
from deliveries.backlog.default import default_backlog
from deliveries.backlog.lanes import lane_agrees, lane_configure
from deliveries.backlog.paging import missing_in_redis
from deliveries.backlog.regions import regions_audit
from deliveries.rules.ids import first_id_at
from deliveries.store import statements
from deliveries.store.fanout import first_pending_id
from deliveries.store.writelock import write_transaction
from subscriptions.models import Subscription
from subscriptions.selectors import PushSettings, push_settings, push_settings_of

logger = logging.getLogger(__name__)

#: Younger deliveries may still be between their commit and their offer.
GRACE_MS = 5_000
CHUNK = 1000
SETTINGS_CHUNK = 500


def rebuild() -> int:
    """Tell Redis about every lane with waiting deliveries, after a wipe. Return the number of lanes."""
    count = 0
    for lane, settings in _lanes_waiting():
        # A lane that a publisher has used since the wipe already reads the database. It must not read it twice, or its
        # messages would come twice.
        _lane_tell(lane, settings)
        default_backlog().note_regions([lane.region])
        count += 1
    default_backlog().mark_alive()
    logger.info("Redis rebuilt from the database: %d backlogs", count)
    return count


def audit() -> int:
    """Find deliveries that are missing in Redis, and lanes with outdated settings. Return how many were repaired."""
    before_id = min(first_id_at(time.time_ns() // 1_000_000 - GRACE_MS), first_pending_id())
    repaired = _audit_settings()
    backlogs: Counter[str] = Counter()
    for lane, settings in _lanes_waiting():
        repaired += _audit_lane(lane, settings, before_id=before_id)
        backlogs[lane.region] += settings.is_push
    regions_audit(+backlogs)
    return repaired


def audit_tokens(suspects: set[str]) -> tuple[set[str], int]:
    """Find tokens that nobody holds, and take back those that were already suspects.

    Returns the new suspects, for the next round, and how many tokens were taken back. The time between two rounds is
    longer than any script or hand-over takes.
    """
    backlog = default_backlog()
    generations = {
        lane: state.generation
        for lane in backlog.lanes()
        if (state := backlog.state(lane)) is not None and state.outstanding
    }
    if not generations:
        return set(), 0
    tokens = {lane: backlog.tokens(lane) for lane in generations}
    held = backlog.held({lane.region for lane in generations})
    fresh: set[str] = set()
    repaired = 0
    for lane, message_ids in tokens.items():
        generation = generations[lane]
        lost = {f"{i}.{lane.subscription_id}.{lane.region}": i for i in message_ids}
        lost = {f"{task}.{generation}": message_id for task, message_id in lost.items() if task not in held}
        known = [message_id for task, message_id in lost.items() if task in suspects]
        fresh.update(task for task in lost if task not in suspects)
        if known:
            logger.warning("lane %s: nobody held %d of its tokens", lane.key, len(known))
            repaired += backlog.repair(lane, known, generation=generation)
    return fresh, repaired


def _lane_tell(lane: Lane, settings: PushSettings) -> None:
    """Pass the settings of a subscription on to a lane, and pass newer ones on if they have changed meanwhile.

    An update may commit and tell Redis between this function's read and write; otherwise the older settings would win.
    """
    newest: PushSettings | None = settings
    while newest is not None:
        settings = newest
        lane_configure(lane, settings, action="known")
        newest = push_settings_of(settings.id)
        if newest == settings:
            return


def _audit_settings() -> int:
    """Pass current settings on to every lane that Redis knows and that has others. Return how many lanes had others."""
    lanes = default_backlog().lanes()
    repaired = 0
    for start in range(0, len(lanes), SETTINGS_CHUNK):
        chunk = lanes[start : start + SETTINGS_CHUNK]
        settings_by_id = push_settings({lane.subscription_id for lane in chunk})
        for lane, state in zip(chunk, default_backlog().states(chunk), strict=True):
            settings = settings_by_id.get(lane.subscription_id)
            if settings is not None and state is not None and not lane_agrees(state, settings):
                logger.warning("lane %s had other settings than its subscription", lane.key)
                _lane_tell(lane, settings)
                repaired += 1
    return repaired


def _audit_lane(lane: Lane, settings: PushSettings, *, before_id: int) -> bool:
    state = default_backlog().state(lane)
    if state is None or not lane_agrees(state, settings):
        # Redis does not know the lane, or the settings changed since they were read.
        _lane_tell(lane, settings)
        return True
    if settings.detached:
        return False
    if state.spilled:
        # The rows from the cursor on will come with their page.
        before_id = min(before_id, state.cursor)
    orphan = _first_orphan(lane, before_id=before_id)
    if orphan is None:
        return False
    logger.warning("deliveries of lane %s from %d on were missing in Redis; they are read again", lane.key, orphan)
    lane_configure(lane, settings, action="spill", from_id=orphan)
    return True


def _first_orphan(lane: Lane, *, before_id: int) -> int | None:
    """Return the oldest delivery that is missing in Redis and is still in the database when asked a second time."""
    after_id = 0
    while True:
        ids = statements.waiting_ids(
            subscription_id=lane.subscription_id,
            region=lane.region,
            after_id=after_id,
            before_id=before_id,
            limit=CHUNK,
        )
        if not ids:
            return None
        if missing := missing_in_redis(lane, ids):
            return min(missing)
        after_id = ids[-1]


def settings_waiting() -> Iterable[tuple[int, PushSettings]]:
    """Return the settings of all subscriptions with deliveries in the database."""
    ids = statements.subscriptions_waiting()
    for start in range(0, len(ids), SETTINGS_CHUNK):
        yield from push_settings(ids[start : start + SETTINGS_CHUNK]).items()


def _lanes_waiting() -> Iterable[tuple[Lane, PushSettings]]:
    for subscription_id, settings in settings_waiting():
        for region in statements.lanes_waiting(subscription_id):
            yield Lane(subscription_id, region), settings


def purge_deleted() -> int:
    """Remove deliveries of deleted subscriptions. Return how many lanes they had."""
    waiting = statements.subscriptions_waiting()
    gone = set(waiting) - set(Subscription.objects.filter(pk__in=waiting).values_list("pk", flat=True))
    lanes = [
        Lane(subscription_id, region)
        for subscription_id in gone
        for region in statements.lanes_waiting(subscription_id)
    ]
    for lane in lanes:
        default_backlog().forget(lane)
        _lane_delete(subscription_id=lane.subscription_id, region=lane.region)
    return len(lanes)


def _lane_delete(*, subscription_id: int, region: str) -> None:
    """Delete all deliveries of a lane, in transactions of bounded size."""
    while True:
        ids = statements.waiting_ids(
            subscription_id=subscription_id,
            region=region,
            after_id=-1,
            before_id=statements.LAST_ID,
            limit=statements.DELETE_CHUNK,
        )
        if not ids:
            return
        with write_transaction():
            statements.deliveries_delete(subscription_id=subscription_id, region=region, message_ids=ids)
