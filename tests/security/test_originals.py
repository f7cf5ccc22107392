"""Whoever may pull from one subscription sees what its message transforms give, and never what they take away."""

from __future__ import annotations

import base64
from typing import Any

import orjson
import pytest
from django.test import Client

from deliveries.models import Delivery
from subscriptions.iam import grants
from subscriptions.models import Project, Subscription, Topic
from subscriptions.transforms import sandboxes
from tests.integration.deadletters.letters import TOPIC, create_letters, create_source
from tests.restapi import Api, staff_client

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.any_database]

SECRET, TOKEN = "4111-1111", "secret-token"
PUBLIC = "a book"
REDACT = """
    function redact(message) {
        const order = JSON.parse(message.data);
        if (order.test) return null;
        if (order.broken) throw new Error(message.data + message.attributes.token);
        delete order.card;
        return {data: JSON.stringify(order), attributes: {kind: "order"}};
    }
"""
FIELDS = {"messageTransforms": [{"javascriptUdf": {"functionName": "redact", "code": REDACT}}]}


@pytest.fixture
def source(api: Api, redis_url: str) -> Subscription:
    return create_source(api, **FIELDS)


@pytest.fixture
def reader(source: Subscription) -> Client:
    """Someone who may see the subscription and pull from it, and nothing else."""
    return person("reader", ("subscriber", source), ("viewer", source))


def person(name: str, *roles: tuple[str, Any]) -> Client:
    client = staff_client(name)
    for role, resource in roles:
        grants.grant_role(resource, role=f"roles/pubsub.{role}", member=f"user:{name}@example.com")
    return client


def publish(api: Api, **order: Any) -> int:
    """Publish an order with a card number."""
    data = base64.b64encode(orjson.dumps({"item": PUBLIC, "card": SECRET, **order})).decode()
    answer = api.post("topics/orders:publish", {"messages": [{"data": data, "attributes": {"token": TOKEN}}]})
    return int(answer.body["messageIds"][0])


def over_rest(client: Client, message_id: int) -> tuple[str, Any]:
    """Return the answer as text, decoded data included, and the part about the subscription `worker`."""
    response = client.get(f"/v1/projects/shop/messages/{message_id}")
    assert response.status_code == 200, response.content
    body = response.json()
    [delivery] = [it for it in body["deliveries"] if it["subscription"].endswith("/worker")]
    encoded = (body.get("data", ""), delivery.get("transformedMessage", {}).get("data", ""))
    return response.content.decode() + "".join(base64.b64decode(data).decode() for data in encoded), delivery


def pages(client: Client, message_id: int) -> dict[str, str]:
    """Return the console's pages about a message."""
    worker = Subscription.objects.get(subscription_id="worker")
    delivery = Delivery.objects.filter(message_id=message_id, subscription=worker).get()
    paths = [
        "message/",
        f"message/way/{message_id}/",
        f"message/{message_id}/change/",
        f"delivery/{delivery.pk}/change/",
        f"delivery/waiting/{worker.pk}/",
        f"delivery/state/{worker.pk}/",
        f"delivery/state/{worker.pk}/live/",
    ]
    answers = {path: client.get(f"/admin/deliveries/{path}") for path in paths}
    return {path: answer.content.decode() for path, answer in answers.items() if answer.status_code == 200}


def found(client: Client, term: str) -> set[int]:
    return {row.pk for row in client.get("/admin/deliveries/message/", {"q": term}).context["cl"].queryset}


def shows(text: str) -> tuple[bool, bool]:
    """Return whether a text has what the functions leave, and whether it has what they take away."""
    return PUBLIC in text, SECRET in text or TOKEN in text


