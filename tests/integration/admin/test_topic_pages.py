"""A topic's page shows its subscriptions, how they fare, its rate and its schema; the list has the rates of all."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client

from deliveries.models import Message
from pushhub.common.clock import utcnow
from subscriptions.iam import grants
from subscriptions.models import Subscription, Topic
from tests.metricrows import add_events
from tests.restapi import Api, staff_client

pytestmark = pytest.mark.django_db

TOPIC = "projects/shop/topics/orders"
EUROPE = "projects/shop/subscriptions/europe"
OVERVIEW = "/admin/subscriptions/topic/{}/overview/"


@pytest.fixture
def topic(redis_url: str) -> Topic:
    """A topic with a push and a paused subscription, of which five messages a second were published a minute ago."""
    api = Api()
    api.create("topics/orders")
    api.create("subscriptions/europe", {"topic": TOPIC, "pushConfig": {"pushEndpoint": "https://eu.example.com/"}})
    push = {"pushConfig": {"pushEndpoint": "https://us.example.com/"}}
    api.create("subscriptions/america", {"topic": TOPIC, "filter": "attributes:us", **push})
    Subscription.objects.filter(subscription_id="america").update(paused=True)
    for resource, event, count in ((TOPIC, "publish", 1500), (EUROPE, "push", 600)):
        add_events(resource, event, at=utcnow() - timedelta(minutes=1), count=count)
    return Topic.objects.get()


def test_a_topic_shows_its_subscriptions_and_how_they_fare(client: Client, topic: Topic) -> None:
    context = client.get(f"/admin/subscriptions/topic/{topic.pk}/overview/").context
    rows = {one["name"]: (one["row"].condition.label, one["row"].filter) for one in context["subscriptions"]}
    assert rows == {"europe": ("idle", ""), "america": ("paused", "attributes:us")}
    assert (context["rate"], context["more"]) == ("5.0 / s", 0)
    assert [re.findall(r"[\d.]+ / s|>-<", one["rate"]) for one in context["subscriptions"]] == [[">-<"], ["2.0 / s"]]
    assert [(tab["label"], tab["current"]) for tab in context["tabs"]] == [
        ("Overview", True),
        ("Configuration", False),
        ("Permissions", False),
        ("History", False),
    ]
    for tab in context["tabs"]:
        tabs = client.get(tab["url"]).context["tabs"]
        assert [shown["label"] for shown in tabs if shown["current"]] == [tab["label"]]


@pytest.mark.parametrize(
    ("quota", "refused"),
    [
        ("QUOTA_PUBLISH_REQUESTS_PER_MINUTE", "publish requests"),
        ("QUOTA_PUBLISHER_KB_PER_MINUTE", "publish requests"),
        ("QUOTA_ADMINISTRATOR_PER_MINUTE", "administrator operations"),
    ],
)
def test_a_topic_and_its_subscriptions_name_the_quota_that_is_used_up(
    client: Client, topic: Topic, settings: Any, quota: str, refused: str
) -> None:
    settings.QUOTAS = True
    setattr(settings, quota, 1)
    told = [f"A quota of the project is used up, so {refused} are refused.", f"raise PUSHHUB_{quota}."]
    pages = [OVERVIEW.format(topic.pk), f"/admin/deliveries/delivery/state/{Subscription.objects.first().pk}/"]
    assert not [word for page in pages for word in told if word in client.get(page).content.decode()]
    api = Api()
    calls = [api.get("topics/orders"), api.post("topics/orders:publish", {"messages": [{"data": "aGk="}]})] * 2
    assert 429 in [call.status for call in [*calls, api.get("topics/orders")]] or refused == "publish requests"
    for page in pages:
        assert [word in client.get(page).content.decode() for word in told] == [True, True]


def test_a_topics_history_has_no_entries_of_others(client: Client, topic: Topic) -> None:
    Api().create("topics/orders-2")
    [history] = [
        tab["url"] for tab in client.get(OVERVIEW.format(topic.pk)).context["tabs"] if tab["label"] == "History"
    ]
    assert {entry.resource for entry in client.get(history).context["cl"].result_list} == {TOPIC}


def test_a_published_message_is_linked_and_a_refused_one_stays_in_the_form(client: Client, topic: Topic) -> None:
    refused = client.post(OVERVIEW.format(topic.pk), {"text": "hello", "attributes": '{"goog": "1"}'})
    assert "goog" in refused.context["form"].errors["attributes"][0]
    assert refused.context["form"]["text"].value() == "hello"
    assert "empty" in client.post(OVERVIEW.format(topic.pk), {"text": ""}).context["form"].errors["text"][0]
    sent = {"text": " {\r\n}\r\n", "attributes": '{"a": "1"}', "ordering_key": "key "}
    page = client.post(OVERVIEW.format(topic.pk), sent, follow=True).content.decode()
    message = Message.objects.get()
    assert (bytes(message.data), message.ordering_key) == (b" {\n}\n", "key ")
    assert f'<a href="/admin/deliveries/message/way/{message.pk}/">' in page


def test_the_list_has_the_number_of_subscriptions_and_the_rate_of_each_topic(client: Client, topic: Topic) -> None:
    page = client.get("/admin/subscriptions/topic/?o=-2")
    [row] = page.context["cl"].result_list
    assert row.subscription_total == 2
    text = page.content.decode()
    assert "5.0 / s" in text
    assert f'<a href="/admin/subscriptions/topic/{topic.pk}/overview/" title="{TOPIC}">shop / orders</a>' in text


def test_a_reader_sees_only_the_subscriptions_and_buttons_that_it_may_use(client: Client, topic: Topic) -> None:
    ada = staff_client("ada")
    address = f"/admin/subscriptions/topic/{topic.pk}/overview/"
    assert ada.get(address).status_code == 404
    grants.grant_role(topic, role="roles/pubsub.viewer", member="user:ada@example.com")
    context = ada.get(address).context
    assert (context["subscriptions"], context["form"]) == ([], None)
    assert [tab["label"] for tab in context["tabs"]] == ["Overview", "Configuration"]
