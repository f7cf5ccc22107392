"""Pages from the database: rows that a lane reads again do not go out twice."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from deliveries.backlog.backlog import Lane, PageRequest, Settlement
from deliveries.backlog.codes import Mode
from deliveries.backlog.default import default_backlog
from deliveries.backlog.paging import page_in
from deliveries.models import Delivery
from deliveries.rules.outcome import Verdict
from deliveries.store import statements
from tests.lanes import page_requests
from tests.restapi import Api

TOPIC = "projects/shop/topics/orders"


@pytest.fixture
def lane(redis_url: str, api: Api) -> Lane:
    """The lane of a push subscription with five messages, of which three have a token."""
    api.put("topics/orders", {})
    api.put("subscriptions/pushed", {"topic": TOPIC, "pushConfig": {"pushEndpoint": "http://127.0.0.1:1024/"}})
    api.post("topics/orders:publish", {"messages": [{"data": "aGk="}] * 5})
    return Lane(Delivery.objects.latest("id").subscription_id, "local")


def ids_of(lane: Lane) -> list[int]:
    rows = Delivery.objects.filter(subscription_id=lane.subscription_id).order_by("message_id")
    return list(rows.values_list("message_id", flat=True))


def requested_again(lane: Lane, *, read_to: int) -> PageRequest:
    """Return the request for all rows of the lane, of which those before `read_to` have been read before."""
    default_backlog().configure(lane, mode=Mode.PUSH, action="spill", from_id=0)
    [request] = page_requests(default_backlog(), region=lane.region)
    return replace(request, read_to=read_to)


def acknowledge(lane: Lane, message_id: int) -> None:
    """Do what a push worker does with an ack: the database first, then Redis."""
    statements.deliveries_delete(subscription_id=lane.subscription_id, region=lane.region, message_ids=[message_id])
    settlement = Settlement()
    settlement.add(str(message_id), Verdict.ACK, 1.0)
    default_backlog().settle({lane: settlement}, dice=0.0, finished={})


def test_a_row_that_is_acknowledged_while_it_is_read_again_does_not_go_out_again(
    lane: Lane, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given rows that the lane has read before, and an ack that arrives between the read and the offer of the page
    first, *others = ids_of(lane)
    page_read = statements.page_read

    def read_then_acknowledge(**arguments: Any) -> list[statements.PageRow]:
        rows = page_read(**arguments)
        acknowledge(lane, first)
        return rows

    monkeypatch.setattr(statements, "page_read", read_then_acknowledge)

    # When the page is read
    page_in(requested_again(lane, read_to=others[-1] + 1))

    # Then Redis has all but that message
    assert default_backlog().known(lane, [first, *others]) == [False, True, True, True, True]


def test_a_row_that_redis_has_lost_is_offered_again(lane: Lane) -> None:
    message_ids = ids_of(lane)
    default_backlog().forget(lane)
    default_backlog().configure(lane, mode=Mode.PUSH, action="known")
    page_in(requested_again(lane, read_to=message_ids[-1] + 1))
    assert all(default_backlog().known(lane, message_ids))
