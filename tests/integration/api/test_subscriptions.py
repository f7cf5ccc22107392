"""Subscriptions over REST (docs/spec-messages.md#subscriptions, docs/spec.md#field-masks), and push endpoints."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from django.dispatch import Signal
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from pytest_django import DjangoAssertNumQueries

from pushhub.common.protojson import format_timestamp
from subscriptions import selectors, signals
from subscriptions.models import Project, Subscription
from subscriptions.models.iam import AuditEntry
from subscriptions.transforms.functions import Function
from tests.restapi import Api

TOPIC = "projects/shop/topics/orders"
ACCOUNT = "pusher@shop.iam.gserviceaccount.com"
DEFAULTS = {
    "topic": TOPIC,
    "pushConfig": {},
    "ackDeadlineSeconds": 10,
    "messageRetentionDuration": "604800s",
    "expirationPolicy": {"ttl": "2678400s"},
    "state": "ACTIVE",
}
#: Values for every field that a caller can set and PushHub supports.
FULL: dict[str, Any] = {
    "pushConfig": {
        "pushEndpoint": "https://example.com/push?token=secret",
        "attributes": {"x-goog-version": "v1", "x-pushhub-rate": "5"},
        "oidcToken": {"serviceAccountEmail": ACCOUNT, "audience": "shop"},
        "noWrapper": {"writeMetadata": True},
    },
    "ackDeadlineSeconds": 600,
    "retainAckedMessages": True,
    "messageRetentionDuration": "1200.250s",
    "labels": {"team": "shop"},
    "enableMessageOrdering": True,
    "expirationPolicy": {"ttl": "864000.500s"},
    "filter": 'attributes.kind = "order"',
    "deadLetterPolicy": {"deadLetterTopic": "projects/shop/topics/dead", "maxDeliveryAttempts": 7},
    "retryPolicy": {"minimumBackoff": "0.250s", "maximumBackoff": "60s"},
    "messageTransforms": [{"javascriptUdf": {"functionName": "f", "code": "function f(m) { return m; }"}}],
}
MUTABLE = sorted(set(FULL) - {"enableMessageOrdering", "filter"})
UNSUPPORTED = {
    "messageTransforms": [{"compression": {"compressionAlgorithm": "ZLIB", "compressionMode": "COMPRESS"}}],
    "bigqueryConfig": {"table": "p.d.t", "writeMetadata": True},
    "cloudStorageConfig": {"bucket": "b", "avroConfig": {}, "maxDuration": "60s", "maxBytes": "1000000"},
    "bigtableConfig": {"table": "t", "columnFamilyMapping": {"delimitedKey": {"delimiter": "#", "keyFields": ["a"]}}},
}


@pytest.fixture
def shop(api: Api) -> Api:
    """Topics `orders` and `dead`, and a service account."""
    api.create("topics/orders")
    api.create("topics/dead")
    assert api.post("serviceAccounts", {"accountId": "pusher"}).status == 200
    return api


def named(subscription_id: str, fields: dict[str, Any]) -> dict[str, Any]:
    return {"name": f"projects/shop/subscriptions/{subscription_id}", **fields}


def without_output(resource: dict[str, Any]) -> dict[str, Any]:
    return {field: value for field, value in resource.items() if field not in {"name", "state"}}


def test_a_pull_subscription_is_created_with_the_defaults_written_back(shop: Api) -> None:
    subscription = shop.create("subscriptions/pull", {"topic": TOPIC})

    assert subscription == named("pull", DEFAULTS)
    assert shop.get("subscriptions/pull").body == subscription


def test_a_push_subscription_has_the_form_of_the_documentation(shop: Api) -> None:
    push_config = {"pushEndpoint": "https://example.com/push"}

    subscription = shop.create("subscriptions/push", {"topic": TOPIC, "pushConfig": push_config})

    assert subscription == named("push", DEFAULTS | {"pushConfig": push_config})


def test_every_field_comes_back(shop: Api) -> None:
    subscription = shop.create("subscriptions/full", {"topic": TOPIC, **FULL})

    assert subscription == named("full", {"topic": TOPIC, **FULL, "state": "ACTIVE"})
    assert shop.get("subscriptions/full").body == subscription


@pytest.mark.parametrize("field", sorted(UNSUPPORTED))
def test_unsupported_fields_are_refused_by_name(shop: Api, field: str) -> None:
    """If the field were ignored, an export would lose its messages."""
    answer = shop.put("subscriptions/export", {"topic": TOPIC, field: UNSUPPORTED[field]})
    assert (answer.status, answer.error["status"]) == (501, "UNIMPLEMENTED")
    assert field in answer.error["message"]
    assert shop.get("subscriptions/export").status == 404
    shop.create("subscriptions/plain", {"topic": TOPIC})
    patch = {"subscription": {field: UNSUPPORTED[field]}, "updateMask": field}
    assert shop.patch("subscriptions/plain", patch).status == 501
    cleared = shop.patch("subscriptions/plain", {"subscription": {}, "updateMask": field})
    assert cleared.body == named("plain", DEFAULTS)


@hypothesis_settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    before=st.sets(st.sampled_from(sorted(FULL))),
    given_fields=st.sets(st.sampled_from(sorted(FULL))),
    mask=st.sets(st.sampled_from(MUTABLE), min_size=1),
)
def test_a_patch_changes_the_fields_of_its_mask_only(
    shop: Api, before: set[str], given_fields: set[str], mask: set[str]
) -> None:
    """docs/lessons.md#lessons-from-metro, row 5: any update in Metro turns ordering off."""
    # Given a subscription with some of its fields set
    Subscription.objects.all().delete()
    current = shop.create("subscriptions/any", {"topic": TOPIC, **{field: FULL[field] for field in before}})
    changes = {field: FULL[field] for field in given_fields}
    # When a patch has fields inside and outside of its mask
    patched = shop.patch("subscriptions/any", {"subscription": changes, "updateMask": ",".join(sorted(mask))})
    # Then the fields of the mask are replaced or reset to their default, and the others are unchanged
    expected = {field: value for field, value in current.items() if field not in mask}
    for field in mask:
        if field in changes or field in DEFAULTS:
            expected[field] = changes.get(field, DEFAULTS.get(field))
    if "pushConfig" in mask & before - given_fields:
        expected["pushConfig"] = {"attributes": {"x-goog-version": "v1"}}
    assert patched.status == 200
    assert patched.body == expected
    assert shop.get("subscriptions/any").body == expected


