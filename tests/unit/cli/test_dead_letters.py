"""`pushhub dead-letters`: its requests, its reports, and when it asks for confirmation."""

from __future__ import annotations

import io
import sys
from argparse import ArgumentParser
from typing import Any

import pytest

from subscriptions.cli.client import Fields
from subscriptions.cli.errors import CliError
from subscriptions.cli.nouns.dead_letters import BATCH, VERBS
from subscriptions.cli.program import add_parsers
from subscriptions.cli.verbs import Result

WORKER = "projects/p/subscriptions/worker"


class Letters:
    """Moves as many dead letters as are named, or 250, and refuses requests after the first `limit`."""

    def __init__(self, limit: int = 10) -> None:
        self.calls: list[tuple[str, Fields]] = []
        self._limit = limit

    def call(self, method: str, path: str, body: Fields | None = None, **query: Any) -> Fields:
        body = body or {}
        if len(self.calls) == self._limit:
            raise CliError("no such thing", status="NOT_FOUND")
        self.calls.append((path, body))
        return {"messages": len(body.get("messageIds", [])) or 250}

    def pages(self, path: str, collection: str, **query: Any) -> list[Any]:
        self.calls.append((f"{path} {collection}", query))
        return [{"messageId": "7", "reason": "503"}]


def run(client: Letters, *words: str) -> Result:
    parser = ArgumentParser()
    add_parsers(parser, VERBS, ["dead-letters"])
    options = {**vars(parser.parse_args(words)), "project": "p"}
    result: Result = options["verb"].run(client, options)
    return result


class Terminal(io.StringIO):
    """A standard input at which somebody types."""

    def isatty(self) -> bool:
        return True


def test_the_list_is_a_table_of_the_first_dead_letters() -> None:
    client = Letters()
    result = run(client, "list", "worker", "--limit=5")
    assert client.calls == [(f"{WORKER}/deadLetters deadLetters", {"limit": 5})]
    assert (result.value, result.form) == ([{"messageId": "7", "reason": "503"}], "table")
    assert "reason" in result.columns


@pytest.mark.parametrize(
    ("verb", "method", "done", "planned"),
    [
        ("redrive", "redriveDeadLetters", "Redrove", "redriven"),
        ("discard", "discardDeadLetters", "Discarded", "discarded"),
    ],
)
def test_dead_letters_are_moved_by_id_or_all_at_a_rate(verb: str, method: str, done: str, planned: str) -> None:
    client = Letters()
    assert run(client, verb, "worker", "--message-ids=7,8").note == f"{done} 2 dead letters of [{WORKER}]."
    assert run(client, verb, "worker", "--all").note == f"250 dead letters of [{WORKER}] will be {planned}."
    run(client, verb, "worker", "--all", "--rate=5")
    assert (
        run(client, verb, "worker", "--message-ids=7,8", "--rate=5").note
        == f"2 dead letters of [{WORKER}] will be {planned}."
    )
    assert client.calls == [
        (f"{WORKER}:{method}", {"messageIds": ["7", "8"]}),
        (f"{WORKER}:{method}", {"all": True}),
        (f"{WORKER}:{method}", {"all": True, "messagesPerSecond": 5}),
        (f"{WORKER}:{method}", {"messageIds": ["7", "8"], "messagesPerSecond": 5}),
    ]


def test_more_ids_than_a_request_takes_are_several_requests_until_one_fails() -> None:
    client = Letters(limit=2)
    ids = [str(number) for number in range(3 * BATCH)]
    result = run(client, "redrive", "worker", f"--message-ids={','.join(ids)}")
    assert [body["messageIds"] for _, body in client.calls] == [ids[:BATCH], ids[BATCH : 2 * BATCH]]
    assert result.note == f"Redrove {2 * BATCH} dead letters of [{WORKER}]."
    assert result.failures == ["NOT_FOUND: no such thing"]


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ([], "--all"),
        (["--message-ids=7", "--all"], "--all"),
        ([f"--message-ids={'7,' * BATCH}7", "--rate=5"], f"--rate takes at most {BATCH} --message-ids"),
    ],
)
@pytest.mark.parametrize("verb", ["redrive", "discard"])
def test_the_dead_letters_to_move_are_named_in_one_way_only(verb: str, words: list[str], error: str) -> None:
    client = Letters()
    with pytest.raises(CliError, match=error):
        run(client, verb, "worker", *words)
    assert client.calls == []


@pytest.mark.parametrize("answer", ["", "\n", "n\n", "nothing\n"])
def test_discard_asks_at_a_terminal(
    answer: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    client = Letters()
    monkeypatch.setattr(sys, "stdin", Terminal(answer))
    with pytest.raises(CliError, match="nothing was done"):
        run(client, "discard", "worker", "--all")
    assert client.calls == []
    assert capsys.readouterr().err.startswith(f"Discard all dead letters of [{WORKER}]?")


@pytest.mark.parametrize(
    ("stdin", "words"), [(Terminal("y\n"), []), (Terminal("YES\n"), []), (Terminal(""), ["-q"]), (io.StringIO(""), [])]
)
def test_discard_goes_on_after_a_yes_with_quiet_and_in_scripts(
    stdin: io.StringIO, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Letters()
    monkeypatch.setattr(sys, "stdin", stdin)
    assert run(client, "discard", "worker", "--message-ids=7", *words).note.startswith("Discarded 1")


def test_redrive_never_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal(""))
    assert run(Letters(), "redrive", "worker", "--all").note
