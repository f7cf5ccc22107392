"""The JSON form of protocol buffers (docs/spec.md#json-form)."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pushhub.common.errors import InvalidArgument
from pushhub.common.protojson import (
    MAX_DURATION_SECONDS,
    Bool,
    Duration,
    Enum,
    Integer,
    Kind,
    Message,
    Repeated,
    String,
    StringMap,
    Struct,
    format_duration,
    format_timestamp,
    parse_bytes,
    parse_duration,
    parse_timestamp,
    snake_case,
)

DOG = Message(
    "Dog",
    {
        "petName": String(20),
        "ageYears": Integer(32),
        "isGood": Bool(),
        "birthDay": Duration(),
        "homeAddress": Message("Address", {"streetName": String()}),
        "petTags": StringMap(max_entries=2),
        "state": Enum("STATE_UNSPECIFIED", "ASLEEP", "AWAKE"),
        "aPuppy": Message("Puppy", {}),
        "anElder": Message("Elder", {}),
    },
    output_only=frozenset({"state"}),
    oneofs={"stage": ("aPuppy", "anElder")},
)


def refused(kind: Kind, value: Any) -> InvalidArgument:
    with pytest.raises(InvalidArgument) as caught:
        kind.read(value, "dog")
    return caught.value


@pytest.mark.parametrize("spelling", ["petName", "pet_name"])
def test_both_spellings_of_a_name_are_read_and_the_camel_one_is_kept(spelling: str) -> None:
    assert DOG.read({spelling: "Rex"}) == {"petName": "Rex"}


def test_both_spellings_at_once_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="two spellings") as caught:
        DOG.read({"petName": "Rex", "pet_name": None})

    assert caught.value.field == "petName"


def test_an_unknown_name_is_refused_in_productions_words() -> None:
    with pytest.raises(InvalidArgument) as caught:
        DOG.read({"colour": "brown"})

    assert caught.value.message == 'Invalid JSON payload received. Unknown name "colour": Cannot find field.'
    assert caught.value.field == "colour"


def test_an_unknown_name_in_a_nested_message_is_refused_with_its_path() -> None:
    with pytest.raises(InvalidArgument) as caught:
        DOG.read({"homeAddress": {"colour": 1}})

    assert "Unknown name \"colour\" at 'homeAddress'" in caught.value.message
    assert caught.value.field == "homeAddress.colour"


def test_null_is_absent_and_defaults_are_left_out_but_empty_messages_stay() -> None:
    body = {"petName": None, "ageYears": 0, "isGood": False, "petTags": {}, "homeAddress": {}, "birthDay": "0s"}

    assert DOG.read(body) == {"homeAddress": {}, "birthDay": "0s"}


def test_output_only_fields_may_be_sent_and_are_ignored() -> None:
    assert DOG.read({"state": "AWAKE"}) == {}


def test_two_members_of_a_oneof_are_refused() -> None:
    assert DOG.read({"aPuppy": {}}) == {"aPuppy": {}}
    with pytest.raises(InvalidArgument, match=r"oneof field 'stage' is already set\. Cannot set 'anElder'"):
        DOG.read({"aPuppy": {}, "anElder": {}})


@pytest.mark.parametrize("body", [[], "text", 1, None, True])
def test_a_body_is_an_object(body: Any) -> None:
    with pytest.raises(InvalidArgument, match="must be a JSON object"):
        DOG.read(body)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (String(), 1),
        (String(), ["a"]),
        (String(), "a\0b"),
        (String(3), "éé"),
        (Bool(), 1),
        (Bool(), "true"),
        (Integer(32), True),
        (Integer(32), 1.5),
        (Integer(32), "1.0"),
        (Integer(32), 2**31),
        (Integer(32), float("inf")),
        (Integer(32), float("nan")),
        (Integer(64), str(2**63)),
        (Enum("UNSPECIFIED", "A"), "B"),
        (Enum("UNSPECIFIED", "A"), 2),
        (Enum("UNSPECIFIED", "A"), True),
        (StringMap(), []),
        (StringMap(), {"a": 1}),
        (StringMap(), {"a": None}),
        (StringMap(max_entries=1), {"a": "", "b": ""}),
        (StringMap(max_key_bytes=2), {"abc": ""}),
        (Repeated(String()), "abc"),
        (Repeated(String()), [None]),
        (Repeated(String(), max_items=1), ["a", "b"]),
        (Struct(), []),
        (Struct(), json.loads('{"a": ' * 16 + "{}" + "}" * 16)),
        (Struct(), {"a": [1] * 999}),
        (Struct(), {"a": "\0"}),
    ],
)
def test_the_wrong_type_or_too_much_of_it_is_refused_by_name(kind: Kind, value: Any) -> None:
    error = refused(kind, value)

    assert error.field.startswith("dog")
    assert "dog" in error.message
    assert len(error.message) < 1000


def test_integers_may_be_text_and_long_ones_are_answered_as_text() -> None:
    assert Integer(32).read("15", "x") == 15
    assert Integer(32).read(15.0, "x") == 15
    assert Integer(64).read(2**53, "x") == str(2**53)


def test_an_enum_is_read_by_number() -> None:
    assert Enum("UNSPECIFIED", "A", "B").read(2, "x") == "B"
    assert Enum("UNSPECIFIED", "A", "B").read("UNSPECIFIED", "x") == ""


@given(st.integers(-MAX_DURATION_SECONDS * 1000, MAX_DURATION_SECONDS * 1000))
def test_a_duration_is_read_as_it_was_written(milliseconds: int) -> None:
    assert parse_duration(format_duration(milliseconds), field="x") == milliseconds


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [("600s", 600_000), ("600.5s", 600_500), ("600.500s", 600_500), ("0.001000000s", 1), ("-1.5s", -1500), ("0s", 0)],
)
def test_durations_have_up_to_nine_digits(text: str, milliseconds: int) -> None:
    assert parse_duration(text, field="x") == milliseconds


def test_durations_are_written_with_no_digits_or_three() -> None:
    assert format_duration(600_000) == "600s"
    assert format_duration(600_500) == "600.500s"
    assert format_duration(-1) == "-0.001s"


@pytest.mark.parametrize("value", ["600", "s", "1m", "+1s", " 1s", "1.s", ".5s", "1.0000000001s", 600, None, "٣s"])
def test_values_other_than_durations_are_refused(value: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"google\.protobuf\.Duration") as caught:
        parse_duration(value, field="ttl")

    assert caught.value.field == "ttl"


def test_a_duration_too_long_or_too_fine_is_refused() -> None:
    with pytest.raises(InvalidArgument):
        parse_duration(f"{MAX_DURATION_SECONDS + 1}s", field="x")
    with pytest.raises(InvalidArgument, match="finer"):
        parse_duration("0.0001s", field="x")


@given(st.datetimes(timezones=st.just(UTC)))
def test_a_timestamp_is_read_as_it_was_written(moment: datetime) -> None:
    assert parse_timestamp(format_timestamp(moment), field="x") == moment


@pytest.mark.parametrize(
    ("microsecond", "text"),
    [(0, "2021-02-26T19:13:55Z"), (749_000, "2021-02-26T19:13:55.749Z"), (749_001, "2021-02-26T19:13:55.749001Z")],
)
def test_timestamps_are_written_with_as_few_digits_as_they_need(microsecond: int, text: str) -> None:
    moment = datetime(2021, 2, 26, 20, 13, 55, microsecond, tzinfo=timezone(timedelta(hours=1)))

    assert format_timestamp(moment) == text


@pytest.mark.parametrize(
    "value", ["2021-02-26", "2021-02-30T00:00:00Z", "2021-02-26T19:13:55", 5, "0001-01-01T00:00:00+01:00"]
)
def test_values_other_than_timestamps_are_refused(value: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"google\.protobuf\.Timestamp"):
        parse_timestamp(value, field="x")


@given(st.binary(max_size=100))
def test_base64_is_read_standard_or_url_safe_and_padded_or_not(data: bytes) -> None:
    for text in (base64.b64encode(data).decode(), base64.urlsafe_b64encode(data).decode()):
        assert parse_bytes(text, field="x") == data
        assert parse_bytes(text.rstrip("="), field="x") == data


@pytest.mark.parametrize(
    "value", ["a", "abc=d", "====", "a===", "ab=", "a b=", "YWJj\n", "é===", "Y*Jj", 5, None, ["YQ=="]]
)
def test_bad_base64_is_refused(value: Any) -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse_bytes(value, field="messages[0].data")

    assert caught.value.field == "messages[0].data"


def test_names_are_spelled_in_snake_case_for_error_texts() -> None:
    assert snake_case("enableExactlyOnceDelivery") == "enable_exactly_once_delivery"