@pytest.mark.parametrize("mask", ["pushConfig.pushEndpoint", "push_config.push_endpoint"])
def test_a_nested_path_changes_the_endpoint_alone(shop: Api, mask: str) -> None:
    shop.create("subscriptions/full", {"topic": TOPIC, **FULL})

    changes = {"pushConfig": {"pushEndpoint": "https://example.org/"}}
    patched = shop.patch("subscriptions/full", {"subscription": changes, "updateMask": mask}).body

    assert patched["pushConfig"] == FULL["pushConfig"] | {"pushEndpoint": "https://example.org/"}


def test_a_patch_updates_the_time_of_change(shop: Api) -> None:
    shop.create("subscriptions/push", {"topic": TOPIC})
    before = Subscription.objects.get().updated_at

    shop.patch("subscriptions/push", {"subscription": {"ackDeadlineSeconds": 20}, "updateMask": "ackDeadlineSeconds"})
    between = Subscription.objects.get().updated_at
    shop.post("subscriptions/push:modifyPushConfig", {"pushConfig": {"pushEndpoint": "https://example.com"}})

    assert before < between < Subscription.objects.get().updated_at


BAD_FIELDS: list[tuple[dict[str, Any], str, str]] = [
    ({"topic": ""}, "topic", "Invalid resource name given (name=)."),
    ({"topic": "orders"}, "topic", "Invalid resource name given (name=orders)."),
    ({"topic": 5}, "topic", "Invalid value at 'topic' (TYPE_STRING)"),
    ({"ackDeadlineSeconds": 9}, "ackDeadlineSeconds", "Invalid ack deadline given (ack_deadline=9)."),
    ({"ackDeadlineSeconds": 601}, "ackDeadlineSeconds", "must be between 10 and 600 seconds."),
    ({"ackDeadlineSeconds": "soon"}, "ackDeadlineSeconds", "TYPE_INT32"),
    ({"ackDeadlineSeconds": 20, "ack_deadline_seconds": 20}, "ackDeadlineSeconds", "two spellings"),
    ({"messageRetentionDuration": "599s"}, "messageRetentionDuration", "You passed 9m59s in the request"),
    ({"expirationPolicy": {"ttl": "3600s"}}, "expirationPolicy.ttl", "You passed 1h in the request"),
    (
        {"expirationPolicy": {"ttl": "86400s"}, "messageRetentionDuration": "86401s"},
        "expirationPolicy.ttl",
        "the message retention duration is 24h1s",
    ),
    ({"filter": "x" * 257}, "filter", "the maximum value is 256"),
    ({"labels": {"Upper": ""}}, "labels.Upper", 'key "Upper" does not conform'),
    ({"retryPolicy": {"minimumBackoff": "601s"}}, "retryPolicy.minimumBackoff", "out of bounds"),
    (
        {"retryPolicy": {"minimumBackoff": "2s", "maximumBackoff": "1s"}},
        "retryPolicy.minimumBackoff",
        "must not exceed",
    ),
    ({"deadLetterPolicy": {}}, "deadLetterPolicy.deadLetterTopic", "Invalid resource name"),
    (
        {"deadLetterPolicy": {"deadLetterTopic": "projects/shop/topics/dead", "maxDeliveryAttempts": 4}},
        "deadLetterPolicy.maxDeliveryAttempts",
        "between 5 and 100",
    ),
    ({"pushConfig": {"pushEndpoint": "ftp://example.com"}}, "pushConfig.pushEndpoint", "Invalid push endpoint given"),
    ({"pushConfig": {"pushEndpoint": "https://u:p@example.com"}}, "pushConfig.pushEndpoint", "(endpoint=https://u:p@"),
    (
        {"pushConfig": {"pushEndpoint": "https://a.example", "attributes": {"x-goog-version": "v1beta1"}}},
        "pushConfig.attributes.x-goog-version",
        "Invalid push endpoint version given in push config (version=v1beta1).",
    ),
    ({"pushConfig": {"oidcToken": {"serviceAccountEmail": ACCOUNT}}}, "pushConfig.oidcToken", "needs a pushEndpoint"),
    (
        {"pushConfig": {"pushEndpoint": "https://a.example", "attributes": {"x-goog-colour": "red"}}},
        "pushConfig.attributes.x-goog-colour",
        "PushHub knows x-goog-version, x-pushhub-rate",
    ),
    (
        {"pushConfig": {"pushEndpoint": "https://a.example", "attributes": {"x-pushhub-keep-answers": "yes"}}},
        "pushConfig.attributes.x-pushhub-keep-answers",
        "must be true or false",
    ),
    ({"pushConfig": {"attributes": {"k": "v" * 1025}}}, "pushConfig.attributes.k", "too large"),
    ({"pushConfig": {"pubsubWrapper": {}, "noWrapper": {}}}, "pushConfig.noWrapper", "oneof field 'wrapper'"),
    ({"pushConfig": {"colour": 1}}, "pushConfig.colour", "Unknown name \"colour\" at 'pushConfig'"),
    (
        {"pushConfig": {"pushEndpoint": "https://a.example"}, "enableExactlyOnceDelivery": True},
        "enableExactlyOnceDelivery",
        "pull subscriptions only",
    ),
    ({"name": "projects/shop/subscriptions/other"}, "name", "must agree"),
    ({"colour": "red"}, "colour", "Cannot find field."),
]


