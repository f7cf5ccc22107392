"""A push worker that starts forgets the lanes of regions that workers before it held."""

from __future__ import annotations

from typing import Any

import pytest

from deliveries.backlog.codes import Mode
from deliveries.backlog.default import default_backlog
from deliveries.backlog.records import Lane
from deliveries.push.regionkeeper import RegionKeeper
from deliveries.store import regionholds
from tests.lanes import configure


def test_lanes_of_regions_that_others_hold_now_are_forgotten(
    redis_url: str, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, other = Lane(1, settings.REGION), Lane(1, "far")
    for lane in (own, other):
        configure(default_backlog(), lane, mode=Mode.PUSH, action="new")
    monkeypatch.setattr(regionholds, "holds_now", lambda region: region == settings.REGION)
    RegionKeeper(is_well=lambda: True, adopt=lambda regions: None)._serve(frozenset())
    assert set(default_backlog().lanes()) == {own}
