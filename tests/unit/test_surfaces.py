"""Each field that callers can set on a topic or a subscription is in the console's form and in the flags of the CLI."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path
from typing import Any

import pytest

from subscriptions.admin.resource_forms import ServiceForm
from subscriptions.admin.subscription_form import SubscriptionForm
from subscriptions.admin.topic_form import TopicForm
from subscriptions.cli.nouns import subscriptions, topics
from subscriptions.cli.values import pairs
from subscriptions.cli.verbs import Flag, Verb
from subscriptions.resources.subscriptions import FIELDS as SUBSCRIPTION_FIELDS
from subscriptions.resources.table import Table
from subscriptions.resources.topics import FIELDS as TOPIC_FIELDS

#: Only accepted where it is empty.
REFUSED = {"ingestionDataSourceSettings"}


class Recorder:
    """Keeps the last body that was sent."""

    body: dict[str, Any]

    def call(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        self.body = body or {}
        return {"name": path, "topic": "projects/p/topics/t"}


def sample(flag: Flag) -> str:
    """Return a value that a flag takes."""
    return "a=b" if flag.options.get("type") is pairs else "5"


def settable(table: Table[Any]) -> set[str]:
    return set(table.fields) - REFUSED


@pytest.mark.parametrize(("form", "table"), [(SubscriptionForm, SUBSCRIPTION_FIELDS), (TopicForm, TOPIC_FIELDS)])
def test_the_form_sets_each_field(form: type[ServiceForm], table: Table[Any]) -> None:
    assert set(form.values.values()) <= set(form.base_fields)
    assert {path.split(".")[0] for path in form.values} | {"messageTransforms"} == settable(table)


@pytest.mark.parametrize(
    ("verb", "words", "table"),
    [
        (subscriptions.VERBS["create"], ["s", "--topic=t"], SUBSCRIPTION_FIELDS),
        (topics.VERBS["create"], ["t"], TOPIC_FIELDS),
    ],
)
def test_the_flags_of_a_new_resource_set_each_field(
    verb: Verb, words: list[str], table: Table[Any], tmp_path: Path
) -> None:
    transforms = tmp_path / "transforms"
    transforms.write_text("[{}]")
    parser = ArgumentParser()
    for flag in verb.flags:
        flag.add(parser)
        if flag.name == "--message-transforms-file":
            words = [*words, f"{flag.name}={transforms}"]
        elif flag.name.startswith("--"):
            words = [*words, flag.name if "action" in flag.options else f"{flag.name}={sample(flag)}"]
    client = Recorder()
    verb.run(client, {**vars(parser.parse_args(words)), "project": "p", "format": None})  # type: ignore[arg-type]
    assert set(client.body) >= settable(table)
