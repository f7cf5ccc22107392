"""The filter language: which messages pass, and which filters are refused at which position."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pushhub.common.errors import InvalidArgument
from subscriptions.resources.filters import matcher

MESSAGES: dict[str, dict[str, str]] = {
    "none": {},
    "com": {"domain": "com", "lang": "en"},
    "org": {"domain": "org", "lang": "en-GB"},
    "odd": {"iana.org/language_tag": "de", "a b": "x", "q": 'say "hi"\\', "😀": "😀!"},
}


@pytest.mark.parametrize(
    ("text", "passing"),
    [
        ("", "none com org odd"),
        ("   ", "none com org odd"),
        ("attributes:domain", "com org"),
        ("attributes : domain", "com org"),
        ('attributes:"domain"', "com org"),
        ('attributes.domain = "com"', "com"),
        ('attributes.domain="com"', "com"),
        ('attributes.domain != "com"', "none org odd"),
        ('NOT attributes.domain = "com"', "none org odd"),
        ('-attributes.domain = "com"', "none org odd"),
        ("-attributes:domain", "none odd"),
        ('hasPrefix(attributes.lang, "en-")', "org"),
        ('hasPrefix(attributes.lang, "")', "com org"),
        ('hasPrefix ( attributes . lang , "en" )', "com org"),
        ('attributes.domain = "com" AND attributes.lang = "en"', "com"),
        ('attributes.domain = "com" OR attributes.domain = "org"', "com org"),
        ('(attributes.domain = "com" OR attributes.domain = "org") AND NOT attributes.lang = "en"', "org"),
        ('NOT (attributes.domain = "com" OR attributes:q)', "none org"),
        ('attributes:domain AND attributes:lang AND attributes.lang != "en"', "org"),
        ('attributes."iana.org/language_tag" = "de"', "odd"),
        ('attributes:"a b"', "odd"),
        ('attributes.q = "say \\"hi\\"\\\\"', "odd"),
        ('attributes.domain = "\\u0063om"', "com"),
        ('attributes.domain = "\\x63om"', "com"),
        ('attributes.domain = "\\143om"', "com"),
        ('attributes."\\ud83d\\ude00" = "\\uD83D\\uDE00!"', "odd"),
        ('attributes:"\\ud83d"', ""),
        ('attributes.domain = "COM"', ""),
        ('attributes.Domain = "com"', ""),
        ('attributes.domain = "co"', ""),
        ("\n attributes\t:\r\ndomain ", "com org"),
        ("((((attributes:domain))))", "com org"),
        ("attributes:NOT", ""),
        ('attributes.attributes = "x"', ""),
    ],
)
def test_a_message_passes_or_does_not(text: str, passing: str) -> None:
    passes = matcher(text)
    assert [name for name, attributes in MESSAGES.items() if passes(attributes)] == passing.split()


@pytest.mark.parametrize(
    ("text", "position", "expected"),
    [
        ("domain", 1, "attributes"),
        ("attributes", 11, "."),
        ("attributes.domain", 18, "= or !="),
        ("attributes.domain = com", 21, "a string in double quotes"),
        ("attributes.domain = 'com'", 21, "an attribute, a string or a sign"),
        ('attributes.domain = "com', 21, "an attribute, a string or a sign"),
        ('attributes.domain > "com"', 19, "an attribute, a string or a sign"),
        ('attributes.domain == "com"', 20, "a string"),
        ("attributes:domain and attributes:lang", 19, "AND, OR or the end"),
        ("attributes:domain AND", 22, "attributes"),
        ("attributes:a AND attributes:b OR attributes:c", 31, "parentheses"),
        ("attributes:a OR attributes:b AND attributes:c", 30, "parentheses"),
        ("(attributes:a", 14, ")"),
        ("attributes:a)", 13, "AND, OR or the end"),
        ("()", 2, "attributes"),
        ("NOT", 4, "attributes"),
        ("NOT NOT attributes:a", 5, "attributes"),
        ('hasSuffix(attributes.a, "b")', 1, "attributes"),
        ('hasPrefix(a, "b")', 11, "attributes"),
        ('hasPrefix(attributes.a "b")', 24, ","),
        ("attributes:", 12, "an attribute's key"),
        ("data:x", 1, "attributes"),
        ('attributes.a = "\\q"', 16, "a known escape"),
        ('"attributes":a', 1, "attributes"),
        ("attributes:a; DROP", 13, "an attribute, a string or a sign"),
    ],
)
def test_a_malformed_filter_is_refused_with_its_position(text: str, position: int, expected: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        matcher(text)
    assert caught.value.field == "filter"
    assert caught.value.message.endswith(f"is expected at character {position}.")
    assert f": {expected}" in caught.value.message


def test_a_filter_has_at_most_256_bytes() -> None:
    text = 'attributes.a = "{}"'
    assert matcher(text.format("é" * 119 + "a"))({}) is False
    with pytest.raises(InvalidArgument, match=r"You passed 257 bytes .* maximum length is 256 bytes"):
        matcher(text.format("é" * 119 + "ab"))


@given(st.text(max_size=80))
def test_any_value_is_read_or_refused(text: str) -> None:
    try:
        assert matcher(text)({"a": "b"}) in (True, False)
    except InvalidArgument as error:
        assert error.field == "filter"


@given(st.text(alphabet='()-NOTAND "ORattributes:.=!', max_size=120))
def test_any_text_like_a_filter_is_read_or_refused(text: str) -> None:
    try:
        assert matcher(text)({"a": "b"}) in (True, False)
    except InvalidArgument as error:
        assert error.field == "filter"
