"""The form of a subscription shows all errors at once, and creates and grants all that is missing, or nothing."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from pushhub.common.principals import Principal
from subscriptions.iam import access, grants
from subscriptions.identity import agents
from subscriptions.models import Project, ServiceAccount, Subscription, Topic
from subscriptions.models.iam import AuditEntry, Policy
from tests.integration.admin.test_resources import errors
from tests.restapi import Api, staff_client

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.any_database, pytest.mark.usefixtures("api")]

ADD = "/admin/subscriptions/subscription/add/"
CHECK = "/admin/subscriptions/subscription/check-endpoint/"
TOPIC = "projects/shop/topics/orders"
EMAIL = "pusher@shop.iam.gserviceaccount.com"


@pytest.fixture
def api(redis_url: str) -> Api:
    api = Api()
    api.create("topics/orders")
    api.post("serviceAccounts", {"accountId": "pusher"})
    return api


def person(name: str, *roles: tuple[str, Any]) -> Client:
    """Sign in a new user who has these roles and all of Django's own permissions."""
    for role, resource in roles:
        grants.grant_role(resource, role=role, member=f"user:{name}@example.com")
    access.forget_decisions()
    return staff_client(name)


def form(**fields: Any) -> dict[str, Any]:
    base = {
        "project": Project.objects.get(project_id="shop").pk,
        "subscription_id": "hello",
        "topic": Topic.objects.get(topic_id="orders").pk,
        "delivery_type": "pull",
        "ack_deadline_seconds": 10,
        "message_retention": "7d",
        "expiration": "31d",
        "push_attributes": "{}",
        "labels": "{}",
    }
    return {name: value for name, value in {**base, **fields}.items() if value is not None}


def messages_of(response: Any) -> list[str]:
    return [str(message) for message in response.context["messages"]]


def test_all_errors_are_shown_at_once_each_at_its_field_in_plain_words(client: Client, settings: Any) -> None:
    settings.ALLOW_PRIVATE, settings.ALLOWED_NETWORKS = False, ()
    sent = form(
        subscription_id="goog-mine",
        topic=None,
        delivery_type="push",
        push_endpoint="https://10.0.0.1/push",
        push_attributes='{"x-pushhub-rate": "fast"}',
        new_service_account="X",
        audience="aud",
        ack_deadline_seconds=5,
        message_retention="1s",
        expiration="1h",
        minimum_backoff="90m",
        maximum_backoff="11m",
        max_delivery_attempts=3,
        labels='{"Big": "x"}',
        filter="nonsense",
        new_dead_letter_topic="no",
        transform_1_name="2f",
        transform_1_code="x",
    )
    texts_by_field = errors(client.post(ADD, sent))
    assert {field: texts[0] for field, texts in texts_by_field.items() if field not in ("filter",)} == {
        "subscription_id": "Use 3 to 255 letters, digits and any of - . _ ~ + %, beginning with a letter, and not with "
        "“goog”.",
        "topic": "Choose a topic, or name a new one.",
        "push_endpoint": "PushHub would not push to 10.0.0.1: the address guard denies addresses that are not public.",
        "push_attributes": "Use only the names below, with texts as values.",
        "new_service_account": "Use 6 to 30 lower-case letters, digits and hyphens, beginning with a letter.",
        "ack_deadline_seconds": "Choose 10 to 600 seconds.",
        "message_retention": "Choose 10 minutes to 31 days, for example 10m or 7d.",
        "expiration": "Choose at least one day, for example 31d, or leave it empty.",
        "minimum_backoff": "Choose up to 600 seconds, for example 10s, and not more than the maximum.",
        "maximum_backoff": "Choose up to 600 seconds, for example 600s, and not less than the minimum.",
        "max_delivery_attempts": "Choose 5 to 100 attempts.",
        "labels": "Use at most 64 labels. Keys and values have up to 63 lower-case letters, digits, - and _; a key "
        "begins with a letter.",
        "new_dead_letter_topic": "Use 3 to 255 letters, digits and any of - . _ ~ + %, beginning with a letter, and "
        "not with “goog”.",
        "transform_1": "Invalid function name given (function_name=2f). It must be a name in JavaScript, of ASCII "
        "letters, digits, _ and $.",
    }
    assert "filter" in texts_by_field
    assert all(len(texts) == 1 for texts in texts_by_field.values()), texts_by_field
    assert not Subscription.objects.exists()
    assert Topic.objects.count() == 1


