"""Field masks (docs/spec.md#field-masks)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pushhub.common.errors import InvalidArgument
from pushhub.common.protojson import snake_case
from subscriptions.resources.fields import SUBSCRIPTION
from subscriptions.resources.masks import mask_paths, masked

MUTABLE = frozenset({"pushConfig", "labels", "ackDeadlineSeconds", "retryPolicy", "expirationPolicy"})


def apply(mask: str, *, current: dict[str, Any], request: dict[str, Any]) -> dict[str, Any]:
    paths = mask_paths(mask, SUBSCRIPTION, mutable=MUTABLE)
    return masked(current, request, paths, SUBSCRIPTION)


@given(st.lists(st.sampled_from(sorted(MUTABLE)), min_size=1))
def test_camel_and_snake_lead_to_the_same_field(fields: list[str]) -> None:
    camel = mask_paths(",".join(fields), SUBSCRIPTION, mutable=MUTABLE)
    snake = mask_paths(",".join(snake_case(field) for field in fields), SUBSCRIPTION, mutable=MUTABLE)

    assert camel == snake == [(field,) for field in fields]


@pytest.mark.parametrize("mask", ["", "  ", ",", "labels,", ",labels"])
def test_a_mask_names_something(mask: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        mask_paths(mask, SUBSCRIPTION, mutable=MUTABLE)

    assert caught.value.field == "updateMask"
    assert caught.value.message == (
        "The update_mask in the UpdateSubscriptionRequest must be set, and must contain a non-empty paths list."
    )


@pytest.mark.parametrize("path", ["colour", "labels.a", "pushConfig.colour", "*", "labels labels", "pushConfig..a"])
def test_an_unknown_path_is_refused_in_productions_words(path: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        mask_paths(path, SUBSCRIPTION, mutable=MUTABLE)

    assert caught.value.message == (
        f"Invalid update_mask provided in the UpdateSubscriptionRequest: '{path}' is not a known Subscription field. "
        "Note that field paths must be of the form 'push_config' rather than 'pushConfig'."
    )


def test_an_immutable_path_is_refused_in_productions_words() -> None:
    with pytest.raises(InvalidArgument) as caught:
        mask_paths("enableMessageOrdering", SUBSCRIPTION, mutable=MUTABLE)

    assert caught.value.message == (
        "Invalid update_mask provided in the UpdateSubscriptionRequest: "
        "the 'enable_message_ordering' field in the Subscription is not mutable."
    )


def test_a_named_field_is_replaced_whole_and_the_others_stay() -> None:
    current = {"labels": {"a": "1", "b": "2"}, "ackDeadlineSeconds": 20}

    assert apply("labels", current=current, request={"labels": {"c": "3"}, "ackDeadlineSeconds": 99}) == {
        "labels": {"c": "3"},
        "ackDeadlineSeconds": 20,
    }


def test_a_named_field_that_is_absent_is_cleared() -> None:
    assert apply("labels", current={"labels": {"a": "1"}, "ackDeadlineSeconds": 20}, request={}) == {
        "ackDeadlineSeconds": 20
    }


def test_a_nested_path_changes_only_what_it_names() -> None:
    current = {"pushConfig": {"pushEndpoint": "https://a", "attributes": {"a": "1"}}}

    changed = apply("push_config.push_endpoint", current=current, request={"pushConfig": {"pushEndpoint": "https://b"}})

    assert changed == {"pushConfig": {"pushEndpoint": "https://b", "attributes": {"a": "1"}}}
    assert current["pushConfig"]["pushEndpoint"] == "https://a"


def test_clearing_inside_a_missing_message_does_not_create_it() -> None:
    assert apply("retryPolicy.minimumBackoff", current={}, request={}) == {}
    assert apply("pushConfig.noWrapper.writeMetadata", current={}, request={"pushConfig": {"noWrapper": {}}}) == {}


def test_setting_one_member_of_a_oneof_clears_the_other() -> None:
    current = {"pushConfig": {"pushEndpoint": "https://a", "pubsubWrapper": {}}}
    request = {"pushConfig": {"noWrapper": {"writeMetadata": True}}}

    for mask in ("pushConfig.noWrapper", "pushConfig.noWrapper.writeMetadata"):
        assert apply(mask, current=current, request=request) == {
            "pushConfig": {"pushEndpoint": "https://a", "noWrapper": {"writeMetadata": True}}
        }
