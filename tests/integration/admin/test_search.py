"""The search of the console finds subscriptions, topics and messages, of those that its reader may see."""

from __future__ import annotations

import pytest
from django.test import Client

from subscriptions.iam import grants
from subscriptions.models import Project, Subscription, Topic
from tests.restapi import Api, root_client, staff_client

pytestmark = pytest.mark.django_db

SEARCH = "/admin/deliveries/delivery/search/"


@pytest.fixture
def client(redis_url: str) -> Client:
    api = Api()
    for topic in ("orders", "invoices"):
        api.create(f"topics/{topic}")
        api.create(f"subscriptions/{topic}-eu", {"topic": f"projects/shop/topics/{topic}"})
    return root_client()


def found(client: Client, text: str) -> list[str]:
    return [one["name"] for one in client.get(SEARCH, {"q": text}).context["found"]]


def test_parts_of_names_find_subscriptions_and_topics(client: Client) -> None:
    assert found(client, "orders") == ["projects/shop/subscriptions/orders-eu", "projects/shop/topics/orders"]
    assert found(client, "SHOP eu") == [
        "projects/shop/subscriptions/invoices-eu",
        "projects/shop/subscriptions/orders-eu",
    ]
    assert found(client, "nothing-like-it") == []
    assert found(client, "") == []


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("orders-eu", "/admin/deliveries/delivery/state/{subscription}/"),
        ("projects/shop/subscriptions/orders-eu", "/admin/deliveries/delivery/state/{subscription}/"),
        ("1234567", "/admin/deliveries/message/way/1234567/"),
    ],
)
def test_a_single_find_is_opened(client: Client, text: str, address: str) -> None:
    subscription = Subscription.objects.get(subscription_id="orders-eu").pk
    assert client.get(SEARCH, {"q": text}).headers["Location"] == address.format(subscription=subscription)


def test_words_that_look_like_markup_or_large_numbers_are_only_words(client: Client) -> None:
    page = client.get(SEARCH, {"q": "<b>x</b>"}).content.decode()
    assert "<b>x</b>" not in page
    assert found(client, str(2**63)) == []
    assert found(client, "٣") == []
    assert found(client, "\0") == []


def test_a_long_text_is_searched_for_by_its_beginning(client: Client) -> None:
    assert found(client, "orders " * 2000) == ["projects/shop/subscriptions/orders-eu", "projects/shop/topics/orders"]
    topics = client.get("/admin/subscriptions/topic/", {"q": "orders " * 2000}).context["cl"].result_list
    assert [topic.topic_id for topic in topics] == ["orders"]


def test_a_reader_finds_only_what_it_may_see(client: Client) -> None:
    ada = staff_client("ada")
    assert found(ada, "orders") == []
    grants.grant_role(Topic.objects.get(topic_id="orders"), role="roles/pubsub.viewer", member="user:ada@example.com")
    pk = Topic.objects.get(topic_id="orders").pk
    assert ada.get(SEARCH, {"q": "orders"}).headers["Location"] == f"/admin/subscriptions/topic/{pk}/overview/"
    assert Client().get(SEARCH, {"q": "orders"}).status_code == 302


def test_a_chosen_project_limits_the_search(client: Client) -> None:
    other = Project.objects.create(project_id="other")
    Topic.objects.create(project=other, topic_id="orders")
    client.post("/admin/choose-project/", {"project": "shop"})
    assert found(client, "orders") == ["projects/shop/subscriptions/orders-eu", "projects/shop/topics/orders"]


@pytest.mark.parametrize(
    "dates", [{"year": "9999"}, {"year": "9" * 30}, {"year": "9999", "month": "12", "day": "31"}, {"month": "x"}]
)
def test_a_date_that_no_calendar_has_is_no_error_of_the_server(client: Client, dates: dict[str, str]) -> None:
    page = client.get("/admin/subscriptions/auditentry/", {f"at__{part}": text for part, text in dates.items()})
    assert (page.status_code, page.headers["Location"]) == (302, "/admin/subscriptions/auditentry/?e=1")
