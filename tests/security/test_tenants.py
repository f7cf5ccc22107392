"""Tenants whose functions, pulls and large publishes take long: the requests of others are answered meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest
import requests

from deliveries.api import pull_views
from deliveries.models import Message
from deliveries.publish import service
from pushhub.runtime.httpserver import requestthreads
from subscriptions.iam.grants import grant_role
from subscriptions.identity.access_tokens import create_access_token
from subscriptions.identity.tenants import tenant_of
from subscriptions.services.projects import create_project
from subscriptions.transforms import sandboxes
from tests.integration.publish.directapi import DirectApi, direct_api
from tests.ports import wait_for
from tests.restapi import Api

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.any_database]

PROJECTS = 9
CLIENTS = 4
SLOW = {"javascriptUdf": {"functionName": "slow", "code": "const slow = message => message;"}}
PUBLISH = {"messages": [{"data": "eA=="}]}


@pytest.fixture
def go_on(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """The event for which each function with the name "slow" waits."""
    event = threading.Event()
    results = sandboxes._results

    def waiting(sandbox: Any, functions: Any, *arguments: Any, **options: Any) -> Iterator[Any]:
        assert functions[0].name != "slow" or event.wait(60)
        return results(sandbox, functions, *arguments, **options)

    monkeypatch.setattr(sandboxes, "_results", waiting)
    return event


@pytest.fixture
def server(redis_url: str) -> Iterator[DirectApi]:
    with direct_api(threads=4) as server:
        yield server


@pytest.fixture
def clients(go_on: threading.Event) -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(PROJECTS * CLIENTS) as clients, ExitStack() as stack:
        stack.callback(go_on.set)
        yield clients


def url(server: DirectApi, path: str) -> str:
    return "http://{}:{}".format(*server.address) + path


def call(server: DirectApi, method: str, path: str, body: Any = None) -> requests.Response:
    return requests.request(method, url(server, path), json=body, timeout=120)


def other_tenants_are_served(server: DirectApi) -> None:
    """Make one request of each kind that holds a thread, and those of monitoring."""
    assert call(server, "POST", "/v1/projects/other/topics/orders:publish", PUBLISH).status_code == 200
    assert call(server, "POST", "/v1/projects/other/topics/orders:publish?alt=json", PUBLISH).status_code == 200
    assert call(server, "GET", "/v1/projects/other/topics").json()["topics"]
    assert call(server, "GET", "/admin/login/").status_code == 200
    assert call(server, "GET", "/healthz").json() == {"status": "ok"}
    assert call(server, "GET", "/readyz").status_code == 503  # no worker runs here
    assert call(server, "GET", "/metrics").status_code == 404  # the tests' settings leave them out


def test_nine_projects_with_slow_functions_leave_the_threads_to_others(
    api: Api, server: DirectApi, clients: ThreadPoolExecutor, go_on: threading.Event
) -> None:
    api.create("/v1/projects/other/topics/orders")
    for number in range(PROJECTS):
        api.create(f"/v1/projects/slow-{number}/topics/orders", {"messageTransforms": [SLOW]})

    def publish(number: int) -> int:
        return call(server, "POST", f"/v1/projects/slow-{number}/topics/orders:publish", PUBLISH).status_code

    publishes = [clients.submit(publish, number) for number in range(PROJECTS) for _ in range(CLIENTS)]
    wait_for(lambda: sandboxes.sandboxes()._pool._places == 0, what="functions that run")
    for _ in range(3):
        other_tenants_are_served(server)
    assert not any(future.done() and future.result() == 200 for future in publishes)
    go_on.set()
    assert {future.result() for future in publishes} <= {200, 429}


def test_a_publish_that_waits_for_functions_keeps_no_thread_and_is_charged_once(
    api: Api, clients: ThreadPoolExecutor, go_on: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requestthreads, "MOST_ASIDE", 0)
    monkeypatch.setattr(sandboxes, "WAIT_SECONDS", 100.0)
    charges: list[int] = []
    monkeypatch.setattr(service, "charge_requests", lambda _topic, requests: charges.append(len(requests)))
    api.create("/v1/projects/slow/topics/orders", {"messageTransforms": [SLOW]})
    sandboxes.close_sandboxes()  # the next ones wait for WAIT_SECONDS
    with direct_api(threads=1) as server:
        path = "/v1/projects/slow/topics/orders:publish"
        publishes = [clients.submit(call, server, "POST", path, PUBLISH) for _ in range(CLIENTS)]
        wait_for(lambda: len(charges) == CLIENTS, what="all publishes")
        assert call(server, "GET", "/v1/projects/slow/topics").json()["topics"]
        go_on.set()
        assert [publish.result().status_code for publish in publishes] == [200] * CLIENTS
    assert charges == [1] * CLIENTS
    assert Message.objects.count() == CLIENTS


def test_pulls_that_find_nothing_leave_the_threads_to_others(
    api: Api, server: DirectApi, clients: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pull_views, "HOLD_SECONDS", 100.0)
    api.create("/v1/projects/other/topics/orders")
    for number in range(PROJECTS):
        project = f"/v1/projects/waits-{number}"
        api.create(f"{project}/topics/orders")
        api.create(f"{project}/subscriptions/worker", {"topic": f"projects/waits-{number}/topics/orders"})

    def pull(number: int) -> bool:
        answer = call(server, "POST", f"/v1/projects/waits-{number}/subscriptions/worker:pull", {"maxMessages": 1})
        assert answer.status_code == 200
        return "receivedMessages" in answer.json()

    pulls = [clients.submit(pull, number) for number in range(PROJECTS) for _ in range(CLIENTS)]
    wait_for(lambda: sum(map(Future.done, pulls)) == PROJECTS * (CLIENTS - 2), what="two pulls of each project held")
    other_tenants_are_served(server)
    for number in range(PROJECTS):
        path = f"/v1/projects/waits-{number}/topics/orders:publish"
        assert call(server, "POST", path, {"messages": PUBLISH["messages"] * 2}).status_code == 200
    assert sum(future.result() for future in pulls) == PROJECTS * 2


def test_a_method_that_anybody_may_call_makes_no_tenant(api: Api, redis_url: str) -> None:
    """Given Eve, who may do nothing in the project, her calls of such methods don't take its turns."""
    eve = "user:eve@example.com"
    shop = create_project(project_id="shop")
    authorization = f"Bearer {create_access_token(member=eve).token}"

    def tenant() -> str:
        topics = "/v1/projects/shop/topics"
        return tenant_of(target=topics, authorization=authorization, cookie="", client="192.0.2.1")

    asked = {"permissions": ["pubsub.topics.get"]}
    assert api.post("topics/orders:testIamPermissions", asked, Authorization=authorization).status in (200, 404)
    assert api.get("messages/7", Authorization=authorization).status == 404
    assert api.get("topics", Authorization=authorization).status == 403
    assert tenant() == "client 192.0.2.1"

    grant_role(shop, role="roles/pubsub.viewer", member=eve)
    assert api.get("topics", Authorization=authorization).status == 200
    assert tenant() == "project shop"
