"""Partial answers: what a field selector means, and which selectors are refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pushhub.common.errors import InvalidArgument
from subscriptions.api.answers import MAX_DEPTH, AnswerForm, read_selection

ANSWER: dict[str, Any] = {
    "subscriptions": [
        {"name": "a", "pushConfig": {"pushEndpoint": "https://a.example", "attributes": {"x-goog-version": "v1"}}},
        {"name": "b", "labels": {"team.name": "shop", "k": "v"}},
    ],
    "nextPageToken": "t",
}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ("", ANSWER),
        ("*", ANSWER),
        ("nextPageToken", {"nextPageToken": "t"}),
        ("subscriptions/name", {"subscriptions": [{"name": "a"}, {"name": "b"}]}),
        ("subscriptions(name),nextPageToken", {"subscriptions": [{"name": "a"}, {"name": "b"}], "nextPageToken": "t"}),
        ("subscriptions(pushConfig/pushEndpoint)", {"subscriptions": [
            {"pushConfig": {"pushEndpoint": "https://a.example"}}, {}]}),
        ("subscriptions(pushConfig(attributes/x-goog-version))", {"subscriptions": [
            {"pushConfig": {"attributes": {"x-goog-version": "v1"}}}, {}]}),
        ("subscriptions/*/k", {"subscriptions": [
            {"name": "a", "pushConfig": {}}, {"name": "b", "labels": {"k": "v"}}]}),
        ("subscriptions/labels/team.name", {"subscriptions": [{}, {"labels": {"team.name": "shop"}}]}),
        ("subscriptions/name,subscriptions", {"subscriptions": ANSWER["subscriptions"]}),
        ("nothing", {}),
    ],
)  # fmt: skip
def test_a_selector_chooses_fields(fields: str, expected: Any) -> None:
    assert read_selection(fields).of(ANSWER) == expected


@pytest.mark.parametrize(
    "fields",
    [
        *(
            ",",
            "a,",
            ",a",
            "a,,b",
            "/",
            "a/",
            "/a",
            "a//b",
            "(",
            ")",
            "a(",
            "a()",
            "a)",
            "a(b",
            "a(b))",
            "(a)",
            "a(b)c",
        ),
        *("a b", "a;b", "a\n", "ü", "a(b)/c", "a" * 2049),
        "/".join("a" * (MAX_DEPTH + 1)),
        "a(" * 1000 + "b" + ")" * 1000,
    ],
)
def test_a_bad_selector_is_refused_by_name(fields: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        read_selection(fields)
    assert refused.value.field == "fields"


@given(st.text(alphabet="ab*,/()", max_size=12))
def test_any_selector_is_read_or_refused(fields: str) -> None:
    try:
        read_selection(fields).of(ANSWER)
    except InvalidArgument as error:
        assert error.field == "fields"


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({"alt": "media"}, "alt"),
        ({"alt": ""}, "alt"),
        ({"$alt": "proto"}, "$alt"),
        ({"prettyPrint": "yes"}, "prettyPrint"),
    ],
)
def test_an_unsupported_form_is_refused_by_name(query: dict[str, str], field: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        AnswerForm.read(query)
    assert refused.value.field == field
