"""What Redis has of lanes and maintenance, for tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kombu.transport.redis import Channel

from deliveries.backlog.backlog import Backlog
from deliveries.backlog.codes import STATE_CODES, Mode
from deliveries.backlog.default import default_backlog
from deliveries.backlog.lanestate import LaneState
from deliveries.backlog.records import Action, Configuration, Lane, PageRequest, work_key
from deliveries.backlog.regions import KEY as AUDIT_KEY
from deliveries.backlog.regions import KEY_SECONDS as AUDIT_SECONDS
from deliveries.rules.taskmessage import queue_name
from subscriptions.models import Subscription


def lane_state(backlog: Backlog, lane: Lane) -> LaneState:
    """Return the state of a lane that Redis must know."""
    state = backlog.states([lane])[0]
    assert state is not None, f"Redis does not know the lane {lane.key}"
    return state


def configure(backlog: Backlog, lane: Lane, *, mode: Mode, action: Action, **settings: Any) -> None:
    """Pass settings on to a lane; `settings` are those of Configuration."""
    backlog.configure_all([Configuration(lane, mode, action, **settings)])


def are_known(backlog: Backlog, lane: Lane, message_ids: Sequence[int]) -> list[bool]:
    """Return for each delivery whether Redis has it."""
    missing = backlog.missing({lane: list(map(str, message_ids))}).get(lane, [])
    return [str(message_id) not in missing for message_id in message_ids]


def mark_alive(backlog: Backlog) -> None:
    """Let Redis count as complete, so that no worker rebuilds it."""
    with backlog.rebuilding():
        pass


def lane_fields(**values: float) -> dict[str, float]:
    """Return values by name as the fields of a lane's hash."""
    return {STATE_CODES[name]: value for name, value in values.items()}


def lane_change(backlog: Backlog, lane: Lane, **values: float) -> None:
    """Overwrite fields of a lane's state."""
    backlog.client.hset(lane.state_key, mapping=lane_fields(**values))


def page_requests(backlog: Backlog, *, region: str) -> list[PageRequest]:
    """Fetch nothing but the requests for pages, as a worker of the region."""
    arguments = [region, "pages", 0, backlog.limit]
    return PageRequest.parse_all(backlog.scripts.fetch(keys=[queue_name(region), work_key("w")], args=arguments)[3])


def note_maintenance() -> None:
    """Let a maintenance worker seem to have found nothing amiss just now."""
    default_backlog().client.set(AUDIT_KEY, "[]", ex=AUDIT_SECONDS)


def low_queue(region: str) -> str:
    """Return the list with the messages of the lanes that are not prompt, as none is before its first ack."""
    return f"{queue_name(region)}{Channel.sep}{Channel.priority_steps[-1]}"


def lease_ends() -> dict[bytes, float]:
    """Return when each lease of the one subscription ends."""
    ends: list[tuple[bytes, float]] = default_backlog().client.zrange(_leases_key(), 0, -1, withscores=True)
    return dict(ends)


def end_leases(*, besides: int = 0) -> None:
    """End the leases of the one subscription now, but the last ones, as if their time had passed."""
    leased = list(lease_ends())
    if ended := leased[: len(leased) - besides]:
        default_backlog().client.zadd(_leases_key(), dict.fromkeys(ended, 1))


def _leases_key() -> str:
    return f"{Lane(Subscription.objects.get().pk, 'local').root}:l"