@pytest.mark.any_database
@pytest.mark.parametrize(("body", "field", "text"), BAD_FIELDS)
def test_a_bad_field_is_refused_by_name_and_nothing_is_stored(
    shop: Api, body: dict[str, Any], field: str, text: str
) -> None:
    answer = shop.put("/v1/projects/other/subscriptions/push", {"topic": TOPIC} | body)
    if field == "name":
        answer = shop.put("subscriptions/push", {"topic": TOPIC} | body)

    assert (answer.status, answer.error["status"]) == (400, "INVALID_ARGUMENT")
    assert answer.fields == [field]
    assert text in answer.error["message"]
    assert not Subscription.objects.exists()
    assert not Project.objects.filter(project_id="other").exists()


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"ackDeadlineSeconds": 9}, "ackDeadlineSeconds"),
        ({"pushConfig": {"pushEndpoint": "nowhere"}}, "pushConfig"),
        ({"labels": {"Upper": ""}}, "labels"),
        ({"expirationPolicy": {"ttl": "604799s"}}, "expirationPolicy"),
        ({"messageRetentionDuration": "2678400s", "expirationPolicy": {"ttl": "2678399s"}}, "expirationPolicy"),
        ({"pushConfig": {"pushEndpoint": "https://a.example"}, "enableExactlyOnceDelivery": True}, "pushConfig"),
    ],
)
def test_a_refused_patch_changes_nothing(shop: Api, changes: dict[str, Any], field: str) -> None:
    before = shop.create("subscriptions/sub", {"topic": TOPIC, "retainAckedMessages": True})
    mask = ",".join(["retainAckedMessages", *changes])

    answer = shop.patch("subscriptions/sub", {"subscription": changes, "updateMask": mask})

    assert answer.status == 400
    assert shop.get("subscriptions/sub").body == before


