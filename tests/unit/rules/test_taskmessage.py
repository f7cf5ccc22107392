"""Celery itself can read the task messages that the template renders."""

from __future__ import annotations

import json

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from deliveries.rules.payload import attributes_text, wire_message, wire_text
from deliveries.rules.taskmessage import (
    TaskTemplate,
    escape_message,
    escape_text,
    generation_of,
    parse_body,
    parse_own,
    reference,
    seek_of,
    task_id_of,
    task_parts,
)

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)


@example(b"", {'"},"body":"': '"},"body":"'}, '"},"body":"[1]"}', 1, 5)
@given(
    data=st.binary(max_size=100),
    attributes=st.dictionaries(TEXT, TEXT, max_size=4),
    key=TEXT,
    attempt=st.integers(1, 1000),
    message_id=st.integers(1, 2**63 - 1),
)
def test_a_rendered_message_is_read_back(
    data: bytes, attributes: dict[str, str], key: str, attempt: int, message_id: int
) -> None:
    message = wire_message(message_id, data, attributes, key)
    template = TaskTemplate(subscription_id=7, region="here", attempt=attempt, generation="g")
    text = template.render(str(message_id), escape_message(message))
    rendered = json.loads(text)
    assert parse_own(text.encode()) == (task_id_of(rendered["headers"]), rendered["body"])
    task = parse_body(rendered["body"])
    assert (task.subscription_id, task.region, task.attempt, task.message) == (7, "here", attempt, message)
    assert task.message_id == message_id
    assert rendered["headers"]["id"] == f"{message_id}.7.here"
    assert task_id_of(rendered["headers"]) == f"{message_id}.7.here.g"
    assert rendered["headers"]["task"] == "deliveries.deliver"
    assert rendered["headers"]["retries"] == attempt - 1
    assert rendered["properties"]["delivery_info"]["routing_key"] == "deliveries.here"


@given(data=st.binary(max_size=100), attributes=st.dictionaries(TEXT, TEXT, max_size=4), key=TEXT)
def test_a_page_renders_a_message_as_a_publish_does(data: bytes, attributes: dict[str, str], key: str) -> None:
    text = wire_text(2**60, data, attributes_text(attributes), key)
    assert orjson.loads(text) == wire_message(2**60, data, attributes, key)
    assert json.loads(f'"{escape_text(text)}"') == text


def rendered_reference(*, region: str = "here") -> str:
    template = TaskTemplate(subscription_id=7, region=region, attempt=1, generation="g")
    return template.render("12", escape_message(reference(12)))


def test_the_id_and_the_task_come_first_where_scripts_and_older_versions_look_for_them() -> None:
    rendered = rendered_reference()
    assert rendered.startswith('{"headers":{"id":"12.7.here","lang":"py","task":"deliveries.deliver",')


@pytest.mark.parametrize(
    ("headers", "generation", "seek"),
    [({}, "", 0), ({"lane": ""}, "", 0), ({"lane": "g"}, "g", 0), ({"lane": "g.5"}, "g", 5), ({"lane": ".5"}, "", 5)],
)
def test_a_task_has_the_generation_of_its_lane_unless_an_older_version_wrote_it(
    headers: dict[str, str], generation: str, seek: int
) -> None:
    task_id = task_id_of({"id": "12.7.here", **headers})
    assert (generation_of(task_id), seek_of(task_id)) == (generation, seek)


def test_a_reference_has_no_payload() -> None:
    rendered = rendered_reference()
    assert parse_body(json.loads(rendered)["body"]).is_reference


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"{}",
        b'{"headers":{"id":"12.7.here',
        b'{"headers":{"id":"12","lang":"py","task":"another"},"body":"[]"}',
        b'{"headers":{"task":"deliveries.deliver","id":"12"},"body":"[]"}',
        b'{"headers":{"id":"12","lang":"py","task":"deliveries.deliver","x":1},"rest":"[]"}',
    ],
)
def test_a_message_that_no_template_rendered_is_not_parsed(message: bytes) -> None:
    assert parse_own(message) is None


def test_a_truncated_message_is_an_error() -> None:
    rendered = rendered_reference()
    with pytest.raises(ValueError, match="end of data"):
        parse_own(rendered[:-10].encode())


def test_the_parts_of_a_task_message_are_what_the_template_renders() -> None:
    rendered = rendered_reference(region="here-1")
    values = ["12", "7", "g", "7", "12", "12", "7", "7", escape_message(reference(12)), ""]
    parts = zip(task_parts("here-1"), values, strict=True)
    assert "".join(part + value for part, value in parts) == rendered
