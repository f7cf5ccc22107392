"""The example of docs/transforms.md, run as the page shows it."""

from __future__ import annotations

import base64
import json
import re
import shlex
from pathlib import Path

import pytest
from pytest_django.live_server_helper import LiveServer

from subscriptions.cli.main import main

pytestmark = pytest.mark.django_db(transaction=True)

PAGE = Path(__file__).parents[3] / "docs" / "transforms.md"


def block(language: str) -> str:
    """Return the page's first code block in a language."""
    match = re.search(rf"```{language}\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert match is not None
    return match[1]


def test_the_example(
    redis_url: str,
    live_server: LiveServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("PUSHHUB_URL", live_server.url)
    monkeypatch.setenv("PUSHHUB_PROJECT", "shop")
    monkeypatch.chdir(tmp_path)
    Path("redact.yaml").write_text(block("yaml"), encoding="utf-8")
    printed = []

    for line in block("sh").splitlines():
        program, *words = shlex.split(line)
        assert program == "pushhub"
        assert main([*words, "--format=json"]) == 0, capsys.readouterr().err
        printed.append(capsys.readouterr().out)

    tested, *_, pulled = printed
    [shown] = json.loads(tested)["transformedMessages"]
    [received] = json.loads(pulled)
    for message in (shown["transformedMessage"], received["message"]):
        assert base64.b64decode(message["data"]) == b'{"id":1,"currency":"EUR"}'
        assert message["attributes"] == {"currency": "EUR"}
