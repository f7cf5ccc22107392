"""Pages from the database: rows that a lane reads again do not go out twice."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from django.conf import settings
from django.db import transaction

from deliveries.backlog.codes import Mode
from deliveries.backlog.connection import client_of
from deliveries.backlog.default import default_backlog
from deliveries.backlog.paging import page_in
from deliveries.backlog.records import Lane, PageRequest, Settlement
from deliveries.models import Delivery
from deliveries.rules.outcome import Verdict
from deliveries.rules.payload import INLINE_BYTES, LEAN_BYTES
from deliveries.rules.taskmessage import DeliverTask, parse_body, parse_own
from deliveries.store import statements
from deliveries.store.sql import execute, fetch_rows, is_postgresql
from tests.lanes import are_known, configure, low_queue, page_requests
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
    """Return the request for all rows of the lane, of which those up to `read_to` have been read before."""
    configure(default_backlog(), lane, mode=Mode.PUSH, action="spill", from_id=0)
    [request] = page_requests(default_backlog(), region=lane.region)
    return replace(request, read_to=read_to)


def acknowledge(lane: Lane, message_id: int) -> None:
    """Do what a push worker does with an ack: the database first, then Redis."""
    statements.delete_deliveries(subscription_id=lane.subscription_id, region=lane.region, message_ids=[message_id])
    settlement = Settlement()
    settlement.add(str(message_id), Verdict.ACK, 1.0)
    default_backlog().settle({lane: settlement}, dice=0.0, finished={})


def test_a_row_that_is_acknowledged_while_it_is_read_again_does_not_go_out_again(
    lane: Lane, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given rows that the lane has read before, and an ack that arrives between the read and the offer of the page
    first, *others = ids_of(lane)
    read_pages = statements.read_pages

    def read_then_acknowledge(ranges: Sequence[statements.PageRange]) -> list[list[statements.PageRow]]:
        pages = read_pages(ranges)
        acknowledge(lane, first)
        return pages

    monkeypatch.setattr(statements, "read_pages", read_then_acknowledge)

    # When the page is read
    page_in([requested_again(lane, read_to=others[-1])])

    # Then Redis has all but that message
    assert are_known(default_backlog(), lane, [first, *others]) == [False, True, True, True, True]


def test_a_row_that_redis_has_lost_is_offered_again(lane: Lane) -> None:
    message_ids = ids_of(lane)
    default_backlog().forget(lane)
    configure(default_backlog(), lane, mode=Mode.PUSH, action="known")
    page_in([requested_again(lane, read_to=message_ids[-1])])
    assert all(are_known(default_backlog(), lane, message_ids))


def test_a_lean_page_leaves_larger_payloads_to_the_database(lane: Lane, api: Api) -> None:
    # Given waiting messages with a larger payload, with larger attributes, and with little
    larger = base64.b64encode(b"x" * LEAN_BYTES).decode()
    attributes = {str(number): "x" * 200 for number in range(6)}
    messages = [{"data": larger, "attributes": {"a": "b"}}, {"attributes": attributes}, {"data": "aGk="}]
    api.post("topics/orders:publish", {"messages": messages})
    *_, first, second, third = ids_of(lane)
    default_backlog().forget(lane)
    configure(default_backlog(), lane, mode=Mode.PUSH, action="known")
    # When they are read for an endpoint that is down
    page_in([replace(requested_again(lane, read_to=0), from_id=first, rows=3, is_lean=True)])
    # Then Redis has only their ids, except for the last
    texts = [*client_of(settings.REDIS_URL).lrange(low_queue("local"), 0, -1)][:3]
    tasks = {task.message_id: task for task in map(task_of, texts)}
    assert {name: task.is_reference for name, task in tasks.items()} == {first: True, second: True, third: False}


def task_of(text: bytes) -> DeliverTask:
    _, body = parse_own(text) or ("", "")
    return parse_body(body)


def test_an_offer_that_comes_after_the_page_with_its_message_sends_nothing_again(
    lane: Lane, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a message that was read from the database before its offer came, and was acknowledged
    offers: list[Any] = []
    with monkeypatch.context() as patch:
        patch.setattr(default_backlog(), "offer", lambda late: offers.extend(late))
        api.post("topics/orders:publish", {"messages": [{"data": "aGk="}]})
    *_, message_id = ids_of(lane)
    page_in([requested_again(lane, read_to=0)])
    assert are_known(default_backlog(), lane, [message_id]) == [True]
    acknowledge(lane, message_id)
    # When the offer comes
    default_backlog().offer(offers)
    for request in page_requests(default_backlog(), region=lane.region):
        page_in([request])
    # Then Redis does not have the message again
    assert are_known(default_backlog(), lane, [message_id]) == [False]


def test_a_lane_that_turns_back_looks_up_the_rows_that_offers_brought(
    lane: Lane, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a lane that has read its backlog, and was offered more
    for request in page_requests(default_backlog(), region=lane.region):
        page_in([request])
    api.post("topics/orders:publish", {"messages": [{"data": "aGk="}] * 2})
    *_, acknowledged, other = ids_of(lane)
    assert page_requests(default_backlog(), region=lane.region) == []
    # When it has to read rows from before these, as offers don't come in the order of ids
    configure(default_backlog(), lane, mode=Mode.PUSH, action="spill", from_id=acknowledged - 1)
    [request] = page_requests(default_backlog(), region=lane.region)
    read_pages = statements.read_pages

    def read_then_acknowledge(ranges: Sequence[statements.PageRange]) -> list[list[statements.PageRow]]:
        pages = read_pages(ranges)
        acknowledge(lane, acknowledged)
        return pages

    monkeypatch.setattr(statements, "read_pages", read_then_acknowledge)
    page_in([request])
    # Then what was acknowledged between the read and the offer of the page does not go out again
    assert are_known(default_backlog(), lane, [acknowledged, other]) == [False, True]


def test_a_probe_reads_the_first_row_that_has_not_failed(lane: Lane) -> None:
    first, second, third, *_ = ids_of(lane)
    Delivery.objects.filter(message_id__in=(first, second)).update(attempts=1)
    request = requested_again(lane, read_to=0)
    default_backlog().client.delete(lane.places_key)
    page_in([replace(request, rows=1, is_probe=True)])
    names: Any = default_backlog().client.hkeys(lane.places_key)
    assert list(map(int, names)) == [third]


def test_the_rows_of_a_key_begin_with_the_message_that_names_it(lane: Lane, api: Api) -> None:
    # Given messages of two keys, and one of them that another subscription has, too, and this one has not
    for key in "abaab":
        api.post("topics/orders:publish", {"messages": [{"data": "aGk=", "orderingKey": key}]})
    ids = ids_of(lane)[5:]
    statements.delete_deliveries(subscription_id=lane.subscription_id, region=lane.region, message_ids=[ids[2]])
    # When their rows are read from a message on
    wanted = [(ids[0], 5), (ids[3], 5), (ids[1], 1), (1, 5)]
    ranges = [statements.PageRange(*lane, first, limit, INLINE_BYTES, of_key=True) for first, limit in wanted]
    pages = statements.read_pages(ranges)
    # Then each has those of its key, and none has any for a message that is gone
    assert [[row.message_id for row in rows] for rows in pages] == [[ids[0], ids[3]], [ids[3]], [ids[1]], []]
    assert {row.ordering_key for row in pages[0]} == {"a"}


def test_the_rows_of_a_key_are_read_in_the_order_of_the_index(lane: Lane, monkeypatch: pytest.MonkeyPatch) -> None:
    plan: list[str] = []

    def explain(text: str, parameters: Sequence[object]) -> list[Any]:
        if is_postgresql():
            # So few rows would be sorted in any case.
            for name in ("sort", "seqscan", "bitmapscan"):
                execute(f"SET LOCAL enable_{name} = off", [])
        verb = "EXPLAIN" if is_postgresql() else "EXPLAIN QUERY PLAN"
        plan.extend(str(row) for row in fetch_rows(f"{verb} {text}", parameters))
        return []

    monkeypatch.setattr(statements, "fetch_rows", explain)
    with transaction.atomic():
        statements.read_pages([statements.PageRange(*lane, 1, 5, INLINE_BYTES, of_key=True)])
    # A page of a key with a million messages must not read all of them
    assert "message_key" in "".join(plan)
    assert not [step for step in plan if "Sort" in step or "TEMP B-TREE" in step], plan
