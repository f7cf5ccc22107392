"""The reconciler: makes Redis agree with the database again.

They may disagree for three reasons: Redis was wiped; a publisher died or lost Redis between its commit and its offer;
or a message with a token was lost together with a worker of another kind. The remedy is always the same: the lane reads
the database again from some id on, and Redis skips the deliveries that it already has.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable, Mapping, Sequence

from deliveries.backlog.connection import beside_an_outage, server_ms
from deliveries.backlog.default import default_backlog
from deliveries.backlog.lanes import LANES_CHUNK, lane_agrees, lane_configuration, settings_of, tell_lanes
from deliveries.backlog.lanestate import LaneSummary
from deliveries.backlog.records import PREFIX, Lane, is_left
from deliveries.rules.ids import first_id_at
from deliveries.store import lanerows, statements
from deliveries.store.fanout import first_pending_id
from deliveries.store.lanerows import LaneRange
from deliveries.store.regionholds import holds
from deliveries.store.writelock import write_transaction
from subscriptions.selectors import PushSettings

logger = logging.getLogger(__name__)

#: Younger deliveries may still be between their commit and their offer.
GRACE_MS = 5_000
#: The deliveries of a lane that are compared at first and later. At most 100,000 are in memory at once.
FIRST_IDS, MORE_IDS = 25, 5_000
#: Of the deliveries of a lane that are missing in Redis, so many are looked up once more.
MISSING_CHECKED = 100
#: A token is lost if nobody has held it for this long, which is longer than any script or hand-over takes.
LOST_MS = 15_000
#: A suspicion is forgotten if no audit renews it.
SUSPECTS_SECONDS = 90


def rebuild(cells: Collection[int] | None = None) -> int:
    """Tell Redis about every lane with waiting deliveries, after a wipe of these cells or all. Return how many."""
    with default_backlog().rebuilding(cells):
        lanes = _settings_of_lanes(lane for lane in _lanes_waiting() if cells is None or lane.cell in cells)
        # A lane that a publisher has used since the wipe already reads the database. It must not read it twice, or its
        # messages would come twice.
        tell_lanes(lanes)
        with beside_an_outage():
            default_backlog().note_regions({lane.region for lane in lanes})
    logger.info("Redis rebuilt from the database: %d backlogs", len(lanes))
    return len(lanes)


def rebuild_region(region: str) -> None:
    """Tell Redis about the lanes of a region, which is held from now on."""
    lanes = _settings_of_lanes(lane for lane in _lanes_waiting() if lane.region == region)
    tell_lanes(lanes)
    logger.info("region %s is held here, with %d backlogs", region, len(lanes))


def _lanes_waiting(*, shard: int | None = None) -> list[Lane]:
    """Return the lanes with waiting deliveries, of the regions that this one holds."""
    rows = lanerows.all_lanes_waiting(shard=shard)
    return [Lane(row.subscription_id, row.region) for row in rows if holds(row.region)]


def _settings_of_lanes(lanes: Iterable[Lane]) -> dict[Lane, PushSettings]:
    """Return the settings of those lanes whose subscriptions exist."""
    lanes = list(lanes)
    settings_by_id = settings_of({lane.subscription_id for lane in lanes})
    return {lane: settings_by_id[lane.subscription_id] for lane in lanes if lane.subscription_id in settings_by_id}


def audit(known: Mapping[Lane, LaneSummary] | None = None, *, shard: int | None = None) -> int:
    """Find deliveries that are missing in Redis, and lanes with outdated settings. Return how many were repaired.

    All lanes, or those of a shard, are compared together, in few round trips. `known` are the lanes of Redis, if the
    caller has just read them.
    """
    before_id = min(first_id_at(time.time_ns() // 1_000_000 - GRACE_MS), first_pending_id())
    if known is None:
        known = default_backlog().summaries(shard=shard)
    known = {lane: summary for lane, summary in known.items() if holds(lane.region)}
    rows = _lanes_waiting(shard=shard)
    settings_by_id = settings_of({lane.subscription_id for lane in (*known, *rows)})
    waiting = {lane: settings_by_id[lane.subscription_id] for lane in rows if lane.subscription_id in settings_by_id}
    current = {lane: settings_by_id[lane.subscription_id] for lane in known if lane.subscription_id in settings_by_id}
    # Something configured the others after their subscriptions had been deleted: an audit, or a publisher's offer.
    for lane in known.keys() - current.keys():
        default_backlog().forget(lane)
    outdated = {lane: settings for lane, settings in current.items() if not lane_agrees(known[lane], settings)}
    for lane in outdated:
        logger.warning("lane %s had other settings than its subscription", lane.key)
    unknown = {lane: settings for lane, settings in waiting.items() if lane not in known}
    tell_lanes(outdated | unknown)
    # A lane that was told reads all rows.
    ranges = [
        LaneRange(*lane, 0, min(before_id, _paged_from(known[lane])))
        for lane, settings in waiting.items()
        if lane in known and lane not in outdated and not settings.detached
    ]
    orphans = _first_orphans(ranges)
    # A lane may have dropped what waited in Redis since `known` was read, or read what it had left to the database.
    newest = default_backlog().summaries_of(list(orphans))
    missing = default_backlog().missing({lane: [str(orphan)] for lane, orphan in orphans.items()})
    orphans = {lane: orphans[lane] for lane in missing if lane in newest and orphans[lane] < _paged_from(newest[lane])}
    for lane, orphan in orphans.items():
        logger.warning("deliveries of lane %s from %d on were missing in Redis; they are read again", lane.key, orphan)
    default_backlog().configure_all(
        lane_configuration(lane, waiting[lane], action="spill", from_id=orphan) for lane, orphan in orphans.items()
    )
    return len(outdated) + len(unknown) + len(orphans)


def _paged_from(summary: LaneSummary) -> int:
    """Return the message id from which on a lane's deliveries will come with its next pages."""
    return summary.cursor if summary.spilled else statements.LAST_ID


