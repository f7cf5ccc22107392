"""The pager: a lane's page is read once, however often the lane has asked for it, and projects take turns."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

import pytest

from deliveries.backlog.codes import Mode
from deliveries.backlog.default import default_backlog
from deliveries.backlog.records import Lane, PageRequest, work_key
from deliveries.models import Delivery
from deliveries.push import pager as module
from deliveries.push.pager import Pager
from deliveries.rules.taskmessage import queue_name
from deliveries.store import statements
from subscriptions.models import Subscription
from tests.lanes import are_known, configure, lane_change
from tests.ports import wait_for
from tests.restapi import Api

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def pager(monkeypatch: pytest.MonkeyPatch, redis_url: str) -> Iterator[Pager]:
    """A pager with one thread for lanes that are not prompt, so that their pages come one after the other."""
    monkeypatch.setattr(module, "THREADS", 1)
    it = Pager()
    yield it
    it.stop()


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The subscriptions whose pages were read together, in order."""
    subscription_ids: list[list[int]] = []
    read = statements.read_pages

    def noting(ranges: Sequence[statements.PageRange]) -> list[list[statements.PageRow]]:
        subscription_ids.append([it.subscription_id for it in ranges])
        return read(ranges)

    monkeypatch.setattr(statements, "read_pages", noting)
    return subscription_ids


def flat(reads: list[list[int]]) -> list[int]:
    return sorted(subscription_id for together in reads for subscription_id in together)


def subscriptions(api: Api, project: str, count: int) -> list[int]:
    """Create push subscriptions, each with a message, and forget their lanes, so that they must read the database."""
    topic = f"projects/{project}/topics/orders"
    api.create(f"/v1/{topic}")
    names = [f"{project}-{number}" for number in range(count)]
    for name in names:
        config = {"pushEndpoint": "http://127.0.0.1:1024/"}
        api.create(f"/v1/projects/{project}/subscriptions/{name}", {"topic": topic, "pushConfig": config})
    assert api.post(f"/v1/{topic}:publish", {"messages": [{"data": "aGk="}]}).status == 200
    default_backlog().client.flushall()
    rows = Subscription.objects.filter(project__project_id=project).order_by("id")
    return list(rows.values_list("id", flat=True))


def requested(*subscription_ids: int) -> list[PageRequest]:
    """Have lanes want their pages, and claim the requests as a worker does."""
    for subscription_id in subscription_ids:
        configure(default_backlog(), Lane(subscription_id, "local"), mode=Mode.PUSH, action="known")
    return claimed()


def claimed() -> list[PageRequest]:
    requests: list[PageRequest] = []
    while True:
        keys = [queue_name("local"), work_key("w")]
        _, wait_ms, _, pages = default_backlog().scripts.fetch(keys=keys, args=["local", "1", 0, 4000])
        requests += PageRequest.parse_all(pages)
        if wait_ms != 0:
            return requests


def test_projects_take_turns(api: Api, pager: Pager, reads: list[list[int]], monkeypatch: pytest.MonkeyPatch) -> None:
    # Given many lanes that want their pages, five of which fill one, and then a lane of another project
    many = subscriptions(api, "morgue", 20)
    [other] = subscriptions(api, "shop", 1)
    requests = [*requested(*many), *requested(other)]
    monkeypatch.setattr(module, "PAGE_ROWS", 5 * requests[0].rows)
    # When all of them are read
    for request in requests:
        pager.page(request)
    pager.start()
    wait_for(lambda: len(flat(reads)) == 21, what="all pages")
    # Then the other project's page was the first or the second
    assert [other] in reads[:2]
    assert flat(reads) == [*many, other]
    # And lanes of a project were read together
    assert [len(together) for together in reads if together != [other]] == [5, 5, 5, 5]


def test_a_prompt_lane_does_not_wait_for_the_pages_of_others(
    api: Api, pager: Pager, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given lanes of the same project whose pages take for ever
    *others, prompt = subscriptions(api, "shop", 4)
    may_end, read = threading.Event(), statements.read_pages

    def slow_but_for_one(ranges: Sequence[statements.PageRange]) -> list[list[statements.PageRow]]:
        assert [it.subscription_id for it in ranges] == [prompt] or may_end.wait(600)
        return read(ranges)

    monkeypatch.setattr(statements, "read_pages", slow_but_for_one)
    # And one whose endpoint acks at once
    lane = Lane(prompt, "local")
    requests = requested(*others)
    configure(default_backlog(), lane, mode=Mode.PUSH, action="known")
    lane_change(default_backlog(), lane, results_seen=1, ack_ratio=1)
    requests += claimed()
    assert [request.is_prompt for request in requests] == [False, False, False, True]
    # When all want their pages
    for request in requests:
        pager.page(request)
    pager.start()
    # Then its page arrives while the others wait
    message_id = Delivery.objects.filter(subscription_id=prompt).get().message_id
    wait_for(lambda: are_known(default_backlog(), lane, [message_id]) == [True], what="the page of the prompt lane")
    may_end.set()


def test_a_lane_that_asks_again_and_again_is_read_once(api: Api, pager: Pager, reads: list[list[int]]) -> None:
    # Given lanes whose pages are late, so that they ask again
    lanes = subscriptions(api, "shop", 10)
    requests = requested(*lanes)
    for _ in range(5):
        for lane in lanes:
            lane_change(default_backlog(), Lane(lane, "local"), paging_until_ms=1)
            configure(default_backlog(), Lane(lane, "local"), mode=Mode.PUSH, action="known")
        requests += claimed()
    assert len(requests) == 60
    # When all requests have been put, some of them after the first page was read
    for request in requests[:30]:
        pager.page(request)
    pager.start()
    wait_for(lambda: len(flat(reads)) == 10, what="all pages")
    for request in requests[30:]:
        pager.page(request)
    wait_for(lambda: not pager._jobs.oldest_seconds(), what="the end of all jobs")
    # Then each was read once, and every message is in Redis
    assert flat(reads) == lanes
    rows = Delivery.objects.values_list("subscription_id", "message_id")
    assert all(are_known(default_backlog(), Lane(lane, "local"), [message_id]) == [True] for lane, message_id in rows)


def test_the_newest_request_of_a_lane_counts(api: Api, pager: Pager, reads: list[list[int]]) -> None:
    # Given a lane that asked for a page from some id on, and then for one from an earlier id on
    [subscription_id] = subscriptions(api, "shop", 1)
    lane = Lane(subscription_id, "local")
    message_id = Delivery.objects.get().message_id
    configure(default_backlog(), lane, mode=Mode.PUSH, action="new")
    configure(default_backlog(), lane, mode=Mode.PUSH, action="spill", from_id=message_id + 1)
    requests = claimed()
    configure(default_backlog(), lane, mode=Mode.PUSH, action="spill", from_id=message_id)
    lane_change(default_backlog(), lane, paging_until_ms=1)
    requests += requested(subscription_id)
    assert [request.from_id for request in requests] == [message_id + 1, message_id]
    # When both requests wait
    for request in requests:
        pager.page(request)
    pager.start()
    # Then the page from the earlier id on is read
    wait_for(lambda: are_known(default_backlog(), lane, [message_id]) == [True], what="the message")
    assert reads == [[subscription_id]]
