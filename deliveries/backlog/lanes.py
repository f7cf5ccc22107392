"""Passes the settings of subscriptions on to their lanes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from zlib import crc32

from django.conf import settings as django_settings

from deliveries.backlog.codes import Mode
from deliveries.backlog.default import default_backlog
from deliveries.backlog.lanestate import LaneSummary
from deliveries.backlog.records import Action, Configuration, Lane, OfferedLane
from deliveries.rules.limits import limits
from deliveries.store import lanerows
from deliveries.store.regionholds import holds
from subscriptions.selectors import PushSettings, push_settings, push_settings_of

#: Lanes or subscriptions of one statement.
LANES_CHUNK = 4000


def mode_of(settings: PushSettings) -> Mode:
    if settings.is_push:
        return Mode.PUSH
    return Mode.IDLE if settings.detached or settings.endpoint else Mode.PULL


def push_config_digest(settings: PushSettings) -> int:
    """Return a number that changes if pushes go elsewhere or carry something else; 0 for a pull subscription."""
    if not settings.endpoint:
        return 0
    sent = (settings.service_account_email, settings.audience, settings.no_wrapper, settings.write_metadata)
    return crc32(repr((settings.endpoint, *sent, list(settings.transforms))).encode()) or 1


def lane_agrees(state: LaneSummary | None, settings: PushSettings) -> bool:
    """Return whether a lane has its subscription's settings; a lane unknown to Redis has none.

    A lane of an older version, or one that an offer made, learns the push requests at the next change.
    """
    if state is None:
        return False
    wanted = (mode_of(settings), settings.ordered, limits(settings.attributes))
    has_push_config = state.push_config in (0, push_config_digest(settings))
    return has_push_config and (state.mode, state.ordered, state.own) == wanted


def lane_offered(lane: Lane, settings: PushSettings) -> OfferedLane:
    """Return a lane for an offer, with the settings that Redis needs if it does not know the lane."""
    return OfferedLane(lane, mode_of(settings), limits(settings.attributes), settings.ordered)


def configure_lane(lane: Lane, settings: PushSettings, *, action: Action, from_id: int = 0) -> None:
    """Pass the settings of a subscription on to a lane; configure.lua explains `action`."""
    default_backlog().configure_all([lane_configuration(lane, settings, action=action, from_id=from_id)])


def lane_configuration(lane: Lane, settings: PushSettings, *, action: Action, from_id: int = 0) -> Configuration:
    return Configuration(
        lane,
        mode_of(settings),
        action,
        from_id=from_id,
        limits=limits(settings.attributes),
        ordered=settings.ordered,
        push_config=push_config_digest(settings),
    )


def lanes_of(subscription_id: int) -> list[Lane]:
    """Return the lanes that may have messages of a subscription, and others that Redis knows, of regions held here."""
    lanes = pull_lanes(subscription_id)
    others = [Lane(subscription_id, region) for region in django_settings.REGIONS if holds(region)]
    return [*lanes, *default_backlog().summaries_of([lane for lane in others if lane not in lanes])]


def pull_lanes(subscription_id: int) -> set[Lane]:
    """Return the lanes that may have messages of a subscription: those of all regions that are held here."""
    regions = {django_settings.REGION, *lanerows.lanes_waiting(subscription_id)}
    return {Lane(subscription_id, region) for region in regions if holds(region)}


def configure_lanes(subscription_id: int, *, action: Action) -> None:
    """Pass the settings of a subscription on to all its lanes. Skip a deleted one."""
    settings = push_settings_of(subscription_id)
    if settings is not None:
        tell_lanes(dict.fromkeys(lanes_of(subscription_id), settings), action=action)


def tell_lanes(settings_by_lane: Mapping[Lane, PushSettings], *, action: Action = "known") -> None:
    """Pass the settings of subscriptions on to lanes, and pass newer ones on if they have changed meanwhile.

    An update may commit and tell Redis between this function's read and write; otherwise the older settings would win.
    """
    while settings_by_lane:
        default_backlog().configure_all(lane_configuration(*pair, action=action) for pair in settings_by_lane.items())
        newest = settings_of({lane.subscription_id for lane in settings_by_lane})
        settings_by_lane = {
            lane: newest[lane.subscription_id]
            for lane, settings in settings_by_lane.items()
            if newest.get(lane.subscription_id, settings) != settings
        }


def settings_of(subscription_ids: Iterable[int]) -> dict[int, PushSettings]:
    """Return the settings of those subscriptions that exist."""
    ids = sorted(subscription_ids)
    settings_by_id: dict[int, PushSettings] = {}
    for start in range(0, len(ids), LANES_CHUNK):
        settings_by_id |= push_settings(ids[start : start + LANES_CHUNK])
    return settings_by_id
