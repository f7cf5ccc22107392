"""The frequent questions about waiting deliveries, by lane and in the order of their ids, in SQL (statements.py)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from deliveries.rules.shards import is_in
from deliveries.store.sql import among_each, fetch_ids, fetch_rows, is_postgresql, rows_table
from deliveries.store.statements import _SINCE_SEEK


def waiting_ids(*, subscription_id: int, region: str, before_id: int, after_id: int, limit: int) -> list[int]:
    """Return the message ids of the oldest deliveries of a lane in an open range."""
    return fetch_ids(
        "SELECT message_id FROM deliveries_delivery WHERE subscription_id = %s AND region = %s"
        " AND message_id > %s AND message_id < %s ORDER BY message_id LIMIT %s",
        [subscription_id, region, after_id, before_id, limit],
    )


def lanes_waiting(subscription_id: int) -> list[str]:
    """Return the regions in which a subscription has waiting deliveries. Takes one index step per region."""
    next_region = (
        "SELECT region FROM deliveries_delivery WHERE subscription_id = %s AND region > %s ORDER BY region LIMIT 1"
    )
    regions: list[str] = []
    while rows := fetch_rows(next_region, [subscription_id, regions[-1] if regions else ""]):
        regions.append(rows[0][0])
    return regions


#: The oldest delivery of each lane: one step in the index per lane.
_LANES = """
WITH RECURSIVE lanes (id, subscription_id, region, oldest_id) AS (
    SELECT * FROM (
        SELECT id, subscription_id, region, message_id FROM deliveries_delivery
        ORDER BY subscription_id, region, message_id LIMIT 1
    ) first
    UNION ALL
    SELECT d.id, d.subscription_id, d.region, d.message_id FROM lanes JOIN deliveries_delivery d ON d.id = (
        SELECT n.id FROM deliveries_delivery n
        WHERE (n.subscription_id, n.region) > (lanes.subscription_id, lanes.region)
        ORDER BY n.subscription_id, n.region, n.message_id LIMIT 1
    )
)
SELECT lanes.subscription_id, lanes.region, lanes.oldest_id FROM lanes"""


class LaneWaiting(NamedTuple):
    """A lane with deliveries in the database, and the message id of the oldest."""

    subscription_id: int
    region: str
    oldest_id: int


def all_lanes_waiting(*, shard: int | None = None) -> list[LaneWaiting]:
    """Return all lanes with waiting deliveries, or those of a shard, even those of deleted subscriptions."""
    rows = fetch_rows(_LANES)
    return [LaneWaiting(*row) for row in rows if is_in(row[0], shard)]


class LaneCount(NamedTuple):
    """A lane with deliveries in the database: how many, and the message id of the oldest."""

    subscription_id: int
    region: str
    waiting: int
    oldest_id: int


def count_lanes() -> list[LaneCount]:
    """Return all lanes with waiting deliveries. It reads all of them, so it is for what comes once a minute."""
    rows = fetch_rows(
        "SELECT subscription_id, region, count(*), min(message_id) FROM deliveries_delivery"
        " GROUP BY subscription_id, region"
    )
    return [LaneCount(*row) for row in rows]


def lanes_of_gone(*, shard: int | None = None) -> list[LaneWaiting]:
    """Return the lanes with deliveries of deleted or detached subscriptions, or those of a shard.

    One statement reads both tables: a subscription that is committed in between cannot seem to be deleted.
    """
    rows = fetch_rows(
        _LANES + " WHERE NOT EXISTS (SELECT 1 FROM subscriptions_subscription s"
        " WHERE s.id = lanes.subscription_id AND NOT s.detached)"
    )
    return [LaneWaiting(*row) for row in rows if is_in(row[0], shard)]


def push_backlogs() -> dict[str, int]:
    """Return, for each region, the number of lanes with waiting deliveries whose subscriptions push."""
    rows = fetch_rows(
        f"{_LANES} JOIN subscriptions_subscription s ON s.id = lanes.subscription_id"
        " WHERE s.push_endpoint <> '' AND NOT s.detached AND NOT s.paused"
    )
    return Counter(region for _, region, _ in rows)


class LaneRange(NamedTuple):
    """The deliveries of a lane in an open range of message ids.

    Those of the ordering keys of the messages `left_ids` are left out, from these messages on.
    """

    subscription_id: int
    region: str
    after_id: int
    before_id: int
    left_ids: Sequence[int] = ()


def oldest_ids(ranges: Sequence[LaneRange], *, limit: int) -> list[list[str]]:
    """Return the message ids, as text, of at most `limit` of the oldest deliveries of each range, in order."""
    if any(it.left_ids for it in ranges):
        return [_oldest_others(it, limit=limit) if it.left_ids else oldest_ids([it], limit=limit)[0] for it in ranges]
    names = ("subscription_id", "region", "after_id", "before_id")
    source, parameters = rows_table([it[:4] for it in ranges], names, ("bigint", "text", "bigint", "bigint"))
    group = "string_agg(message_id::text, ',' ORDER BY message_id)" if is_postgresql() else "group_concat(message_id)"
    rows = fetch_rows(
        f"SELECT r.number, (SELECT {group} FROM (SELECT message_id FROM deliveries_delivery d"
        " WHERE d.subscription_id = r.subscription_id AND d.region = r.region"
        " AND d.message_id > r.after_id AND d.message_id < r.before_id ORDER BY d.message_id LIMIT %s) w)"
        f" FROM {source} r",
        [limit, *parameters],
    )
    texts = dict(rows)
    return [texts[number].split(",") if texts[number] else [] for number in range(1, len(ranges) + 1)]


def _oldest_others(lane: LaneRange, *, limit: int) -> list[str]:
    """Return what oldest_ids does of a range in which keys are left out. Both sides are read from indexes alone."""
    keys, first_ids = rows_table([(first_id,) for first_id in lane.left_ids], ("first_id",), ("bigint",))
    ids = fetch_ids(
        "SELECT message_id FROM deliveries_delivery"
        " WHERE subscription_id = %s AND region = %s AND message_id > %s AND message_id < %s"
        f" EXCEPT SELECT m.id FROM {keys} k CROSS JOIN deliveries_message f CROSS JOIN deliveries_message m"
        " WHERE f.id = k.first_id AND m.topic_id = f.topic_id AND m.ordering_key = f.ordering_key"
        " AND m.ordering_key > '' AND m.id >= k.first_id AND m.id > %s AND m.id < %s ORDER BY message_id LIMIT %s",
        [*lane[:4], *first_ids, lane.after_id, lane.before_id, limit],
    )
    return list(map(str, ids))


def oldest_waiting(deliveries: Sequence[tuple[int, str, int]]) -> dict[tuple[int, str], int]:
    """Return, for each lane, the lowest message id of those that `waiting_among` returns."""
    youngest_first = sorted(waiting_among(deliveries), reverse=True)
    return {(subscription_id, region): message_id for subscription_id, region, message_id in youngest_first}


def waiting_among(deliveries: Sequence[tuple[int, str, int]]) -> set[tuple[int, str, int]]:
    """Return those of these deliveries, each a subscription, a region and a message id, that are still there."""
    source, parameters = rows_table(
        deliveries, ("subscription_id", "region", "message_id"), ("bigint", "text", "bigint")
    )
    rows = fetch_rows(
        f"SELECT d.subscription_id, d.region, d.message_id FROM {source} r JOIN deliveries_delivery d"
        " ON d.subscription_id = r.subscription_id AND d.region = r.region AND d.message_id = r.message_id",
        parameters,
    )
    return {tuple(row) for row in rows}


def still_waiting(
    *, subscription_id: int, region: str, message_ids: Sequence[int], seek: int | None = None
) -> list[int]:
    """Return the messages of these deliveries that are still there.

    With `seek`, which their attempts had, leave out those that a later seek has brought back, and let no seek bring
    back the others before the transaction ends.
    """
    since, values = ("", []) if seek is None else (_SINCE_SEEK, [seek])
    if seek is not None and is_postgresql():
        since += " FOR UPDATE"
    waiting_ids: list[int] = []
    for condition, ids in among_each("message_id", message_ids):
        waiting_ids += fetch_ids(
            "SELECT message_id FROM deliveries_delivery"
            f" WHERE subscription_id = %s AND region = %s AND {condition}{since}",
            [subscription_id, region, *ids, *values],
        )
    return waiting_ids


def last_waiting_id(*, subscription_id: int, region: str) -> int:
    """Return the id of the youngest message that waits in a lane, or -1."""
    [last_id] = fetch_ids(
        "SELECT max(message_id) FROM deliveries_delivery WHERE subscription_id = %s AND region = %s",
        [subscription_id, region],
    )
    return -1 if last_id is None else last_id