def test_an_audience_without_an_account_is_said_in_words(client: Client) -> None:
    sent = form(delivery_type="push", push_endpoint="https://example.com/", audience="aud")
    assert errors(client.post(ADD, sent)) == {
        "service_account": ["An audience needs a service account: choose one, or name a new one."]
    }


@pytest.mark.parametrize(
    ("fields", "places"),
    [
        ({"push_endpoint": "nonsense", "service_account": EMAIL}, {"push_endpoint"}),
        ({"audience": "aud", "new_service_account": "X"}, {"new_service_account"}),
        ({"minimum_backoff": "700s", "maximum_backoff": "5s", "filter": "x"}, {"minimum_backoff", "filter"}),
        ({"subscription_id": "", "topic": "", "labels": '{"A": ""}'}, {"subscription_id", "topic", "labels"}),
        ({"new_dead_letter_topic": "no", "max_delivery_attempts": 7}, {"new_dead_letter_topic"}),
        ({"subscription_id": "taken", "ack_deadline_seconds": 5}, {"subscription_id", "ack_deadline_seconds"}),
        ({"subscription_id": "taken", "max_delivery_attempts": 7}, {"subscription_id", "dead_letter_topic"}),
    ],
)
def test_a_value_that_is_refused_makes_no_error_at_another_field_and_hides_none(
    client: Client, api: Api, fields: dict[str, Any], places: set[str]
) -> None:
    api.create("subscriptions/taken", {"topic": TOPIC})
    push = {"delivery_type": "push", "push_endpoint": "https://example.com/"}
    assert set(errors(client.post(ADD, form(**push | fields)))) == places
    assert Subscription.objects.get().subscription_id == "taken"


def test_an_account_has_to_be_of_the_own_project(client: Client, api: Api) -> None:
    assert api.call("POST", "/v1/projects/other/serviceAccounts", {"accountId": "pusher"}).status == 200
    push = {"delivery_type": "push", "push_endpoint": "https://example.com/"}
    sent = form(**push, service_account="pusher@other.iam.gserviceaccount.com", ack_deadline_seconds=5)
    texts_by_field = errors(client.post(ADD, sent))
    assert set(texts_by_field) == {"service_account", "ack_deadline_seconds"}
    assert texts_by_field["service_account"] == ["The account has to be one of the subscription's own project."]


@pytest.mark.parametrize(
    "url, text",
    [
        ("", "Enter the URL that messages are pushed to, or choose pull."),
        ("example.com", "Enter a complete URL, such as https://example.com/push."),
        ("ftp://example.com/", "The URL has to begin with https://."),
        ("https://", "Enter a complete URL, such as https://example.com/push."),
        ("https://-/", "This is no host name: enter a URL such as https://example.com/push."),
        ("https://example.com:22/", "PushHub does not push to this port."),
        ("https://127.0.0.1/", "PushHub would not push to 127.0.0.1"),
        ("https://127.0.0.1:8443/", "Port 8443 is PushHub's own: enter that of the endpoint."),
        ("https://[::1]/", "PushHub would not push to ::1"),
        ("https://169.254.169.254/", "PushHub would not push to 169.254.169.254"),
        ("https://intranet/", "PushHub would not push to intranet"),
    ],
)
def test_the_form_says_at_once_that_an_endpoint_would_be_refused(
    client: Client, settings: Any, url: str, text: str
) -> None:
    settings.ALLOW_HTTP, settings.ALLOW_PRIVATE, settings.ALLOWED_NETWORKS = False, False, ()
    settings.HTTP_ADDRESS = "127.0.0.1", 8443
    texts_by_field = errors(client.post(ADD, form(delivery_type="push", push_endpoint=url)))
    assert list(texts_by_field) == ["push_endpoint"]
    assert texts_by_field["push_endpoint"][0].startswith(text)
    if url:
        assert client.get(CHECK, {"url": url}).json()["text"].startswith(text)


