"""Whatever call to the database or Redis fails, each page of the console says that it can't be shown now, or is shown.

The calls are discovered, as for REST (tests/integration/api/test_outages.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis
from django.test import Client

from subscriptions.iam import access
from subscriptions.models import Project, ServiceAccount, Topic
from tests.faults import Faults, outage_errors
from tests.integration.admin.test_subscription_form import form
from tests.integration.api.test_outages import only_outages
from tests.restapi import Api, root_client
from tests.tenants import addresses, world_of_tenants

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.any_database]

ADMIN = "/admin/subscriptions/"
BROWSER = {"Accept": "text/html,*/*"}


def chosen(owners: list[str], page: int) -> Iterator[int]:
    """Return the calls of a page that fail: all to Redis, and one to the database, another one on each page."""
    yield from (number for number, owner in enumerate(owners) if owner == "Redis")
    if owners:
        yield 7 * page % len(owners)


def is_said(response: Any) -> bool:
    return response.status_code == 503 and b"Not available now" in response.content


def test_every_page(redis_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    world = world_of_tenants()
    client = world.clients["superuser"]
    client.raise_request_exception = False
    faults = Faults(monkeypatch)
    refused = 0
    for page, address in enumerate(addresses(world, "acme")):
        if "logout" in address:
            continue
        with faults.at():
            response = client.get(address, headers=BROWSER)
        caplog.clear()
        for number in chosen(list(faults.owners), page):
            with faults.at(number, **outage_errors(number)):
                faulty = client.get(address, headers=BROWSER)
            assert is_said(faulty) or faulty.status_code == response.status_code, (address, number)
            assert only_outages(caplog)
            refused += is_said(faulty)
    assert refused > 100


def fields_of(kind: str, number: int) -> tuple[str, dict[str, Any]]:
    """Return the address and the fields of a form."""
    project, topic = Project.objects.get(), Topic.objects.get(topic_id="orders")
    accounts = [account.pk for account in ServiceAccount.objects.all()[:1]]
    return {
        "add a topic": (f"{ADMIN}topic/add/", {"project": project.pk, "topic_id": f"made{number}", "labels": "{}"}),
        "change a topic": (f"{ADMIN}topic/{topic.pk}/change/", {"labels": f'{{"n": "{number}"}}'}),
        "delete a topic": (f"{ADMIN}topic/{_new_topic(project, number)}/delete/", {"post": "yes"}),
        "add a subscription": (f"{ADMIN}subscription/add/", form(subscription_id=f"made{number}")),
        "disable an account": (f"{ADMIN}serviceaccount/", {"action": "disable", "_selected_action": accounts}),
        "publish": (f"/admin/subscriptions/topic/{topic.pk}/overview/", {"text": "hello", "attributes": "{}"}),
    }[kind]


def _new_topic(project: Project, number: int) -> int:
    return int(Topic.objects.create(project=project, topic_id=f"new{number}").pk)


@pytest.fixture
def client(redis_url: str) -> Client:
    api = Api()
    api.create("topics/orders")
    api.post("serviceAccounts", {"accountId": "pusher"})
    return root_client(raise_request_exception=False, headers=BROWSER)


@pytest.mark.parametrize(
    "kind",
    ["add a topic", "change a topic", "delete a topic", "add a subscription", "disable an account", "publish"],
)
def test_every_call_of_a_form(
    client: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    faults = Faults(monkeypatch)
    for number in (1, 2):
        address, fields = fields_of(kind, number)
        with faults.at():
            assert client.post(address, fields).status_code == 302
    caplog.clear()
    for number in range(len(faults.owners)):
        address, fields = fields_of(kind, 3 + number)
        access.forget_decisions()
        with faults.at(number, **outage_errors(number)):
            faulty = client.post(address, fields)
        assert is_said(faulty) or faulty.status_code == 302, (number, faults.owners)
        assert only_outages(caplog)


@pytest.mark.parametrize(
    ("language", "words"), [("en", "Not available now"), ("zh-hans", "暂时不可用")], ids=["English", "Chinese"]
)
def test_the_page_is_in_the_language_of_the_browser(
    client: Client, monkeypatch: pytest.MonkeyPatch, language: str, words: str
) -> None:
    faults = Faults(monkeypatch)
    with faults.at():
        client.get(f"{ADMIN}topic/")

    with faults.at(len(faults.owners) - 1, **outage_errors(0)):
        response = client.get(f"{ADMIN}topic/", headers={"Accept-Language": language})

    assert response.status_code == 503
    assert f"<h1>{words}</h1>" in response.content.decode()


def test_an_error_of_pushhub_is_a_page_too_and_has_a_traceback(
    client: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(**_: object) -> None:
        raise redis.ResponseError("WRONGTYPE Operation against a key")

    monkeypatch.setattr("deliveries.admin.overview.health", fail)

    response = client.get("/admin/")

    assert response.status_code == 500
    assert b"<h1>Internal error</h1>" in response.content
    assert any(record.exc_info for record in caplog.records)
