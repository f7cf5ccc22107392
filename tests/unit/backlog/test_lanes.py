"""Which settings of a subscription change its push requests."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from deliveries.backlog.lanes import push_config_digest
from subscriptions.selectors import PushSettings
from subscriptions.transforms.functions import Function

SETTINGS = PushSettings(
    id=7,
    name="projects/shop/subscriptions/push",
    topic_id=1,
    endpoint="https://example.com/push",
    ack_deadline_seconds=10,
    service_account_email="",
    audience="https://example.com/push",
    no_wrapper=False,
    write_metadata=False,
    detached=False,
    minimum_backoff_ms=None,
    maximum_backoff_ms=None,
    retention_seconds=1200,
    attributes={},
    ordered=False,
    exactly_once=False,
    max_delivery_attempts=0,
    filter="",
    paused=False,
    transforms=[],
    topic="projects/shop/topics/orders",
)


@pytest.mark.parametrize(
    "change",
    [
        {"endpoint": "https://example.com/other"},
        {"service_account_email": "pusher@shop.iam.gserviceaccount.com"},
        {"audience": "shop"},
        {"no_wrapper": True},
        {"write_metadata": True},
        {"transforms": [Function("f", "function f(m) { return m; }")]},
    ],
    ids=lambda change: next(iter(change)),
)
def test_settings_that_change_the_requests_change_the_digest(change: dict[str, Any]) -> None:
    assert push_config_digest(replace(SETTINGS, **change)) != push_config_digest(SETTINGS)


@pytest.mark.parametrize(
    "change",
    [
        {"attributes": {"x-pushhub-rate": "5"}},
        {"ack_deadline_seconds": 600},
        {"paused": True},
        {"max_delivery_attempts": 5},
        {"minimum_backoff_ms": 250},
    ],
    ids=lambda change: next(iter(change)),
)
def test_other_settings_leave_the_digest_as_it_is(change: dict[str, Any]) -> None:
    assert push_config_digest(replace(SETTINGS, **change)) == push_config_digest(SETTINGS) != 0


def test_a_pull_subscription_has_no_push_requests() -> None:
    assert push_config_digest(replace(SETTINGS, endpoint="")) == 0
