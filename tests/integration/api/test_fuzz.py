"""Whatever JSON is sent, the answer is a success or an error of the caller's, and a refusal stores nothing."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pushhub.common.protojson import Message
from subscriptions.models import ServiceAccount, Subscription, Topic
from subscriptions.resources.fields import CREATE_SERVICE_ACCOUNT, MODIFY_PUSH_CONFIG, SUBSCRIPTION, TOPIC
from tests.restapi import Api

WORDS = ["", "600s", "-1s", "1e9s", "projects/shop/topics/orders", "_deleted-topic_", "a\0b", "https://[", "💥", "JSON"]
NUMBERS = [0, -1, 10, 2**31, 2**64 - 1, 1.5, 1e300]
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.sampled_from(NUMBERS) | st.sampled_from(WORDS) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
FUZZ = settings(max_examples=60, suppress_health_check=list(HealthCheck))


def requests_like(message: Message) -> st.SearchStrategy[dict[str, Any]]:
    """Return objects with up to three fields of `message`, whose values may have the right type or any other."""
    inner = {
        name: (requests_like(kind) | ANYTHING) if isinstance(kind, Message) else ANYTHING
        for name, kind in message.fields.items()
    }
    return st.fixed_dictionaries({}, optional=inner).map(lambda request: dict(list(request.items())[:3]))


def rows() -> tuple[int, int, int]:
    return Topic.objects.count(), Subscription.objects.count(), ServiceAccount.objects.count()


@pytest.fixture
def shop(api: Api) -> Api:
    api.create("topics/orders")
    api.create("subscriptions/sub", {"topic": "projects/shop/topics/orders"})
    return api


@FUZZ
@given(
    topic=requests_like(TOPIC), subscription=requests_like(SUBSCRIPTION), account=requests_like(CREATE_SERVICE_ACCOUNT)
)
def test_any_create_request_is_accepted_or_refused_without_a_change(
    shop: Api, topic: dict[str, Any], subscription: dict[str, Any], account: dict[str, Any]
) -> None:
    body = {"topic": "projects/shop/topics/orders", **subscription}
    for send in (
        lambda: shop.put("topics/fuzz", topic),
        lambda: shop.put("subscriptions/fuzz", body),
        lambda: shop.post("serviceAccounts", account),
    ):
        before = rows()
        answer = send()
        assert answer.status in (200, 400, 404, 501), answer
        assert answer.status == 200 or rows() == before
    Subscription.objects.filter(subscription_id="fuzz").delete()
    Topic.objects.filter(topic_id="fuzz").delete()


@FUZZ
@given(
    changes=requests_like(SUBSCRIPTION),
    mask=st.lists(st.sampled_from(sorted(SUBSCRIPTION.fields)) | st.text(max_size=5), min_size=1, max_size=3),
    push_config=requests_like(MODIFY_PUSH_CONFIG),
)
def test_any_update_request_is_accepted_or_refused_without_a_change(
    shop: Api, changes: dict[str, Any], mask: list[str], push_config: dict[str, Any]
) -> None:
    for send in (
        lambda: shop.patch("subscriptions/sub", {"subscription": changes, "updateMask": ",".join(mask)}),
        lambda: shop.post("subscriptions/sub:modifyPushConfig", push_config),
    ):
        before = shop.get("subscriptions/sub").body
        answer = send()
        assert answer.status in (200, 400, 404, 501), answer
        assert answer.status == 200 or shop.get("subscriptions/sub").body == before