@pytest.mark.any_database
@pytest.mark.parametrize(
    ("mask", "text"),
    [
        ("", "The update_mask in the UpdateSubscriptionRequest must be set, and must contain a non-empty paths list."),
        ("topic", "the 'topic' field in the Subscription is not mutable."),
        ("enableMessageOrdering", "the 'enable_message_ordering' field in the Subscription is not mutable."),
        ("filter", "the 'filter' field in the Subscription is not mutable."),
        ("detached", "the 'detached' field in the Subscription is not mutable."),
        ("colour", "'colour' is not a known Subscription field."),
        ("bigqueryConfig.state", "'bigqueryConfig.state' is not a known Subscription field."),
    ],
)
def test_a_bad_mask_is_refused_in_productions_words(shop: Api, mask: str, text: str) -> None:
    shop.create("subscriptions/sub", {"topic": TOPIC})

    answer = shop.patch("subscriptions/sub", {"subscription": {"topic": TOPIC}, "updateMask": mask})

    assert (answer.status, answer.fields) == (400, ["updateMask"])
    assert text in answer.error["message"]


def test_a_missing_topic_is_not_found(shop: Api) -> None:
    answer = shop.put("subscriptions/sub", {"topic": "projects/shop/topics/nothing"})

    assert (answer.status, answer.error["message"]) == (404, "Resource not found (resource=nothing).")
    policy = {"deadLetterTopic": "projects/shop/topics/none"}
    answer = shop.put("subscriptions/sub", {"topic": TOPIC, "deadLetterPolicy": policy})
    assert (answer.status, answer.error["message"]) == (404, "Resource not found (resource=none).")


@pytest.mark.parametrize("method", ["GET", "DELETE", "PATCH", ":modifyPushConfig", ":detach"])
def test_an_unknown_subscription_is_not_found(shop: Api, method: str) -> None:
    if method.startswith(":"):
        answer = shop.post(f"subscriptions/none{method}", {"pushConfig": {}} if "Push" in method else {})
    else:
        answer = shop.call(method, "subscriptions/none", {"updateMask": "labels"} if method == "PATCH" else None)

    assert (answer.status, answer.error["message"]) == (404, "Resource not found (resource=none).")


