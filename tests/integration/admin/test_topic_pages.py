"""A topic's page shows its subscriptions, how they fare, its rate and its schema; the list has the rates of all."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client

from deliveries.models import MetricMinute
from pushhub.common.clock import utcnow
from subscriptions.iam import grants
from subscriptions.models import Subscription, Topic
from tests.restapi import Api

pytestmark = pytest.mark.django_db

TOPIC = "projects/shop/topics/orders"


@pytest.fixture
def topic(redis_url: str) -> Topic:
    """A topic with a push and a paused subscription, of which five messages a second were published a minute ago."""
    api = Api()
    api.create("topics/orders")
    api.create("subscriptions/europe", {"topic": TOPIC, "pushConfig": {"pushEndpoint": "https://eu.example.com/"}})
    api.create("subscriptions/america", {"topic": TOPIC, "filter": "attributes:us"})
    Subscription.objects.filter(subscription_id="america").update(paused=True)
    MetricMinute.objects.create(
        project="shop",
        resource=TOPIC,
        event="publish",
        at=utcnow().replace(second=0, microsecond=0) - timedelta(minutes=1),
        response_class="success",
        response_code=200,
        count=1500,
        bytes=0,
        latency_us_sum=0,
        latency_us_max=0,
    )
    return Topic.objects.get()


@pytest.fixture
def client(topic: Topic) -> Client:
    client = Client()
    client.force_login(User.objects.create_superuser("root", "root@example.com"))
    return client


def test_a_topic_shows_its_subscriptions_and_how_they_fare(client: Client, topic: Topic) -> None:
    context = client.get(f"/admin/subscriptions/topic/{topic.pk}/overview/").context
    rows = {one["name"]: (one["row"].condition.value, one["row"].filter) for one in context["subscriptions"]}
    assert rows == {"europe": ("idle", ""), "america": ("paused", "attributes:us")}
    assert (context["rate"], context["more"]) == ("5.0 / s", 0)
    assert [(tab["label"], tab["current"]) for tab in context["tabs"]] == [
        ("Overview", True),
        ("Configuration", False),
        ("Publish", False),
        ("Permissions", False),
    ]
    for tab in context["tabs"]:
        assert client.get(tab["url"]).status_code == 200, tab


def test_the_list_has_the_number_of_subscriptions_and_the_rate_of_each_topic(client: Client, topic: Topic) -> None:
    page = client.get("/admin/subscriptions/topic/?o=-2")
    [row] = page.context["cl"].result_list
    assert row.subscription_total == 2
    text = page.content.decode()
    assert "5.0 / s" in text
    assert f'<a href="/admin/subscriptions/topic/{topic.pk}/overview/" title="{TOPIC}">shop / orders</a>' in text


def test_a_reader_sees_only_the_subscriptions_and_buttons_that_it_may_use(client: Client, topic: Topic) -> None:
    user = User.objects.create(username="ada", email="ada@example.com", is_staff=True)
    user.user_permissions.set(Permission.objects.all())
    ada = Client()
    ada.force_login(user)
    address = f"/admin/subscriptions/topic/{topic.pk}/overview/"
    assert ada.get(address).status_code == 404
    grants.grant_role(topic, role="roles/pubsub.viewer", member="user:ada@example.com")
    context = ada.get(address).context
    assert (context["subscriptions"], context["publish"]) == ([], "")
    assert [tab["label"] for tab in context["tabs"]] == ["Overview", "Configuration", "Permissions"][
        : len(context["tabs"])
    ]
