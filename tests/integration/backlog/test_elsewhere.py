"""What a region's Redis hears of changes that were made where another Redis is (backlog/elsewhere.py)."""

from __future__ import annotations

from typing import Any

import pytest

from deliveries.backlog.default import default_backlog
from deliveries.backlog.elsewhere import hear_of_elsewhere
from deliveries.backlog.records import Lane
from deliveries.models import Delivery, LostOffer
from deliveries.store import lostoffers, regionholds
from deliveries.store.lostoffers import OTHER_BACKLOG, OTHER_SETTINGS
from subscriptions.models import Subscription
from tests.lanes import are_known
from tests.restapi import Api

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def lane(redis_url: str, api: Api) -> Lane:
    """A lane whose messages wait for a worker."""
    api.create("topics/orders")
    push = {"pushEndpoint": "https://shop.example/push"}
    api.create("subscriptions/push", {"topic": "projects/shop/topics/orders", "pushConfig": push})
    api.post("topics/orders:publish", {"messages": [{"data": "aGVsbG8="}] * 3})
    row = Delivery.objects.first()
    assert row is not None
    return Lane(row.subscription_id, row.region)


def known(lane: Lane) -> int:
    """Return how many of the messages Redis has."""
    return sum(
        map(bool, are_known(default_backlog(), lane, list(Delivery.objects.values_list("message_id", flat=True))))
    )


def note(lane: Lane, *, what: int) -> None:
    LostOffer.objects.create(subscription_id=lane.subscription_id, region=lane.region, message_id=what)


@pytest.mark.parametrize(("what", "left"), [(OTHER_SETTINGS, 3), (OTHER_BACKLOG, 0)])
def test_a_seek_elsewhere_forgets_what_waits_and_a_change_does_not(lane: Lane, what: int, left: int) -> None:
    assert known(lane) == 3
    note(lane, what=what)

    hear_of_elsewhere(lane.region)

    assert known(lane) == left
    # The rows are read again
    state = default_backlog().states([lane])[0]
    assert state is not None and state.spilled
    assert not LostOffer.objects.exists()


@pytest.mark.parametrize("is_held", [True, False])
def test_a_message_that_was_skipped_elsewhere_is_forgotten(
    lane: Lane, api: Api, settings: Any, monkeypatch: pytest.MonkeyPatch, is_held: bool
) -> None:
    skipped_id, *others = Delivery.objects.order_by("message_id").values_list("message_id", flat=True)
    monkeypatch.setattr(regionholds, "holds", lambda region: is_held)
    api.post("subscriptions/push:skipMessages", {"messageIds": [str(skipped_id)]})
    settings.REGION_REDIS = True
    lostoffers.sweep_settled()
    notes = list(LostOffer.objects.values_list("subscription_id", "region", "message_id"))
    assert notes == ([] if is_held else [(*lane, skipped_id)])

    hear_of_elsewhere(lane.region)

    assert are_known(default_backlog(), lane, [skipped_id, *others]) == [False, True, True]
    assert not LostOffer.objects.exists()


def test_the_lane_of_a_subscription_that_was_deleted_elsewhere_ends(lane: Lane) -> None:
    Subscription.objects.all().delete()
    note(lane, what=OTHER_SETTINGS)

    hear_of_elsewhere(lane.region)

    assert lane not in default_backlog().summaries()
