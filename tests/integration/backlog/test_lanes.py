"""A change of a subscription reaches its lanes of all regions that share a Redis."""

from __future__ import annotations

from typing import Any

import pytest

from deliveries.backlog import lanes
from deliveries.backlog.codes import Mode
from deliveries.backlog.default import default_backlog
from deliveries.backlog.paging import page_in
from deliveries.backlog.records import Lane
from deliveries.models import Delivery
from tests.lanes import are_known, page_requests
from tests.restapi import Api

pytestmark = pytest.mark.django_db(transaction=True)

TOPIC = "projects/shop/topics/orders"
FUTURE = "9999-01-01T00:00:00Z"


@pytest.fixture
def lane(redis_url: str, api: Api, settings: Any) -> Lane:
    """A lane of another region than the server's own, with messages that wait for a worker."""
    settings.REGIONS = ["local", "far"]
    api.create("topics/orders")
    api.create("subscriptions/push", {"topic": TOPIC, "pushConfig": {"pushEndpoint": "https://shop.example/push"}})
    api.post("topics/orders:publish", {"messages": [{"data": "aGVsbG8="}] * 5}, **{"X-PushHub-Region": "far"})
    row = Delivery.objects.first()
    assert row is not None
    return Lane(row.subscription_id, "far")


def mode_of(lane: Lane) -> Mode:
    state = default_backlog().states([lane])[0]
    assert state is not None
    return state.mode


def test_a_seek_forgets_what_waits_in_another_region(lane: Lane, api: Api) -> None:
    ids = list(Delivery.objects.values_list("message_id", flat=True))
    page_in(page_requests(default_backlog(), region="far"))
    assert any(are_known(default_backlog(), lane, ids))
    assert api.post("subscriptions/push:seek", {"time": FUTURE}).status == 200
    assert not any(are_known(default_backlog(), lane, ids))


def test_a_change_reaches_a_lane_in_which_nothing_waits(lane: Lane, api: Api) -> None:
    Delivery.objects.all().delete()
    assert mode_of(lane) is Mode.PUSH
    assert api.post("subscriptions/push:modifyPushConfig", {"pushConfig": {}}).status == 200
    assert mode_of(lane) is Mode.PULL


def test_of_two_changes_at_once_the_later_one_counts(lane: Lane, api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given a change whose settings were read, when another one is stored and passed on before they are passed on
    configuration = lanes.lane_configuration

    def configure_late(*args: Any, **more: Any) -> Any:
        monkeypatch.setattr(lanes, "lane_configuration", configuration)
        assert api.post("subscriptions/push:modifyPushConfig", {"pushConfig": {}}).status == 200
        return configuration(*args, **more)

    monkeypatch.setattr(lanes, "lane_configuration", configure_late)
    config = {"pushConfig": {"pushEndpoint": "https://shop.example/other"}}
    assert api.post("subscriptions/push:modifyPushConfig", config).status == 200
    # Then the lane has the settings of the later one
    assert mode_of(lane) is Mode.PULL


def test_a_change_makes_no_lanes_of_regions_without_messages(lane: Lane, api: Api, settings: Any) -> None:
    settings.REGIONS = ["local", "far", "away"]
    assert api.post("subscriptions/push:modifyPushConfig", {"pushConfig": {}}).status == 200
    assert {known.region for known in default_backlog().lanes()} == {"local", "far"}
