"""The flags of message transforms: what they read from files, and what they put into a request."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from subscriptions.cli.errors import CliError
from subscriptions.cli.nouns import message_transforms, subscriptions, topics
from tests.unit.cli.test_cli import body, run

TRANSFORM = {"javascriptUdf": {"functionName": "f", "code": "function f(m) {\n  return m;\n}\n"}}
YAML = """
- javascriptUdf:
    functionName: f
    code: |
      function f(m) {
        return m;
      }
"""


@pytest.fixture(params=["yaml", "json"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the path of a file with a list of one transform."""
    file = tmp_path / "transforms"
    file.write_text(YAML if request.param == "yaml" else json.dumps([TRANSFORM]))
    return str(file)


def test_a_file_sets_the_transforms_of_a_new_resource(path: str) -> None:
    topic = body(topics.VERBS, "create", "orders", f"--message-transforms-file={path}")
    subscription = body(subscriptions.VERBS, "create", "worker", "--topic=orders", f"--message-transforms-file={path}")

    assert topic["messageTransforms"] == subscription["messageTransforms"] == [TRANSFORM]


@pytest.mark.parametrize(("verbs", "kind"), [(topics.VERBS, "topic"), (subscriptions.VERBS, "subscription")])
def test_an_update_replaces_or_clears_the_transforms(path: str, verbs: Any, kind: str) -> None:
    replaced = body(verbs, "update", "orders", f"--message-transforms-file={path}")
    cleared = body(verbs, "update", "orders", "--clear-message-transforms")

    assert replaced == {kind: {"messageTransforms": [TRANSFORM]}, "updateMask": "messageTransforms"}
    assert cleared == {kind: {}, "updateMask": "messageTransforms"}


def test_validate_sends_the_one_transform(path: str, tmp_path: Path) -> None:
    single = tmp_path / "single"
    single.write_text(json.dumps(TRANSFORM))
    two = tmp_path / "two"
    two.write_text(json.dumps([TRANSFORM, TRANSFORM]))

    for file in (path, str(single)):
        calls = run(message_transforms.VERBS, "validate", f"--message-transform-file={file}")
        assert calls == [("POST", "projects/p:validateMessageTransform", {"messageTransform": TRANSFORM})]
    with pytest.raises(CliError, match="not a single message transform"):
        run(message_transforms.VERBS, "validate", f"--message-transform-file={two}")


def test_test_sends_the_message_and_the_transforms(path: str) -> None:
    verbs = message_transforms.VERBS
    data = base64.b64encode(b"hi").decode()

    assert body(verbs, "test", "--message=hi", "--attribute=a=b", f"--message-transforms-file={path}") == {
        "message": {"data": data, "attributes": {"a": "b"}},
        "messageTransforms": {"messageTransforms": [TRANSFORM]},
    }
    assert body(verbs, "test", "--message=hi", "--topic=orders", "--topic-project=q") == {
        "message": {"data": data},
        "topic": "projects/q/topics/orders",
    }
    assert body(verbs, "test", "--attribute=a=b", "--subscription=worker") == {
        "message": {"attributes": {"a": "b"}},
        "subscription": "projects/p/subscriptions/worker",
    }


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--topic=orders"], "--message, --attribute"),
        (["--message=hi"], "one of --message-transforms-file"),
        (["--message=hi", "--topic=orders", "--subscription=worker"], "one of --message-transforms-file"),
        (["--message=hi", "--message-transforms-file=/nowhere"], "No such file"),
    ],
)
def test_an_invalid_test_is_refused_with_its_reason(flags: list[str], words: str) -> None:
    with pytest.raises(CliError, match=words):
        run(message_transforms.VERBS, "test", *flags)


@pytest.mark.parametrize(("text", "words"), [("{}", "not a list"), ("a: [", "neither JSON nor YAML")])
def test_a_file_that_holds_no_list_is_an_error(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "file"
    file.write_text(text)

    with pytest.raises(CliError, match=words):
        body(topics.VERBS, "create", "orders", f"--message-transforms-file={file}")