def test_a_name_that_exists_is_a_conflict(shop: Api) -> None:
    shop.create("subscriptions/sub", {"topic": TOPIC})

    answer = shop.put("subscriptions/sub", {"topic": TOPIC})

    assert (answer.status, answer.error["status"]) == (409, "ALREADY_EXISTS")
    assert answer.error["message"] == "Resource already exists in the project (resource=sub)."


def test_defaults_depend_on_other_fields(shop: Api) -> None:
    once = shop.create("subscriptions/once", {"topic": TOPIC, "enableExactlyOnceDelivery": True})
    short = shop.create("subscriptions/short", {"topic": TOPIC, "expirationPolicy": {"ttl": "86400s"}})
    never = shop.create("subscriptions/never", {"topic": TOPIC, "expirationPolicy": {}})
    retry = shop.create("subscriptions/retry", {"topic": TOPIC, "retryPolicy": {}})

    assert once["ackDeadlineSeconds"] == 60
    assert short["messageRetentionDuration"] == "86400s"
    assert never["expirationPolicy"] == {}
    assert never["messageRetentionDuration"] == "604800s"
    assert retry["retryPolicy"] == {"minimumBackoff": "10s", "maximumBackoff": "600s"}


def test_a_patch_ignores_deleted_resources_that_other_fields_refer_to(shop: Api) -> None:
    # Given a subscription whose dead letter topic and service account have been deleted
    fields = {"topic": TOPIC, "deadLetterPolicy": FULL["deadLetterPolicy"], "pushConfig": FULL["pushConfig"]}
    shop.create("subscriptions/sub", fields)
    shop.delete("topics/dead")
    shop.delete(f"serviceAccounts/{ACCOUNT}")
    # When another field is patched, then the patch succeeds
    patched = shop.patch("subscriptions/sub", {"subscription": {"labels": {"a": "b"}}, "updateMask": "labels"})
    assert patched.body["labels"] == {"a": "b"}


def test_null_is_absent(shop: Api) -> None:
    body = {"topic": TOPIC, "pushConfig": None, "labels": None, "ackDeadlineSeconds": None, "expirationPolicy": None}

    assert shop.create("subscriptions/sub", body) == named("sub", DEFAULTS)


def test_http_endpoints_need_the_setting_that_allows_them(shop: Api, settings: Any) -> None:
    body = {"topic": TOPIC, "pushConfig": {"pushEndpoint": "http://localhost:8080/"}}
    settings.ALLOW_HTTP = False
    refused = shop.put("subscriptions/sub", body)
    settings.ALLOW_HTTP = True

    assert refused.error["message"] == (
        "Invalid push endpoint given (endpoint=http://localhost:8080/). "
        "Refer to https://cloud.google.com/pubsub/subscriber#create for more information."
    )
    assert shop.put("subscriptions/sub", body).status == 200


def test_private_endpoints_need_the_setting_that_allows_them(shop: Api, settings: Any) -> None:
    for endpoint in ("https://10.0.0.1/", "https://redis/", "https://127.1/"):
        settings.ALLOW_PRIVATE = False
        refused = shop.put("subscriptions/sub", {"topic": TOPIC, "pushConfig": {"pushEndpoint": endpoint}})
        assert (refused.status, refused.fields) == (400, ["pushConfig.pushEndpoint"]), endpoint
    assert shop.get("subscriptions/sub").status == 404
    settings.ALLOW_PRIVATE = True
    shop.create("subscriptions/sub", {"topic": TOPIC, "pushConfig": {"pushEndpoint": "https://10.0.0.1/"}})


