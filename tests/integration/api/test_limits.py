"""Every limit of docs/spec.md#resource-limits is accepted and one more refused, with docs/spec.md#error-texts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from google.pubsub_v1.types import pubsub
from hypothesis import given
from hypothesis import strategies as st

from deliveries.publish.request import encoded_bytes, read_published_messages
from deliveries.rules.payload import NewMessage
from pushhub.common.errors import InvalidArgument
from tests.restapi import Answer, Api

pytestmark = pytest.mark.any_database

TOPIC = "projects/shop/topics/orders"
DATA = {"data": "eA=="}
LABEL_KEY = r"[\p{Ll}\p{Lo}][\p{Ll}\p{Lo}\p{N}_-]{0,62}"
PublishRequest = pubsub.PublishRequest.pb()
NAMES_PAGE = "Refer to https://cloud.google.com/pubsub/docs/pubsub-basics#resource_names for more information."


@pytest.fixture
def shop(api: Api, redis_url: str) -> Api:
    api.create("topics/orders")
    api.create("topics/dead")
    api.create("subscriptions/old", {"topic": TOPIC})
    return api


@dataclass(frozen=True)
class Limit:
    """A call, its body just within the limit (if there is one) and just over it, and the error text of the latter."""

    call: str
    over: Any
    text: str
    within: Any = None
    status: str = "INVALID_ARGUMENT"


def messages(**fields: Any) -> dict[str, Any]:
    return {"messages": [{**DATA, **fields}]}


def labels(key: str = "k", value: str = "") -> dict[str, Any]:
    return {"labels": {key: value}}


def sub(**fields: Any) -> dict[str, Any]:
    return {"topic": TOPIC, **fields}


def too_large(what: str, value: int, most: int, unit: str = "") -> str:
    unit = f" {unit}" if unit else ""
    return (
        f"The value for {what} is too large. You passed {value}{unit} in the request, but the maximum value is {most}."
    )


PUBLISH, TOPIC_CALL, SUB = "POST topics/orders:publish", "PUT topics/new", "PUT subscriptions/new"
OLD = "subscriptions/old"
LIMITS = {
    "messages a request": Limit(
        PUBLISH, {"messages": [DATA] * 1001}, too_large("message_count", 1001, 1000), {"messages": [DATA] * 1000}
    ),
    "no message": Limit(
        PUBLISH,
        {"messages": []},
        "The value for message_count is too small. You passed 0 in the request, but the minimum value is 1.",
    ),
    "attributes": Limit(
        PUBLISH,
        messages(attributes={f"k{n}": "" for n in range(101)}),
        too_large("messages[0].attributes", 101, 100, "entries"),
        messages(attributes={f"k{n}": "" for n in range(100)}),
    ),
    "attribute key": Limit(
        PUBLISH, messages(attributes={"k" * 257: ""}), "257 bytes in the request", messages(attributes={"k" * 256: ""})
    ),
    "attribute value": Limit(
        PUBLISH,
        messages(attributes={"k": "v" * 1025}),
        too_large("messages[0].attributes.k", 1025, 1024, "bytes"),
        messages(attributes={"k": "ü" * 512}),
    ),
    "reserved attribute": Limit(
        PUBLISH,
        messages(attributes={"GooGle": "1"}),
        "start with 'goog'",
        messages(attributes={"googclient_traceparent": "1"}),
    ),
    "reserved attribute that resembles a client's": Limit(
        PUBLISH, messages(attributes={"Googclient_a": "1"}), "start with 'goog'"
    ),
    "empty attribute key": Limit(PUBLISH, messages(attributes={"": "1"}), "must not be empty"),
    "ordering key": Limit(
        PUBLISH,
        messages(orderingKey="k" * 1025),
        too_large("messages[0].orderingKey", 1025, 1024, "bytes"),
        messages(orderingKey="k" * 1024),
    ),
    "mixed keys": Limit(
        PUBLISH, {"messages": [DATA, {**DATA, "orderingKey": "a"}]}, "ordering key", status="FAILED_PRECONDITION"
    ),
    "body": Limit(
        PUBLISH,
        b" " * 10_485_761,
        "Request payload size exceeds the limit: 10485760 bytes.",
    ),
    "pulled at once": Limit(
        f"POST {OLD}:pull",
        {"maxMessages": 0},
        "You have passed an invalid argument to the service (argument=max_messages).",
        {"maxMessages": 1, "returnImmediately": True},
    ),
    "ack ids": Limit(f"POST {OLD}:acknowledge", {"ackIds": []}, "You have not specified an ack ID in the request."),
    "bad ack id": Limit(
        f"POST {OLD}:acknowledge", {"ackIds": ["x"]}, "You have passed an invalid ack ID to the service (ack_id=x)."
    ),
    "ack request": Limit(
        f"POST {OLD}:acknowledge",
        {"ackIds": ["x" * 1000] * 525},
        "Request payload size exceeds the limit: 524288 bytes.",
    ),
    "modack deadline": Limit(
        f"POST {OLD}:modifyAckDeadline",
        {"ackIds": ["x"], "ackDeadlineSeconds": 601},
        "Invalid ack deadline given (ack_deadline=601). The ack deadline must be between 0 and 600 seconds.",
    ),
    "labels": Limit(
        TOPIC_CALL,
        {"labels": {f"k{n}": "" for n in range(65)}},
        too_large("labels", 65, 64, "entries"),
        {"labels": {f"k{n}": "" for n in range(64)}},
    ),
    "label key": Limit(
        TOPIC_CALL, labels("Upper"), f'key "Upper" does not conform to regular expression "{LABEL_KEY}"'
    ),
    "label key length": Limit(TOPIC_CALL, labels("k" * 64), "does not conform", labels("k" * 63)),
    "label value length": Limit(TOPIC_CALL, labels("k", "v" * 64), "does not conform", labels("k", "v" * 63)),
    "topic retention": Limit(
        TOPIC_CALL,
        {"messageRetentionDuration": "2678401s"},
        "The value for message retention duration is out of bounds. You passed 744h1s in the request, "
        "but the value must be between 10m and 744h.",
        {"messageRetentionDuration": "2678400s"},
    ),
    "retention": Limit(
        SUB,
        sub(messageRetentionDuration="599s"),
        "The value for message retention duration is out of bounds. You passed 9m59s in the request, "
        "but the value must be between 10m and 744h.",
        sub(messageRetentionDuration="600s"),
    ),
    "expiration": Limit(
        SUB,
        sub(expirationPolicy={"ttl": "3600s"}),
        "The value for expiration duration is too small. You passed 1h in the request, but the minimum value is 24h.",
        sub(expirationPolicy={"ttl": "86400s"}),
    ),
    "ack deadline": Limit(
        SUB,
        sub(ackDeadlineSeconds=9),
        "Invalid ack deadline given (ack_deadline=9). The ack deadline must be between 10 and 600 seconds.",
        sub(ackDeadlineSeconds=600),
    ),
    "filter": Limit(
        SUB,
        sub(filter='attributes.k = "' + "v" * 240 + '"'),
        too_large("filter", 257, 256, "bytes"),
        sub(filter='attributes.k = "' + "v" * 239 + '"'),
    ),
    "backoff": Limit(
        SUB, sub(retryPolicy={"maximumBackoff": "601s"}), "out of bounds", sub(retryPolicy={"maximumBackoff": "600s"})
    ),
    "delivery attempts": Limit(
        SUB,
        sub(deadLetterPolicy={"deadLetterTopic": "projects/shop/topics/dead", "maxDeliveryAttempts": 101}),
        "out of bounds",
        sub(deadLetterPolicy={"deadLetterTopic": "projects/shop/topics/dead", "maxDeliveryAttempts": 100}),
    ),
    "endpoint version": Limit(
        SUB,
        sub(pushConfig={"pushEndpoint": "https://a.example", "attributes": {"x-goog-version": "v2"}}),
        "Invalid push endpoint version given in push config (version=v2).",
        sub(pushConfig={"pushEndpoint": "https://a.example", "attributes": {"x-goog-version": "v1"}}),
    ),
    "endpoint": Limit(
        SUB,
        sub(pushConfig={"pushEndpoint": "nowhere"}),
        "Invalid push endpoint given (endpoint=nowhere). "
        "Refer to https://cloud.google.com/pubsub/subscriber#create for more information.",
    ),
    "short id": Limit("PUT topics/ab", {}, f"Invalid resource name given (name=projects/shop/topics/ab). {NAMES_PAGE}"),
    "long id": Limit("PUT topics/" + "t" * 256, {}, "Invalid resource name given"),
    "longest id": Limit("PUT topics/Google", {}, "Invalid resource name given"),
    "permissions": Limit(
        "POST topics/orders:testIamPermissions",
        {"permissions": ["pubsub.topics.get"] * 101},
        too_large("permissions", 101, 100),
        {"permissions": ["pubsub.topics.get"] * 100},
    ),
    "wildcard permission": Limit(
        "POST topics/orders:testIamPermissions", {"permissions": ["pubsub.topics.*"]}, "is not valid"
    ),
    "policy principals": Limit(
        "POST topics/orders:setIamPolicy",
        {"policy": {"bindings": [{"role": "roles/viewer", "members": [f"user:u{n}@a.example" for n in range(1501)]}]}},
        "too many principals",
    ),
    "policy groups": Limit(
        "POST topics/orders:setIamPolicy",
        {"policy": {"bindings": [{"role": "roles/viewer", "members": [f"group:g{n}@a.example" for n in range(251)]}]}},
        "too many groups",
    ),
}


def called(api: Api, call: str, body: Any) -> Answer:
    method, _, path = call.partition(" ")
    return api.call(method, path, body)


@pytest.mark.parametrize("name", LIMITS)
def test_a_value_within_a_limit_is_accepted_and_one_over_it_is_refused_in_productions_words(
    shop: Api, name: str
) -> None:
    limit = LIMITS[name]

    refused = called(shop, limit.call, limit.over)

    assert refused.error["status"] == limit.status
    assert limit.text in refused.error["message"]
    if limit.within is not None:
        assert called(shop, limit.call, limit.within).status == 200


def test_data_is_bounded_by_the_request_it_comes_in(shop: Api) -> None:
    """Over REST base64 meets the bound of the body first; gRPC brings the 10 MB as they are."""
    fits = 10_000_000 - 10  # the rest are tags and lengths
    request = PublishRequest(messages=[{"data": b"A" * fits}])
    assert request.ByteSize() == 10_000_000
    assert len(read_published_messages(request.messages)) == 1
    request.messages[0].data += b"A"
    with pytest.raises(InvalidArgument) as refused:
        read_published_messages(request.messages)
    assert refused.value.message.endswith("You passed 10000001 in the request, but the maximum value is 10000000.")


def test_the_bound_counts_the_encoding_around_many_small_messages(shop: Api) -> None:
    """Keys and values beyond ASCII have more bytes than characters, and each entry has tags and lengths."""
    attributes = {f"key {n}": "ü" * 45 for n in range(100)}
    request = PublishRequest(messages=[{"attributes": attributes} for _ in range(1000)])
    assert request.ByteSize() > 10_000_000
    with pytest.raises(InvalidArgument) as refused:
        read_published_messages(request.messages)
    assert f"You passed {request.ByteSize()} in the request" in refused.value.message


@given(
    st.lists(
        st.builds(
            NewMessage,
            st.binary(max_size=300),
            st.dictionaries(st.text(max_size=140), st.text(max_size=140), max_size=3),
            st.text(max_size=140),
        )
    )
)
def test_a_messages_encoded_size_is_that_of_protobuf(messages: list[NewMessage]) -> None:
    encoded = [{"data": m.data, "attributes": m.attributes, "ordering_key": m.ordering_key} for m in messages]
    assert sum(map(encoded_bytes, messages)) == PublishRequest(messages=encoded).ByteSize()


@pytest.mark.parametrize(
    ("quota", "collection", "body"),
    [
        ("subscriptions.resources.bounds.TOPICS_PER_PROJECT", "topics", {}),
        ("subscriptions.resources.bounds.SUBSCRIPTIONS_PER_PROJECT", "subscriptions", {"topic": TOPIC}),
        ("subscriptions.resources.bounds.SUBSCRIPTIONS_PER_TOPIC", "subscriptions", {"topic": TOPIC}),
        ("deliveries.retention.snapshots.MAX_SNAPSHOTS", "snapshots", {"subscription": f"projects/shop/{OLD}"}),
    ],
)
def test_a_full_quota_is_resource_exhausted(
    shop: Api, monkeypatch: pytest.MonkeyPatch, quota: str, collection: str, body: dict[str, Any]
) -> None:
    shop.create("subscriptions/second", {"topic": TOPIC})
    for name in ("first", "second"):
        shop.create(f"snapshots/{name}", {"subscription": f"projects/shop/{OLD}"})
    present = "orders" if collection == "topics" else "second"
    monkeypatch.setattr(quota, 2)

    answer = shop.put(f"{collection}/third", body)

    assert (answer.status, answer.error["status"]) == (429, "RESOURCE_EXHAUSTED")
    # A program that creates what it needs at each start learns that it is there.
    taken = shop.put(f"{collection}/{present}", body)
    assert (taken.status, taken.error["status"]) == (409, "ALREADY_EXISTS")
    monkeypatch.setattr(quota, 3)
    assert shop.put(f"{collection}/third", body).status == 200


def test_a_page_is_bounded_and_its_token_is_checked(shop: Api) -> None:
    assert shop.get("topics?pageSize=1000000").status == 200
    assert shop.get("topics?pageSize=-1").fields == ["pageSize"]
    assert shop.get("topics?pageToken=bad").fields == ["pageToken"]


#: (call, body, status, the whole text), for what docs/spec.md#error-texts has beside the limits.
TEXTS = [
    ("GET topics/none", None, "NOT_FOUND", "Resource not found (resource=none)."),
    ("PUT topics/orders", {}, "ALREADY_EXISTS", "Resource already exists in the project (resource=orders)."),
    (
        f"PATCH {OLD}",
        {"subscription": {}, "updateMask": "filter"},
        "INVALID_ARGUMENT",
        "Invalid update_mask provided in the UpdateSubscriptionRequest: the 'filter' field in the Subscription is not "
        "mutable.",
    ),
    (
        f"PATCH {OLD}",
        {"subscription": {}, "updateMask": "colour"},
        "INVALID_ARGUMENT",
        "Invalid update_mask provided in the UpdateSubscriptionRequest: 'colour' is not a known Subscription field. "
        "Note that field paths must be of the form 'push_config' rather than 'pushConfig'.",
    ),
    (
        f"PATCH {OLD}",
        {"subscription": {}},
        "INVALID_ARGUMENT",
        "The update_mask in the UpdateSubscriptionRequest must be set, and must contain a non-empty paths list.",
    ),
    (
        SUB,
        sub(pushConfig={"pushEndpoint": "https://a.example", "oidcToken": {"serviceAccountEmail": "no@a.example"}}),
        "INVALID_ARGUMENT",
        "You have passed an invalid argument to the service (argument=PushConfig::oidc_token::service_account_email).",
    ),
    (
        SUB,
        {"colour": 1},
        "INVALID_ARGUMENT",
        'Invalid JSON payload received. Unknown name "colour": Cannot find field.',
    ),
    (
        "POST topics/orders:setIamPolicy",
        {"policy": {"etag": "bm90aGluZw=="}},
        "ABORTED",
        "There were concurrent policy changes. Please retry the whole read-modify-write with exponential backoff.",
    ),
]


@pytest.mark.parametrize(("call", "body", "status", "text"), TEXTS)
def test_errors_have_productions_own_texts(shop: Api, call: str, body: Any, status: str, text: str) -> None:
    answer = called(shop, call, body)

    assert (answer.error["status"], answer.error["message"]) == (status, text)


def test_pulling_from_a_push_subscription_has_productions_own_text(shop: Api) -> None:
    shop.create("subscriptions/push", sub(pushConfig={"pushEndpoint": "https://a.example"}))
    answer = shop.post("subscriptions/push:pull", {"maxMessages": 1})
    assert answer.error["status"] == "FAILED_PRECONDITION"
    assert answer.error["message"] == "This method is not supported for this subscription type."
