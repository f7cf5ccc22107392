"""The state of lanes in Redis, as the console shows it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from deliveries.backlog.backlog import Backlog
from deliveries.backlog.codes import Mode, Place
from deliveries.backlog.connection import beside_an_outage, server_ms
from deliveries.backlog.lanestate import parse_lane_state
from deliveries.backlog.records import Lane, cell_key, key_digest
from deliveries.backlog.regions import patience_seconds
from deliveries.backlog.workerverbs import DEAD_AFTER_MS
from deliveries.inspection.conditions import Condition
from deliveries.rules.flow import Flow
from deliveries.store.regionholds import holds
from deliveries.telemetry.export.readiness import KEY_SECONDS, WRITTEN_KEY

#: Retries that are read to find the result of the last failed push.
RETRIES_READ = 20


@dataclass(frozen=True, slots=True)
class LaneView:
    """The current state of a lane. `ack_share` is the share of acks in the last `results` results."""

    region: str
    #: Whether Redis has the lane.
    is_known: bool
    mode: Mode
    #: Messages that are pushed now, or leased to subscribers.
    outstanding: int
    window: int
    #: The subscription's own limit of outstanding messages; 0 for none.
    cap: float
    #: Whether its limit of messages a second holds the next one back.
    is_rate_spent: bool
    #: Whether messages go one at a time, in a pause of the push backoff or after one, until one is acknowledged.
    is_backing_off: bool
    #: How long the push backoff still delays the next delivery.
    pause_ms: float
    #: The time between two deliveries that the share of nacks imposes; 0 for none.
    gap_ms: float
    results: int
    ack_share: float
    nack_share: float
    #: How long ago the endpoint acknowledged a push that began after its last nack; None if it never did.
    acked_ms_ago: float | None
    #: Whether some deliveries are in the database only.
    is_spilled: bool
    #: Whether the lane has any message, as far as Redis knows.
    has_messages: bool
    #: Messages that go out as soon as the window and the push backoff let them.
    ready: int
    #: The number of messages that wait for a retry, the ids of the first of them, and when the first is due.
    retrying: int
    retry_ids: Sequence[int]
    retry_in_ms: float | None
    #: How long ago a puller asked for messages; None if none ever did, or the lane is pushed.
    asked_ms_ago: float | None
    #: Seconds since a push worker last served the region; None if none ever did.
    silent_seconds: float | None
    #: Whether workers of other regions serve this one, as its own have been away for long.
    is_adopted: bool = False
    #: Whether the lane is in the Redis of another region, where this one knows nothing of it.
    is_elsewhere: bool = False

    @property
    def is_silent(self) -> bool:
        """Whether no push worker of the region gives a sign of life."""
        return self.silent_seconds is None or self.silent_seconds * 1000 > DEAD_AFTER_MS

    @property
    def delay_ms(self) -> float:
        """How long the push backoff holds back each message: the rest of a pause, or the gap between two."""
        return max(self.pause_ms, self.gap_ms)

    @property
    def failures(self) -> int:
        return round((1 - self.ack_share) * self.results)


def lane_views(backlog: Backlog, lanes: Sequence[Lane]) -> dict[Lane, LaneView]:
    """Return the state of each lane, but for those whose node of a Cluster is away.

    May raise redis.RedisError, also if Redis takes no writes, and errors of the database.
    """
    # A Redis that is full or read-only answers questions, but no message moves.
    backlog.shared.set(WRITTEN_KEY, 1, ex=KEY_SECONDS)
    silent_ms = _silent_ms(backlog, sorted({lane.region for lane in lanes}))
    is_any_alive = any(silent <= DEAD_AFTER_MS for silent in silent_ms.values())
    views = {
        lane: _lane_view(lane.region, reply, silent_ms.get(lane.region))
        for lane, reply in backlog.views(lanes, retries=RETRIES_READ).items()
    }
    return {lane: _served(view, is_any_alive=is_any_alive) for lane, view in views.items()}


def _silent_ms(backlog: Backlog, regions: Sequence[str]) -> dict[str, float]:
    """Return how long ago workers served these regions, and the one that was served last.

    Only one cell knows. If its node of a Cluster is away, nothing is said against the workers.
    """
    with beside_an_outage():
        now_ms = server_ms(backlog.shared)
        pipe = backlog.client.pipeline(transaction=False)
        pipe.zrange(cell_key(0, "regions"), -1, -1, withscores=True)
        for region in regions:
            pipe.zscore(cell_key(0, "regions"), region)
        newest, *times_ms = pipe.execute()
        served_ms = {name.decode(): at_ms for name, at_ms in newest}
        served_ms |= {name: at_ms for name, at_ms in zip(regions, times_ms, strict=True) if at_ms is not None}
        return {name: now_ms - at_ms for name, at_ms in served_ms.items()}
    return dict.fromkeys(regions, 0.0)


def _served(view: LaneView, *, is_any_alive: bool) -> LaneView:
    """Return the lane with who serves it besides the workers of its region."""
    if not holds(view.region):
        return replace(view, is_elsewhere=True)
    is_given_up = view.silent_seconds is not None and view.silent_seconds >= patience_seconds(view.region)
    return replace(view, is_adopted=is_any_alive and is_given_up)


def condition_of(lane: LaneView) -> Condition:
    """Return why messages of a lane wait, given that some do."""
    if lane.is_elsewhere:
        return Condition.ELSEWHERE
    if lane.is_silent and not lane.is_adopted:
        return Condition.NO_WORKER
    if lane.pause_ms > 0 or lane.is_backing_off:
        return Condition.BACKING_OFF
    if lane.gap_ms > 0:
        return Condition.SLOWED
    if lane.retrying and not lane.outstanding:
        return Condition.RETRYING
    if not (lane.ready or lane.is_spilled or lane.retrying):
        # Nothing is held back: all of its messages are on their way, or wait for their ordering keys.
        return Condition.DELIVERING
    if lane.cap and lane.outstanding >= lane.cap:
        return Condition.LIMITED
    if lane.window and lane.outstanding >= lane.window:
        return Condition.WINDOW_FULL
    return Condition.LIMITED if lane.is_rate_spent else Condition.DELIVERING


@dataclass(frozen=True, slots=True)
class Holder:
    """The message that an ordering key of a lane waits for."""

    message_id: int
    #: Later messages of the key that Redis has.
    parked: int
    #: Whether the lane has left further ones to the database.
    has_left: bool


def key_holders(backlog: Backlog, lane: Lane, ordering_keys: Collection[str]) -> dict[str, Holder]:
    """Return which message each of these ordering keys waits for, as far as Redis has them.

    May raise redis.RedisError.
    """
    pipe = backlog.client.pipeline(transaction=False)
    for digest in map(key_digest, ordering_keys):
        pipe.hget(f"{lane.root}:k", digest)
        pipe.llen(f"{lane.root}:q:{digest}")
        pipe.hexists(f"{lane.root}:w", digest)
    replies = pipe.execute()
    held = zip(ordering_keys, replies[0::3], replies[1::3], replies[2::3], strict=True)
    # "*" stands for leases of another puller.
    return {
        key: Holder(int(first), parked, has_left) for key, first, parked, has_left in held if first not in (None, b"*")
    }


def message_places(backlog: Backlog, lane: Lane, message_id: int) -> tuple[Place | None, float | None]:
    """Return the place of a message in a lane and when its retry is due (in ms since 1970), or None for each."""
    pipe = backlog.client.pipeline(transaction=False)
    pipe.hget(lane.places_key, str(message_id))
    pipe.zscore(f"{lane.root}:z", str(message_id))
    mark, due_at_ms = pipe.execute()
    return Place(mark.decode()) if mark else None, due_at_ms


def _lane_view(region: str, reply: Any, silent_ms: float | None) -> LaneView:
    now_ms, raw, ready, retrying, retried, leased = reply
    state = parse_lane_state(dict(zip(raw[::2], raw[1::2], strict=True)))
    flow = state.flow if state is not None else Flow()
    kept = (state.outstanding, state.parked, state.left, state.spilled) if state is not None else ()
    return LaneView(
        region=region,
        is_known=state is not None,
        mode=state.mode if state is not None else Mode.IDLE,
        outstanding=leased + (state.outstanding if state is not None else 0),
        window=state.window if state is not None else 0,
        cap=flow.cap,
        is_rate_spent=flow.rate > 0
        and flow.bucket_tokens + max(now_ms - flow.bucket_filled_ms, 0) * flow.rate / 1000 < 1,
        is_backing_off=flow.is_backing_off,
        pause_ms=max(flow.resume_ms - now_ms, 0.0),
        # Less than a millisecond holds nothing back, and would be shown as 0.
        gap_ms=flow.gap_ms if flow.gap_ms >= 1 else 0.0,
        results=int(flow.results_seen),
        ack_share=flow.ack_ratio,
        nack_share=flow.nack_share,
        acked_ms_ago=max(now_ms - flow.acked_ms, 0.0) if flow.acked_ms else None,
        is_spilled=state is not None and state.spilled,
        has_messages=any((ready, retrying, leased, *kept)),
        ready=ready,
        retrying=retrying,
        retry_ids=[int(message_id) for message_id in retried[::2]],
        retry_in_ms=max(float(retried[1]) - now_ms, 0.0) if retried else None,
        asked_ms_ago=max(now_ms - state.pumped_ms, 0.0)
        if state is not None and state.mode == Mode.PULL and state.pumped_ms
        else None,
        silent_seconds=None if silent_ms is None else max(silent_ms, 0.0) / 1000,
    )