@pytest.mark.parametrize("email", ["nobody@shop.iam.gserviceaccount.com", "", "pusher@other.iam.gserviceaccount.com"])
def test_the_account_of_a_push_config_must_exist_in_the_subscriptions_project(shop: Api, email: str) -> None:
    assert shop.post("/v1/projects/other/serviceAccounts", {"accountId": "pusher"}).status == 200
    push_config = {"pushEndpoint": "https://example.com", "oidcToken": {"serviceAccountEmail": email}}

    shop.create("subscriptions/old", {"topic": TOPIC})
    for answer in (
        shop.put("subscriptions/new", {"topic": TOPIC, "pushConfig": push_config}),
        shop.post("subscriptions/old:modifyPushConfig", {"pushConfig": push_config}),
        shop.patch("subscriptions/old", {"subscription": {"pushConfig": push_config}, "updateMask": "pushConfig"}),
    ):
        assert (answer.status, answer.fields) == (400, ["pushConfig.oidcToken.serviceAccountEmail"])
        assert answer.error["message"] == (
            "You have passed an invalid argument to the service "
            "(argument=PushConfig::oidc_token::service_account_email)."
        )
    assert shop.get("subscriptions/old").body == named("old", DEFAULTS)


def test_the_dead_letter_topic_may_be_the_subscriptions_own(shop: Api) -> None:
    """Google's Node sample updateDeadLetterPolicy.js does this, and its test passes against production."""
    policy = {"deadLetterTopic": TOPIC, "maxDeliveryAttempts": 15}
    assert shop.create("subscriptions/sub", {"topic": TOPIC, "deadLetterPolicy": policy})["deadLetterPolicy"] == policy


def test_pushing_stops_and_starts_again_by_modify_push_config(shop: Api) -> None:
    shop.create("subscriptions/sub", {"topic": TOPIC, "pushConfig": FULL["pushConfig"]})

    assert shop.post("subscriptions/sub:modifyPushConfig", {"pushConfig": {}}).body == {}
    assert shop.get("subscriptions/sub").body["pushConfig"] == {}
    shop.post("subscriptions/sub:modifyPushConfig", {"push_config": {"push_endpoint": "https://example.com"}})
    assert shop.get("subscriptions/sub").body["pushConfig"] == {"pushEndpoint": "https://example.com"}


def test_modify_push_config_keeps_the_version_if_it_names_none(shop: Api) -> None:
    shop.create("subscriptions/sub", {"topic": TOPIC, "pushConfig": FULL["pushConfig"]})

    shop.post("subscriptions/sub:modifyPushConfig", {"pushConfig": {"pushEndpoint": "https://example.org"}})

    assert shop.get("subscriptions/sub").body["pushConfig"]["attributes"] == {"x-goog-version": "v1"}


@pytest.mark.parametrize(
    "body", [{}, {"pushConfig": None}, {"pushConfig": []}, {"subscription": "x", "pushConfig": {}}]
)
def test_a_bad_modify_push_config_is_refused(shop: Api, body: Any) -> None:
    before = shop.create("subscriptions/sub", {"topic": TOPIC, "pushConfig": FULL["pushConfig"]})

    assert shop.post("subscriptions/sub:modifyPushConfig", body).status == 400
    assert shop.get("subscriptions/sub").body == before


def test_a_detached_subscription_stays_and_is_no_longer_its_topics(shop: Api) -> None:
    shop.create("subscriptions/sub", {"topic": TOPIC})

    assert shop.post("subscriptions/sub:detach").body == {}

    assert shop.get("subscriptions/sub").body == named("sub", DEFAULTS | {"detached": True})
    assert shop.get("topics/orders/subscriptions").body == {}
    again = shop.post("subscriptions/sub:detach")
    assert (again.status, again.error["status"]) == (400, "FAILED_PRECONDITION")
    patched = shop.patch("subscriptions/sub", {"subscription": {}, "updateMask": "labels"})
    assert "detached" not in patched.body
    assert shop.delete("subscriptions/sub").body == {}


def test_a_subscription_shows_how_long_its_topic_retains(shop: Api) -> None:
    shop.create("topics/retaining", {"messageRetentionDuration": "600s"})

    subscription = shop.create("subscriptions/sub", {"topic": "projects/shop/topics/retaining"})

    assert subscription["topicMessageRetentionDuration"] == "600s"