def test_a_reader_of_one_subscription_sees_what_its_functions_give(api: Api, reader: Client) -> None:
    message_id = publish(api)

    text, delivery = over_rest(reader, message_id)
    assert shows(text) == (True, False)
    assert delivery["transformedMessage"]["attributes"] == {"kind": "order"}

    shown = pages(reader, message_id)
    assert shows(shown[f"message/way/{message_id}/"]) == (True, False)
    assert [path for path, page in shown.items() if shows(page)[1]] == []
    assert len(shown) == 7


def test_a_reader_cannot_search_in_what_it_may_not_see(api: Api, reader: Client) -> None:
    message_id = publish(api)
    assert found(reader, f"token={TOKEN}") == set()
    assert found(reader, "") == {message_id}
    api.patch("subscriptions/worker", {"subscription": {}, "updateMask": "messageTransforms"})
    assert found(reader, f"token={TOKEN}") == {message_id}


@pytest.mark.parametrize(
    ("order", "outcome", "words"),
    [
        ({"test": True}, {"messageFiltered": {}}, "filter it"),
        (
            {"broken": True},
            {
                "messageTransformFailure": {
                    "description": "The message transforms of the subscription fail with the message."
                }
            },
            "fail with it",
        ),
    ],
)
def test_a_reader_is_told_that_a_message_is_filtered_or_fails_and_no_more(
    api: Api, reader: Client, order: dict[str, Any], outcome: dict[str, Any], words: str
) -> None:
    message_id = publish(api, **order)

    text, delivery = over_rest(reader, message_id)
    assert shows(text) == (False, False)
    assert delivery.items() >= outcome.items()

    shown = pages(reader, message_id)
    assert words in shown[f"message/way/{message_id}/"]
    assert [path for path, page in shown.items() if any(shows(page))] == []


def test_a_reader_sees_nothing_while_functions_are_busy(
    api: Api, reader: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    message_id = publish(api)
    monkeypatch.setattr(sandboxes, "WAIT_SECONDS", -60.0)
    assert reader.get(f"/v1/projects/shop/messages/{message_id}").status_code == 429
    page = reader.get(f"/admin/deliveries/message/way/{message_id}/").content.decode()
    assert "busy" in page
    assert not any(shows(page))


def test_a_reader_of_dead_letters_sees_what_the_functions_give(api: Api, source: Subscription, reader: Client) -> None:
    data = base64.b64encode(orjson.dumps({"item": PUBLIC, "card": SECRET})).decode()
    [letter] = create_letters(api, source, 1, data=data, attributes={"token": TOKEN})
    page = f"/admin/deliveries/deadletter/{letter}/change/"
    assert shows(reader.get(page).content.decode()) == (True, False)
    owner = person(
        "owner", ("subscriber", source), ("viewer", source), ("viewer", Topic.objects.get(topic_id="letters"))
    )
    assert shows(owner.get(page).content.decode()) == (True, True)


@pytest.mark.parametrize("kind", ["topic", "project", "unchanging subscription"])
def test_originals_are_for_those_who_may_see_the_topic_or_pull_from_all_of_the_project(
    api: Api, source: Subscription, kind: str
) -> None:
    api.create("subscriptions/plain", {"topic": TOPIC})
    roles = {
        "topic": [("subscriber", source), ("viewer", Topic.objects.get(topic_id="orders"))],
        "project": [("subscriber", Project.objects.get(project_id="shop"))],
        "unchanging subscription": [
            ("subscriber", source),
            ("subscriber", Subscription.objects.get(subscription_id="plain")),
        ],
    }
    client = person("reader", *roles[kind])
    message_id = publish(api)
    assert shows(over_rest(client, message_id)[0]) == (True, True)
    assert shows(pages(client, message_id)[f"message/way/{message_id}/"]) == (True, True)
    assert found(client, f"token={TOKEN}") == {message_id}


def test_a_message_of_a_deleted_topic_is_shown_as_the_subscription_gets_it(api: Api, reader: Client) -> None:
    message_id = publish(api)
    assert api.delete("topics/orders").status == 200
    assert shows(over_rest(reader, message_id)[0]) == (True, False)