def test_the_form_warns_of_a_host_name_with_a_denied_address_or_without_any(
    client: Client, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.ALLOW_PRIVATE, settings.ALLOWED_NETWORKS = False, ()
    addresses: list[str] = []
    monkeypatch.setattr("deliveries.admin.endpoints.host_addresses", lambda host, seconds: addresses)
    assert "has no address" in client.get(CHECK, {"url": "https://example.com/"}).json()["text"]
    addresses.append("192.168.0.7")
    answer = client.get(CHECK, {"url": "https://example.com/"}).json()["text"]
    assert "its name leads to an address that the address guard denies" in answer
    saved = client.post(ADD, form(delivery_type="push", push_endpoint="https://example.com/"), follow=True)
    assert any("address guard" in text for text in messages_of(saved)), (
        "it is saved, because a name's addresses may change"
    )
    assert Subscription.objects.get().push_endpoint == "https://example.com/"
    addresses[:] = ["93.184.215.14"]
    assert client.get(CHECK, {"url": "https://example.com/"}).json() == {"text": ""}


def test_only_the_fields_of_the_delivery_type_are_saved(client: Client, api: Api) -> None:
    push = {"push_endpoint": "https://example.com/", "service_account": EMAIL, "audience": "aud", "wrapper": "none"}
    assert client.post(ADD, form(**push, push_attributes="{")).status_code == 302
    row = Subscription.objects.get()
    assert (row.push_endpoint, row.oidc_service_account_email, row.push_wrapper) == ("", "", row.Wrapper.UNSET)
    change = f"/admin/subscriptions/subscription/{row.pk}/change/"
    sent = form(delivery_type="push", **push, enable_exactly_once_delivery="on")
    assert client.post(change, sent).status_code == 302
    row.refresh_from_db()
    assert (row.push_endpoint, row.oidc_audience, row.enable_exactly_once_delivery) == (
        "https://example.com/",
        "aud",
        False,
    )
    assert client.post(change, form(**push)).status_code == 302
    row.refresh_from_db()
    assert row.push_endpoint == ""


def test_a_malformed_duration_is_refused(client: Client) -> None:
    for text in ("soon", "5x", "1d-", "1 2", "99999999d"):
        texts_by_field = errors(client.post(ADD, form(minimum_backoff=text)))
        assert texts_by_field == {"minimum_backoff": ["Enter a duration such as 30s, 10m, 12h or 7d."]}, text


def test_durations_are_read_and_shown_with_units(client: Client, api: Api) -> None:
    sent = form(message_retention="1d12h", expiration="45D", minimum_backoff="0.5s", maximum_backoff="2 m")
    assert client.post(ADD, sent).status_code == 302
    subscription = api.get("subscriptions/hello").body
    assert subscription["messageRetentionDuration"] == "129600s"
    assert subscription["expirationPolicy"] == {"ttl": "3888000s"}
    assert subscription["retryPolicy"] == {"minimumBackoff": "0.500s", "maximumBackoff": "120s"}
    shown = client.get(f"/admin/subscriptions/subscription/{Subscription.objects.get().pk}/change/")
    initial = shown.context["adminform"].form.initial
    assert [initial[name] for name in ("message_retention", "expiration", "minimum_backoff", "maximum_backoff")] == [
        "36h",
        "45d",
        "0.500s",
        "2m",
    ]


def test_topics_and_an_account_are_created_with_the_subscription_and_get_their_roles(client: Client) -> None:
    sent = form(
        topic=None,
        new_topic="fresh",
        delivery_type="push",
        push_endpoint="https://example.com/",
        new_service_account="newcomer",
        grant_agent="on",
        new_dead_letter_topic="letters",
        grant_dead_letters="on",
    )
    response = client.post(ADD, sent)
    assert response.status_code == 302, errors(response)
    row = Subscription.objects.select_related("topic", "dead_letter_topic").get()
    account = ServiceAccount.objects.get(email__startswith="newcomer@")
    assert row.topic is not None
    assert row.dead_letter_topic is not None
    assert (row.topic.topic_id, row.dead_letter_topic.topic_id) == ("fresh", "letters")
    assert row.oidc_service_account_email == account.email
    assert agents.can_agent_mint(account)
    agent = agents.service_agent(row.project)
    assert access.allowed(agent, "pubsub.topics.publish", row.dead_letter_topic)
    assert access.allowed(agent, "pubsub.subscriptions.consume", row)
    assert AuditEntry.objects.filter(action="create", kind="Topic", resource=row.topic.name).exists()


@pytest.mark.parametrize(
    "fields, place",
    [
        ({"new_topic": "orders", "topic": None}, "new_topic"),
        ({"new_topic": "fresh"}, "new_topic"),
        ({"new_service_account": "pusher"}, "new_service_account"),
        ({"new_service_account": "X"}, "new_service_account"),
        ({"new_service_account": "newcomer", "service_account": EMAIL}, "new_service_account"),
        ({"new_dead_letter_topic": "orders"}, "new_dead_letter_topic"),
    ],
)
def test_an_error_in_a_new_resource_is_shown_at_its_field_and_nothing_is_created(
    client: Client, fields: dict[str, Any], place: str
) -> None:
    before = (Topic.objects.count(), ServiceAccount.objects.count(), Policy.objects.count())
    push = {"delivery_type": "push", "push_endpoint": "https://example.com/", "new_dead_letter_topic": "letters"}
    texts_by_field = errors(client.post(ADD, form(**{**push, "grant_dead_letters": "on", **fields})))
    assert list(texts_by_field) == [place]
    assert (Topic.objects.count(), ServiceAccount.objects.count(), Policy.objects.count()) == before
    assert not Subscription.objects.exists()


def test_a_missing_permission_to_act_as_an_account_is_an_error_that_an_admin_can_mend_in_the_form(api: Api) -> None:
    project = Project.objects.get()
    creator = ("roles/pubsub.editor", project)
    push = {"delivery_type": "push", "push_endpoint": "https://example.com/", "service_account": EMAIL}
    eddy = person("eddy", creator, ("roles/iam.serviceAccountViewer", project))
    texts_by_field = errors(eddy.post(ADD, form(**push, grant_act_as="on")))
    assert texts_by_field == {
        "service_account": [
            f"You need the permission iam.serviceAccounts.actAs on projects/shop/serviceAccounts/{EMAIL}."
        ]
    }
    assert "grant_act_as" not in eddy.get(ADD).context["adminform"].form.fields, "it would be refused"
    amy = person("amy", creator, ("roles/iam.serviceAccountAdmin", project))
    assert list(errors(amy.post(ADD, form(**push)))) == ["service_account"]
    granting = form(**push, grant_act_as="on", grant_agent="on")
    assert list(errors(amy.post(ADD, granting | {"ack_deadline_seconds": 5}))) == ["ack_deadline_seconds"]
    response = amy.post(ADD, granting)
    assert response.status_code == 302, errors(response)
    access.forget_decisions()
    account = ServiceAccount.objects.get()
    assert agents.can_agent_mint(account)
    assert access.allowed(Principal("user:amy@example.com"), "iam.serviceAccounts.actAs", account)


def test_who_may_not_act_as_the_present_account_changes_nothing_and_sees_all_errors(api: Api) -> None:
    project = Project.objects.get()
    config = {"pushEndpoint": "https://example.com/", "oidcToken": {"serviceAccountEmail": EMAIL}}
    before = api.create("subscriptions/hello", {"topic": TOPIC, "pushConfig": config})
    eddy = person("eddy", ("roles/pubsub.editor", project), ("roles/iam.serviceAccountViewer", project))
    change = f"/admin/subscriptions/subscription/{Subscription.objects.get().pk}/change/"
    push = {"delivery_type": "push", "push_endpoint": "https://example.com/new", "service_account": EMAIL}
    assert list(errors(eddy.post(change, form(**push)))) == ["service_account"]
    assert set(errors(eddy.post(change, form(**push, ack_deadline_seconds=5)))) == {
        "service_account",
        "ack_deadline_seconds",
    }
    assert api.get("subscriptions/hello").body == before


def test_the_form_offers_only_what_the_user_may_create(api: Api) -> None:
    """Given a custom role that may only create subscriptions and attach them to topics."""
    from subscriptions.models.iam import RoleResource

    project = Project.objects.get()
    permissions = ["pubsub.subscriptions.create", "pubsub.topics.attachSubscription", "pubsub.topics.get"]
    role = RoleResource.objects.create(project=project, role_id="attacher", title="x", permissions=permissions)
    bob = person("bob", (role.name, project))
    fields = bob.get(ADD).context["adminform"].form.fields
    offers = {"new_topic", "new_service_account", "new_dead_letter_topic", "grant_agent", "grant_act_as"}
    assert not (offers | {"grant_dead_letters"}) & set(fields)
    assert bob.post(ADD, form(new_topic="fresh")).status_code == 302
    assert not Topic.objects.filter(topic_id="fresh").exists()
    letters = Topic.objects.create(project=project, topic_id="letters")
    texts_by_field = errors(bob.post(ADD, form(subscription_id="again", dead_letter_topic=letters.pk)))
    assert texts_by_field == {
        "dead_letter_topic": ["You need the permission pubsub.topics.publish on projects/shop/topics/letters."]
    }


def test_a_missing_permission_to_forward_is_shown_and_an_admin_can_grant_it_on_the_page(
    api: Api, settings: Any
) -> None:
    settings.DEVELOPMENT = False
    project = Project.objects.get()
    Policy.objects.filter(kind="project").delete()
    letters = Topic.objects.create(project=project, topic_id="letters")
    eddy, amy = person("eddy", ("roles/pubsub.editor", project)), person("amy", ("roles/pubsub.admin", project))
    saved = eddy.post(ADD, form(dead_letter_topic=letters.pk), follow=True)
    assert any("may not forward dead letters" in text for text in messages_of(saved)), messages_of(saved)
    row = Subscription.objects.get()
    grant = f"/admin/subscriptions/subscription/{row.pk}/grant-forwarding/"
    change = f"/admin/subscriptions/subscription/{row.pk}/change/"
    assert grant not in eddy.get(change).content.decode(), "it would be refused"
    eddy.post(grant)
    agent = agents.service_agent(project)
    assert not access.allowed(agent, "pubsub.topics.publish", letters)
    assert grant in amy.get(change).content.decode()
    assert amy.get(grant).status_code == 405
    amy.post(grant)
    assert access.allowed(agent, "pubsub.topics.publish", letters)
    assert access.allowed(agent, "pubsub.subscriptions.consume", row)
    assert grant not in amy.get(change).content.decode()


def test_a_policy_whose_dead_letter_topic_was_deleted_is_kept_until_somebody_changes_it(
    api: Api, client: Client
) -> None:
    api.create("topics/letters")
    policy = {"deadLetterTopic": "projects/shop/topics/letters", "maxDeliveryAttempts": 7}
    api.create("subscriptions/hello", {"topic": TOPIC, "deadLetterPolicy": policy})
    api.delete("topics/letters")
    change = f"/admin/subscriptions/subscription/{Subscription.objects.get().pk}/change/"
    assert client.post(change, form(max_delivery_attempts=7, ack_deadline_seconds=33)).status_code == 302
    body = api.get("subscriptions/hello").body
    assert body["ackDeadlineSeconds"] == 33
    assert body["deadLetterPolicy"] == {"deadLetterTopic": "_deleted-topic_", "maxDeliveryAttempts": 7}
    refused = errors(client.post(change, form(max_delivery_attempts=8)))
    assert refused == {"dead_letter_topic": ["Choose a topic, or name a new one."]}
    assert client.post(change, form()).status_code == 302
    assert "deadLetterPolicy" not in api.get("subscriptions/hello").body


def test_a_policy_goes_with_its_dead_letter_topic(api: Api, client: Client) -> None:
    api.create("topics/letters")
    policy = {"deadLetterTopic": "projects/shop/topics/letters", "maxDeliveryAttempts": 7}
    api.create("subscriptions/hello", {"topic": TOPIC, "deadLetterPolicy": policy})
    change = f"/admin/subscriptions/subscription/{Subscription.objects.get().pk}/change/"
    assert client.post(change, form(dead_letter_topic="", max_delivery_attempts=7)).status_code == 302
    assert "deadLetterPolicy" not in api.get("subscriptions/hello").body


def test_a_deleted_service_account_is_not_dropped_without_a_word(api: Api, client: Client) -> None:
    config = {"pushEndpoint": "https://example.com/", "oidcToken": {"serviceAccountEmail": EMAIL}}
    api.create("subscriptions/hello", {"topic": TOPIC, "pushConfig": config})
    api.delete(f"serviceAccounts/{EMAIL}")
    change = f"/admin/subscriptions/subscription/{Subscription.objects.get().pk}/change/"
    sent = form(delivery_type="push", push_endpoint="https://example.com/", ack_deadline_seconds=33)
    assert errors(client.post(change, sent)) == {
        "service_account": [f"The account {EMAIL} was deleted. Choose another."]
    }
    assert client.post(change, sent | {"new_service_account": "another"}).status_code == 302
    token = api.get("subscriptions/hello").body["pushConfig"]["oidcToken"]
    assert token["serviceAccountEmail"] == "another@shop.iam.gserviceaccount.com"


def test_the_endpoint_check_needs_the_permission_to_use_an_endpoint(api: Api) -> None:
    project = Project.objects.get()
    assert person("vera", ("roles/pubsub.viewer", project)).get(CHECK, {"url": "https://x/"}).status_code == 403
    assert person("eddy", ("roles/pubsub.editor", project)).get(CHECK, {"url": "https://x/"}).status_code == 200
    assert Client().get(CHECK, {"url": "https://x/"}).status_code == 302


def test_each_field_is_in_one_section(client: Client) -> None:
    page = client.get(ADD)
    form_page = page.context["adminform"]
    field_names = [name for _, options in form_page.fieldsets for name in options["fields"]]
    assert sorted(field_names) == sorted(form_page.form.fields)
    content = page.content.decode()
    assert "only-push" in content
    assert "only-pull" in content


def test_the_number_of_queries_does_not_grow_with_the_rows(client: Client) -> None:
    """The number of accounts, topics and projects that the form offers doesn't matter."""
    queries(client)  # the first request fills caches
    query_count = queries(client)
    project = Project.objects.get()
    Topic.objects.bulk_create(Topic(project=project, topic_id=f"topic{number}") for number in range(60))
    ServiceAccount.objects.bulk_create(
        ServiceAccount(project=project, email=f"a{number}@shop.iam.gserviceaccount.com", unique_id=str(number))
        for number in range(40)
    )
    assert queries(client) == query_count


def queries(client: Client) -> int:
    access.forget_decisions()
    with CaptureQueriesContext(connection) as captured:
        assert client.get(ADD).status_code == 200
    return len(captured)