def test_a_deleted_subscription_is_gone(shop: Api) -> None:
    shop.create("subscriptions/sub", {"topic": TOPIC})

    assert shop.delete("subscriptions/sub").body == {}
    assert shop.get("subscriptions/sub").status == 404
    assert shop.get("subscriptions").body == {}


def test_a_list_comes_in_pages_by_name_with_whole_resources(shop: Api) -> None:
    for subscription_id in ("ccc", "aaa", "bbb"):
        shop.create(f"subscriptions/{subscription_id}", {"topic": TOPIC})

    first = shop.get("subscriptions?pageSize=2").body
    second = shop.get(f"subscriptions?pageSize=2&pageToken={first['nextPageToken']}").body

    assert first["subscriptions"] == [named("aaa", DEFAULTS), named("bbb", DEFAULTS)]
    assert second == {"subscriptions": [named("ccc", DEFAULTS)]}


def test_a_list_takes_the_same_number_of_queries_for_many_rows_as_for_one(
    shop: Api, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    for number in range(20):
        policy = {"deadLetterTopic": "projects/shop/topics/dead"}
        shop.create(f"subscriptions/sub-{number}", {"topic": TOPIC, "deadLetterPolicy": policy})

    with django_assert_max_num_queries(4):
        assert len(shop.get("subscriptions").body["subscriptions"]) == 20


def test_the_data_plane_reads_its_settings_in_one_query(
    shop: Api, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    shop.create("subscriptions/full", {"topic": TOPIC, **FULL})
    shop.create("subscriptions/plain", {"topic": TOPIC, "pushConfig": {"pushEndpoint": "https://example.com/x?y"}})
    shop.create("subscriptions/pull", {"topic": TOPIC})
    shop.create("subscriptions/gone", {"topic": TOPIC})
    shop.post("subscriptions/gone:detach")
    rows = {row.subscription_id: row for row in Subscription.objects.select_related("topic")}
    topic = rows["full"].topic
    assert topic is not None

    with django_assert_num_queries(1):
        attached = selectors.subscriptions_of_topic(topic.pk)
    with django_assert_num_queries(1):
        asked = selectors.push_settings([rows["full"].pk, rows["gone"].pk, rows["plain"].pk, 999_999])

    full, plain, pull = attached
    expected = selectors.PushSettings(
        id=rows["full"].pk,
        name="projects/shop/subscriptions/full",
        topic_id=topic.pk,
        endpoint="https://example.com/push?token=secret",
        ack_deadline_seconds=600,
        service_account_email=ACCOUNT,
        audience="shop",
        no_wrapper=True,
        write_metadata=True,
        detached=False,
        minimum_backoff_ms=250,
        maximum_backoff_ms=60_000,
        retention_seconds=1201,
        attributes={"x-goog-version": "v1", "x-pushhub-rate": "5"},
        ordered=True,
        exactly_once=False,
        max_delivery_attempts=FULL["deadLetterPolicy"]["maxDeliveryAttempts"],
        filter='attributes.kind = "order"',
        paused=False,
        transforms=[Function("f", "function f(m) { return m; }")],
        topic="projects/shop/topics/orders",
    )
    assert asked.pop(rows["full"].pk) == expected
    assert full == replace(expected, transforms=()), "a publish needs no functions, which may be large"
    assert (full.shows_attempts, plain.shows_attempts) == (True, False)
    assert (plain.audience, plain.is_push) == ("https://example.com/x?y", True)
    assert (pull.endpoint, pull.is_push) == ("", False)
    assert set(asked) == {rows["gone"].pk, rows["plain"].pk}
    assert not asked[rows["gone"].pk].is_push


@pytest.fixture
def heard() -> Any:
    """Yield the signals that were sent: (name of the signal, keyword arguments)."""
    heard_signals: list[tuple[str, dict[str, Any]]] = []
    listened = {
        "created": signals.subscription_created,
        "changed": signals.subscription_changed,
        "deleted": signals.subscription_deleted,
        "topic_deleted": signals.topic_deleted,
    }
    receivers: list[tuple[Signal, Callable[..., None]]] = []
    for word, signal in listened.items():

        def receive(*, sender: object, signal: Signal, word: str = word, **kwargs: Any) -> None:
            heard_signals.append((word, kwargs))

        signal.connect(receive)
        receivers.append((signal, receive))
    yield heard_signals
    for signal, receiver in receivers:
        signal.disconnect(receiver)


def test_changes_are_announced_once_they_are_committed(
    shop: Api, heard: list[tuple[str, dict[str, Any]]], django_capture_on_commit_callbacks: Any
) -> None:
    with django_capture_on_commit_callbacks() as callbacks:
        shop.create("subscriptions/sub", {"topic": TOPIC})
        row = Subscription.objects.select_related("topic").get()
        shop.patch("subscriptions/sub", {"subscription": {}, "updateMask": "labels"})
        shop.post("subscriptions/sub:modifyPushConfig", {"pushConfig": {}})
        shop.post("subscriptions/sub:detach")
        shop.delete("topics/orders")
        shop.delete("subscriptions/sub")
        shop.put("subscriptions/bad", {"topic": TOPIC})
    assert heard == []

    for callback in callbacks:
        callback()

    subscription = {"subscription_id": row.pk, "name": "projects/shop/subscriptions/sub"}
    assert row.topic is not None
    assert heard == [
        ("created", subscription),
        ("changed", subscription),
        ("changed", subscription),
        ("changed", subscription),
        ("topic_deleted", {"topic_id": row.topic.pk, "name": TOPIC}),
        ("deleted", subscription),
    ]


def test_a_receiver_that_fails_does_not_fail_the_request(shop: Api, django_capture_on_commit_callbacks: Any) -> None:
    def broken(**_: object) -> None:
        raise ConnectionError("no Redis")

    signals.subscription_created.connect(broken)
    try:
        with django_capture_on_commit_callbacks(execute=True):
            assert shop.put("subscriptions/sub", {"topic": TOPIC}).status == 200
    finally:
        signals.subscription_created.disconnect(broken)


def test_a_subscription_is_paused_and_resumed(api: Api) -> None:
    api.create("topics/orders")
    topic = "projects/shop/topics/orders"
    config = {"pushConfig": {"pushEndpoint": "https://example.com/"}}
    api.create("subscriptions/push", {"topic": topic, **config})
    before = api.get("subscriptions/push").body
    api.create("subscriptions/pull", {"topic": topic})
    assert api.post("subscriptions/push:pause", {}).body == {}
    assert Subscription.objects.get(subscription_id="push").paused
    entry = AuditEntry.objects.get(method="pushhub.v1.Subscriptions.PauseSubscription")
    assert entry.after["paused"] is True
    described = api.get("subscriptions/push").body
    paused = {"paused": {"by": entry.caller, "since": format_timestamp(entry.at)}}
    assert described == {**before, **paused}, "the push config is kept"
    # What was read may be sent back; nobody can set it.
    change = {"subscription": {**described, "ackDeadlineSeconds": 77}, "updateMask": "ackDeadlineSeconds"}
    assert api.patch("subscriptions/push", change).status == 200
    assert api.patch("subscriptions/push", {**change, "updateMask": "paused"}).status == 400
    assert api.post("subscriptions/push:resume", {}).body == {}
    assert not Subscription.objects.get(subscription_id="push").paused
    assert api.get("subscriptions/push").body == {**before, "ackDeadlineSeconds": 77}
    for refused in ("subscriptions/push:resume", "subscriptions/pull:pause"):
        assert api.post(refused, {}).error["status"] == "FAILED_PRECONDITION"
    assert api.post("subscriptions/none:pause", {}).status == 404
    api.sign_in("ada@example.com")
    assert api.post("subscriptions/push:pause", {}).status in (403, 404)