def audit_tokens(known: Mapping[Lane, LaneSummary] | None = None, *, shard: int | None = None) -> int:
    """Take back tokens that nobody has held since an earlier audit, and return their number.

    Redis has the time at which an audit first missed each holder, so it does not matter which process audits, nor
    whether two do so at once.
    """
    backlog = default_backlog()
    if known is None:
        known = backlog.summaries(shard=shard)
    suspects_key = f"{PREFIX}suspects" + ("" if shard is None else f".{shard}")
    generations = {lane: summary.generation for lane, summary in known.items() if summary.outstanding}
    tokens = backlog.tokens(list(generations))
    held = backlog.held({lane.region for lane in generations}) if generations else set()
    missed_at = backlog.shared.hgetall(suspects_key)
    now_ms = int(server_ms(backlog.shared))
    suspects: dict[str, int] = {}
    repaired = 0
    for lane, message_ids in tokens.items():
        names = {f"{i}.{lane.subscription_id}.{lane.region}": i for i in message_ids}
        tasks = {f"{name}.{generations[lane]}": i for name, i in names.items() if name not in held}
        since = {task: int(missed_at.get(task.encode(), now_ms)) for task in tasks}
        lost = [
            tasks[task] for task, at_ms in since.items() if task.encode() in missed_at and now_ms - at_ms >= LOST_MS
        ]
        suspects |= since
        if lost:
            logger.warning("lane %s: nobody held %d of its tokens", lane.key, len(lost))
            repaired += backlog.repair(lane, lost, generation=generations[lane])
    if missed_at or suspects:
        pipe = backlog.shared.pipeline()
        pipe.delete(suspects_key)
        if suspects:
            pipe.hset(suspects_key, mapping={task: str(at_ms) for task, at_ms in suspects.items()})
            pipe.expire(suspects_key, SUSPECTS_SECONDS)
        pipe.execute()
    return repaired


def _first_orphans(ranges: Sequence[LaneRange]) -> dict[Lane, int]:
    """Return, for each lane, the oldest delivery that is missing in Redis and in the database when asked once more.

    Settled deliveries leave the database first, so the database is asked last.
    """
    orphans: dict[Lane, int] = {}
    limit = FIRST_IDS
    while ranges:
        later: list[LaneRange] = []
        lanes_together = max(LANES_CHUNK * FIRST_IDS // limit, 1)
        for start in range(0, len(ranges), lanes_together):
            chunk = ranges[start : start + lanes_together]
            ids = lanerows.oldest_ids(chunk, limit=limit)
            missing = default_backlog().missing({Lane(*r[:2]): names for r, names in zip(chunk, ids, strict=True)})
            left = {lane: default_backlog().left_keys(lane) for lane in missing}
            missing = {lane: _without_left(names, left[lane]) for lane, names in missing.items()}
            checked = [(*lane, int(name)) for lane, names in missing.items() for name in names[:MISSING_CHECKED]]
            lowest = lanerows.oldest_waiting(checked) if checked else {}
            orphans |= {Lane(*lane): message_id for lane, message_id in lowest.items()}
            left_ids = {tuple(lane): tuple(keys.values()) for lane, keys in left.items()}
            later += [
                r._replace(after_id=int(names[-1]), left_ids=left_ids.get(r[:2], r.left_ids))
                for r, names in zip(chunk, ids, strict=True)
                if len(names) == limit and (r.subscription_id, r.region) not in lowest
            ]
        ranges, limit = later, MORE_IDS
    return orphans


def _without_left(names: list[str], keys: Mapping[str, int]) -> list[str]:
    """Return those of the deliveries missing in Redis that the lane has not left to the database: `keys` has those."""
    if not keys:
        return names
    ordering_keys = statements.ordering_keys([int(name) for name in names])
    return [name for name in names if not is_left(int(name), ordering_keys.get(int(name), ""), keys)]


def purge_gone(*, shard: int | None = None) -> int:
    """Remove deliveries of deleted or detached subscriptions, or those of a shard. Return how many lanes they had."""
    lanes = [Lane(row.subscription_id, row.region) for row in lanerows.lanes_of_gone(shard=shard)]
    for lane in lanes:
        default_backlog().forget(lane)
        _delete_lane(subscription_id=lane.subscription_id, region=lane.region)
    return len(lanes)


def _delete_lane(*, subscription_id: int, region: str) -> None:
    """Delete all deliveries of a lane, in transactions of bounded size."""
    while True:
        ids = lanerows.waiting_ids(
            subscription_id=subscription_id,
            region=region,
            after_id=-1,
            before_id=statements.LAST_ID,
            limit=statements.DELETE_CHUNK,
        )
        if not ids:
            return
        with write_transaction():
            statements.delete_deliveries(subscription_id=subscription_id, region=region, message_ids=ids)
