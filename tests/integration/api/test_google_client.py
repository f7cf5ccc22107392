"""Google's own client for Python, `google-api-python-client`, against a real HTTP server."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import httplib2
import pytest
from googleapiclient.discovery import build
from googleapiclient.errors import HttpError
from pytest_django.live_server_helper import LiveServer

pytestmark = pytest.mark.any_database

PROJECT = "projects/shop"
TOPIC = f"{PROJECT}/topics/orders"
SUBSCRIPTION = f"{PROJECT}/subscriptions/push"
DEFAULTS = {
    "name": SUBSCRIPTION,
    "topic": TOPIC,
    "pushConfig": {},
    "ackDeadlineSeconds": 10,
    "messageRetentionDuration": "604800s",
    "expirationPolicy": {"ttl": "2678400s"},
    "state": "ACTIVE",
}


def client_of(service: str, live_server: LiveServer) -> Iterator[Any]:
    http = httplib2.Http()
    options = {"api_endpoint": live_server.url}
    with build(service, "v1", static_discovery=True, client_options=options, http=http) as client:
        yield client.projects()
    http.close()


@pytest.fixture
def projects(transactional_db: None, redis_url: str, live_server: LiveServer) -> Iterator[Any]:
    yield from client_of("pubsub", live_server)


@pytest.fixture
def iam_projects(transactional_db: None, live_server: LiveServer) -> Iterator[Any]:
    yield from client_of("iam", live_server)


def refusal(request: Any) -> tuple[int, str, Any]:
    """Return the HTTP status, the message and the details of the error that the client raises."""
    with pytest.raises(HttpError) as caught:
        request.execute()
    return caught.value.status_code, caught.value.reason, caught.value.error_details


def test_the_life_of_a_topic(projects: Any) -> None:
    topics = projects.topics()

    created = topics.create(name=TOPIC, body={"labels": {"team": "shop"}}).execute()
    assert created == {"name": TOPIC, "labels": {"team": "shop"}, "state": "ACTIVE"}
    assert topics.get(topic=TOPIC).execute() == created

    changes = {"topic": {"name": TOPIC, "messageRetentionDuration": "600s"}, "updateMask": "messageRetentionDuration"}
    changed = topics.patch(name=TOPIC, body=changes).execute()
    assert changed == {**created, "messageRetentionDuration": "600s"}

    topics.create(name=f"{PROJECT}/topics/returns", body={}).execute()
    first = topics.list(project=PROJECT, pageSize=1)
    page = first.execute()
    assert page["topics"] == [changed]
    following = topics.list_next(first, page)
    last = following.execute()
    assert [topic["name"] for topic in last["topics"]] == [f"{PROJECT}/topics/returns"]
    assert topics.list_next(following, last) is None

    assert topics.delete(topic=TOPIC).execute() == {}
    assert refusal(topics.get(topic=TOPIC))[0] == 404


def test_the_life_of_a_subscription(projects: Any) -> None:
    subscriptions = projects.subscriptions()
    projects.topics().create(name=TOPIC, body={}).execute()

    push_config = {"pushEndpoint": "https://example.com/push", "attributes": {"x-goog-version": "v1"}}
    created = subscriptions.create(name=SUBSCRIPTION, body={"topic": TOPIC, "pushConfig": push_config}).execute()
    assert created == DEFAULTS | {"pushConfig": push_config}
    assert subscriptions.get(subscription=SUBSCRIPTION).execute() == created
    assert subscriptions.list(project=PROJECT).execute() == {"subscriptions": [created]}
    assert projects.topics().subscriptions().list(topic=TOPIC).execute() == {"subscriptions": [SUBSCRIPTION]}

    changes = {
        "subscription": {"ackDeadlineSeconds": 60, "retryPolicy": {}},
        "updateMask": "ackDeadlineSeconds,retryPolicy",
    }
    changed = subscriptions.patch(name=SUBSCRIPTION, body=changes).execute()
    assert changed == created | {
        "ackDeadlineSeconds": 60,
        "retryPolicy": {"minimumBackoff": "10s", "maximumBackoff": "600s"},
    }

    assert subscriptions.modifyPushConfig(subscription=SUBSCRIPTION, body={"pushConfig": {}}).execute() == {}
    assert subscriptions.get(subscription=SUBSCRIPTION).execute() == changed | {"pushConfig": {}}

    assert subscriptions.detach(subscription=SUBSCRIPTION).execute() == {}
    assert subscriptions.get(subscription=SUBSCRIPTION).execute()["detached"] is True
    assert projects.topics().subscriptions().list(topic=TOPIC).execute() == {}
    assert subscriptions.delete(subscription=SUBSCRIPTION).execute() == {}
    assert subscriptions.list(project=PROJECT).execute() == {}


def test_messages_are_published(projects: Any) -> None:
    projects.topics().create(name=TOPIC, body={}).execute()
    data = base64.b64encode(b"hello").decode()

    answer = projects.topics().publish(topic=TOPIC, body={"messages": [{"data": data}, {"attributes": {"a": "b"}}]})

    first, second = answer.execute()["messageIds"]
    assert first.isdecimal()
    assert second.isdecimal()
    assert first != second


def test_errors_arrive_with_status_text_and_details(projects: Any) -> None:
    topics, subscriptions = projects.topics(), projects.subscriptions()
    topics.create(name=TOPIC, body={}).execute()

    assert refusal(topics.create(name=TOPIC, body={}))[:2] == (
        409,
        "Resource already exists in the project (resource=orders).",
    )
    assert refusal(topics.get(topic=f"{PROJECT}/topics/nothing"))[:2] == (
        404,
        "Resource not found (resource=nothing).",
    )
    status, message, details = refusal(
        subscriptions.create(name=SUBSCRIPTION, body={"topic": TOPIC, "ackDeadlineSeconds": 9})
    )
    assert (status, message) == (
        400,
        "Invalid ack deadline given (ack_deadline=9). The ack deadline must be between 10 and 600 seconds.",
    )
    assert details == [
        {
            "@type": "type.googleapis.com/google.rpc.BadRequest",
            "fieldViolations": [{"field": "ackDeadlineSeconds", "description": message}],
        }
    ]
    assert refusal(subscriptions.create(name=SUBSCRIPTION, body={"topic": TOPIC, "colour": "red"}))[1] == (
        'Invalid JSON payload received. Unknown name "colour": Cannot find field.'
    )


def test_an_id_with_every_legal_character_is_kept(projects: Any) -> None:
    name = f"{PROJECT}/topics/a-b_c.d~e+f%g"

    assert projects.topics().create(name=name, body={}).execute()["name"] == name
    assert projects.topics().get(topic=name).execute()["name"] == name


def test_without_a_principal_the_client_is_refused(projects: Any, settings: Any) -> None:
    settings.ANONYMOUS = ""

    assert refusal(projects.topics().get(topic=TOPIC))[0] == 401


def test_the_iam_client_creates_service_accounts(iam_projects: Any) -> None:
    accounts = iam_projects.serviceAccounts()

    account = accounts.create(name=PROJECT, body={"accountId": "pusher"}).execute()
    name = account["name"]
    assert account["email"] == "pusher@shop.iam.gserviceaccount.com"
    assert accounts.get(name=name).execute() == account
    assert accounts.list(name=PROJECT).execute() == {"accounts": [account]}
    changes = {"serviceAccount": {"displayName": "Pusher"}, "updateMask": "displayName"}
    assert accounts.patch(name=name, body=changes).execute()["displayName"] == "Pusher"
    assert accounts.disable(name=name, body={}).execute() == {}
    assert accounts.get(name=name).execute()["disabled"] is True
    assert accounts.enable(name=name, body={}).execute() == {}
    assert accounts.delete(name=name).execute() == {}
    assert refusal(accounts.get(name=name))[0] == 404
