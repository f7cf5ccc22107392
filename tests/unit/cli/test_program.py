"""`pushhub` as a program: its words, filters and formats, completion, several results, and what it loads."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from argparse import ArgumentTypeError
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from django.core.management import get_commands

from pushhub import __version__
from pushhub.cli import main as pushhub_main
from pushhub.cli import manage, management_commands
from subscriptions.cli.client import Client, Fields, client_of
from subscriptions.cli.errors import CliError
from subscriptions.cli.expressions import parse_filter
from subscriptions.cli.formats import Format, parse_format, rendered
from subscriptions.cli.main import SCRIPTS, candidates, main
from subscriptions.cli.nouns import schemas, subscriptions, topics
from subscriptions.identity.pairs import private_pem

ROOT = Path(__file__).parents[3]
ROWS = [
    {"name": "projects/shop/topics/orders", "labels": {"team": "a"}, "count": 10},
    {"name": "projects/shop/topics/refunds", "labels": {"team": "b"}, "tags": ["x", "y"]},
]


class Refusing:
    """Refuses calls about some resources."""

    def __init__(self, *refused: str) -> None:
        self._refused = refused
        self.calls: list[str] = []

    def call(self, method: str, path: str, body: Fields | None = None, **query: Any) -> Fields:
        self.calls.append(path)
        if path in self._refused:
            raise CliError("no such thing", status="NOT_FOUND")
        return {"name": path}


def test_nothing_that_somebody_else_wrote_steers_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A function of a topic writes the error that publishers see, and a publisher what a diagnosis quotes."""
    written, shown = "a\x1b[2J\x9b2J\nb", "a\\u001b[2J\\u009b2J\nb"
    answer = {"subscription": "s", "healthy": False, "summary": written, "steps": [], "attributes": {"k": written}}
    monkeypatch.setattr(Client, "call", lambda *_, **__: answer)
    diagnose = ["subscriptions", "diagnose", "worker", "--project=shop"]
    assert main([*diagnose, "--format=json"]) == 1
    out, err = capsys.readouterr()
    assert json.loads(out) == answer
    monkeypatch.setattr(Client, "call", Mock(side_effect=CliError(written)))
    assert main(diagnose) == 1
    for text in (out, err, capsys.readouterr().err):
        assert not {"\x1b", "\x9b"} & {*text} and (text == out or shown in text)


@pytest.mark.parametrize(("is_terminal", "shown"), [(True, "a\\u001b[2J\n"), (False, "a\x1b[2J\n")])
def test_values_are_shown_at_a_terminal_without_what_steers_it(
    is_terminal: bool, shown: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Client, "call", lambda *_, **__: {"name": "a\x1b[2J"})
    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal)
    assert main(["topics", "describe", "orders", "--project=shop", "--format=value(name)"]) == 0
    assert capsys.readouterr().out == shown


@pytest.mark.parametrize(
    "token_uri", ["https://oauth2.googleapis.com/token", "https://accounts.google.com/o/oauth2/token"]
)
def test_a_key_of_google_signs_nothing(token_uri: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What it signed for Google's audience was good at Google for an hour, and went to any --url."""
    path = key_file(tmp_path, token_uri=token_uri)
    assert main(["topics", "list", "--project=p", f"--key-file={path}"]) == 1
    assert capsys.readouterr().err == (
        f"ERROR: (pubsub.topics.list) --key-file={path}: this is a key of Google Cloud, and what it signs would be "
        "good there: give one that PushHub has made\n"
    )


def test_a_key_signs_for_the_pushhub_that_made_it(tmp_path: Path) -> None:
    path = key_file(tmp_path, token_uri="https://proxy.example/hub/token")
    client = client_of({"url": "http://127.0.0.1:1", "key_file": str(path)})
    claims = jwt.decode(client._headers["Authorization"].split()[1], options={"verify_signature": False})
    assert (claims["iss"], claims["sub"], claims["aud"]) == ("a@x", "a@x", "https://proxy.example/hub")
    assert claims["exp"] - claims["iat"] == 3600


def key_file(folder: Path, **fields: str) -> Path:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    content = {"client_email": "a@x", "private_key_id": "1", "private_key": private_pem(key), **fields}
    (path := folder / "key.json").write_text(json.dumps(content))
    return path


@pytest.mark.parametrize("content", ["[]", "{}", '{"token_uri": 1}', '{"token_uri": "x", "client_email": "a"}', "x"])
def test_what_is_no_key_file_is_refused_in_one_line(
    content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (path := tmp_path / "key.json").write_text(content)
    assert main(["topics", "list", "--project=p", f"--key-file={path}"]) == 1
    said = f"ERROR: (pubsub.topics.list) --key-file={path}: not a service account's key file\n"
    assert capsys.readouterr().err == said


def test_two_credentials_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["topics", "list", "--project=p", "--key-file=a", "--access-token-file=b"]) == 1
    assert "give either --access-token-file or --key-file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("name=orders", ["orders"]),
        ("name=projects/shop/topics/orders", ["orders"]),
        ("name!=orders", ["refunds"]),
        ("name:REF", ["refunds"]),
        ("name~^projects/shop/topics/o", ["orders"]),
        ("name!~refunds$", ["orders"]),
        ("labels.team=a OR labels.team=b", ["orders", "refunds"]),
        ("labels.team=a AND name:orders", ["orders"]),
        ("labels.team=a name:refunds", []),
        ("NOT labels.team=a", ["refunds"]),
        ("labels.team=x OR NOT count=10", ["refunds"]),
        ("tags=y", ["refunds"]),
        ("tags:*", ["refunds"]),
        ("count=10", ["orders"]),
    ],
)
def test_filters(text: str, expected: list[str]) -> None:
    is_match = parse_filter(text)
    assert [row["name"].rpartition("/")[2] for row in ROWS if is_match(row)] == expected


@pytest.mark.parametrize("text", ["", "name", "OR name=x", "name=x OR", "NOT", "name~[", "name='x", "name=x AND NOT"])
def test_a_filter_that_cannot_be_parsed_is_an_error(text: str) -> None:
    with pytest.raises(CliError, match="--filter"):
        parse_filter(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("value(name)", "projects/shop/topics/orders\nprojects/shop/topics/refunds"),
        ("value(labels.team, count)", "a\t10\nb\t"),
        ("table(labels.team:label=TEAM, count)", "TEAM  COUNT\na     10\nb"),
        ("table[box](labels.team)", "TEAM\na\nb"),
        ("csv(labels.team,tags)", 'labels.team,tags\na,\nb,"[""x"", ""y""]"'),
        ("none", ""),
    ],
)
def test_formats_with_columns(text: str, expected: str) -> None:
    assert rendered(ROWS, parse_format(text), columns=("name",)) == expected


@pytest.mark.parametrize("text", ["", "xml", "value", "value()", "json(name)", "table(name"])
def test_a_format_that_cannot_be_parsed_is_an_error(text: str) -> None:
    with pytest.raises(ArgumentTypeError, match="give json"):
        parse_format(text)


def test_a_table_without_columns_shows_those_of_the_verb() -> None:
    assert parse_format("table") == Format("table")
    assert rendered(ROWS[0], parse_format("table"), columns=("count",)) == "COUNT\n10"


@pytest.mark.parametrize(
    ("noun", "collection"), [(topics, "topics"), (subscriptions, "subscriptions"), (schemas, "schemas")]
)
def test_deleting_several_goes_on_after_a_failure(noun: Any, collection: str) -> None:
    client = Refusing(f"projects/p/{collection}/second")
    said = noun.VERBS["delete"].run(client, {collection: ["first", "second", "third"], "project": "p"})
    assert client.calls == [f"projects/p/{collection}/{name}" for name in ("first", "second", "third")]
    assert [line.rpartition("/")[2] for line in said.note.splitlines()] == ["first].", "third]."]
    assert said.failures == [f"[projects/p/{collection}/second]: NOT_FOUND: no such thing"]


@pytest.mark.parametrize(("noun", "collection"), [(topics, "topics"), (subscriptions, "subscriptions")])
def test_creating_several_goes_on_after_a_failure(noun: Any, collection: str) -> None:
    verb = noun.VERBS["create"]
    options: dict[str, Any] = {flag.key: None for flag in verb.flags}
    options |= {collection: ["first", "second", "third"], "project": "p", "topic": "t"}
    said = verb.run(Refusing(f"projects/p/{collection}/second"), options)
    assert [line.rpartition("/")[2] for line in said.note.splitlines()] == ["first].", "third]."]
    assert said.failures == [f"[projects/p/{collection}/second]: NOT_FOUND: no such thing"]


PUSH_FLAGS = [flag.key for flag in subscriptions.PUSH]


@pytest.mark.parametrize("flag", [name for name in PUSH_FLAGS if name != "push_endpoint"])
def test_a_flag_for_pushes_without_an_endpoint_is_refused(flag: str) -> None:
    """It would make a pull subscription of one that pushes."""
    for value in ("x", "", False):
        with pytest.raises(CliError, match=f"--{flag.replace('_', '-')} needs --push-endpoint"):
            subscriptions.push_config(dict.fromkeys(PUSH_FLAGS) | {flag: value})


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["sub"], ["subscriptions"]),
        (["em"], ["emulator"]),
        (["subscriptions", "di"], ["diagnose"]),
        (["pubsub", "subscriptions", "di"], ["diagnose"]),
        (["iam", "service-accounts", "keys", ""], ["create", "list", "delete"]),
        (["subscriptions", "diagnose", "worker", "--se"], ["--send-probe"]),
        (["subscriptions", "diagnose", "--pro"], ["--project"]),
        (["subscriptions", "diagnose", "wor"], []),
        (["nothing", ""], []),
        (["emulator", ""], []),
        (["dead"], ["dead-letters"]),
        (["dead-letters", ""], ["list", "redrive", "discard"]),
        (["dead-letters", "discard", "worker", "--a"], ["--access-token-file", "--all"]),
    ],
)
def test_completion(words: list[str], expected: list[str]) -> None:
    assert candidates(words, commands=("emulator",)) == expected


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["emulator", "--host"], "--host-port"),
        (["receive", "--port", "8080", "--ver"], "--verify"),
        (["doctor", "--e"], "--endpoint"),
        (["capacity", "--fan"], "--fanout"),
        (["capacity", ""], ""),
    ],
)
def test_completion_of_the_flags_of_commands(
    words: list[str], expected: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["pushhub", "__complete", *words])
    pushhub_main()
    assert capsys.readouterr().out.split() == expected.split()


#: What each shell runs when somebody presses the tab key, with the candidates printed. zsh allows `compadd` in its line
#: editor only.
TAB = {
    "bash": "COMP_WORDS=(pushhub {words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); _pushhub\n"
    "printf '%s\\n' \"${{COMPREPLY[@]}}\"",
    "zsh": 'compadd() {{ shift; print -l -- "$@" }}\nwords=(pushhub {words}); CURRENT=$#words; _pushhub',
    "fish": 'complete -C "pushhub {words}"',
}


@pytest.mark.parametrize(
    ("words", "expected"),
    [("sub", ["subscriptions"]), ("iam service-accounts keys l", ["list"]), ("subscriptions x", [])],
)
@pytest.mark.parametrize("shell", SCRIPTS)
def test_each_shell_completes(shell: str, words: str, expected: list[str], tmp_path: Path) -> None:
    """Shells that this machine lacks are not tested."""
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    program = tmp_path / "pushhub"
    code = "from pushhub.cli import main; main()"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{code}" "$@"\n')
    program.chmod(0o755)
    environment = os.environ | {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "HOME": str(tmp_path),
    }
    script = f"{SCRIPTS[shell]}\n{TAB[shell].format(words=words)}\n"
    options = {"bash": ["--norc"], "zsh": ["-f"], "fish": ["--no-config"]}[shell]
    ran = subprocess.run(
        [shell, *options, "-c", script], env=environment, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (ran.stdout.split(), ran.stderr) == (expected, "")


@pytest.mark.parametrize("word", [["topics"], ["pubsub", "topics"]])
def test_pubsub_may_be_left_out(word: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [*word, "list", "--project=p", "--url=http://127.0.0.1:1"]
    assert main(arguments) == 1
    assert capsys.readouterr().err.startswith("ERROR: (pubsub.topics.list) http://127.0.0.1:1 does not answer")


@pytest.mark.parametrize("word", ["pubsub topics", "topics", "projects"])
def test_manage_py_has_the_words_too(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        manage(["manage.py", *word.split(), "list", "--project=p", "--url=http://127.0.0.1:1"])
    assert end.value.code == 1
    assert "http://127.0.0.1:1 does not answer" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "absent", "most"),
    [
        ("topics list --project=p --url=http://127.0.0.1:1", "celery django jwt requests yaml", 250),
        ("receive --status=1", "celery django requests yaml", 300),
    ],
)
def test_a_program_loads_nothing_that_it_does_not_need(words: str, absent: str, most: int) -> None:
    """Django would take half a second. The test checks the loaded modules, as a time would differ between machines."""
    code = (
        "import sys\n"
        "from pushhub import cli\n"
        f"sys.argv = {['pushhub', *words.split()]}\n"
        "try:\n    cli.main()\n"
        "except SystemExit:\n"
        f"    print(sorted(sys.modules.keys() & {absent.split()}), len(sys.modules))\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded, _, count = ran.stdout.strip().rpartition(" ")
    assert loaded == "[]"
    assert int(count) < most


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["topics", "lst"], "pushhub topics: unknown word 'lst': did you mean list? (pushhub topics --help says more)"),
        (["subscriptions", "pull", "s", "--limit", "x"], "argument --limit: 'x': give a whole number from 1 on"),
        (["topics", "list", "--limit=-1"], "argument --limit: '-1': give a whole number from 1 on"),
        (
            ["topics", "create", "t", "--mesage-encoding=json"],
            "pushhub topics create: unknown arguments: --mesage-encoding=json: did you mean --message-encoding?",
        ),
        (["pubsub", "topics", "create"], "pushhub pubsub topics create: the following arguments are required: topic"),
        (["pubsub", "subscriptions", "create", "worker"], "the following arguments are required: --topic"),
        (["subscriptions", "create", "s", "--topic=t", "--ack-deadline=soon"], "argument --ack-deadline: 'soon': give"),
        (["pubsub", "nonsense"], "unknown word 'nonsense'"),
        (["topics", "create", "orders", "--labels=nonsense"], "argument --labels: 'nonsense': give key=value"),
        (["subscriptions", "describe", "s", "--watch=nan"], "argument --watch: 'nan': give a whole number from 1 on"),
    ],
)
def test_a_mistake_gets_one_line(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(words)
    error = capsys.readouterr().err
    assert exit_.value.code == 2
    assert said in error
    assert re.fullmatch(r"pushhub .*: .+ --help says more\)\n", error)


@pytest.mark.parametrize(
    ("variable", "flags", "said"),
    [
        (
            "PUSHHUB_URL",
            ["--url=localhost:8000"],
            "--url: give an http or https URL, for example http://127.0.0.1:8000",
        ),
        ("PUSHHUB_URL", [], "PUSHHUB_URL: give an http or https URL, for example http://127.0.0.1:8000"),
        ("PUSHHUB_HTTP", [], "PUSHHUB_HTTP='nonsense': give host:port, for example 127.0.0.1:8000"),
    ],
)
def test_an_address_that_is_none_is_named(
    variable: str, flags: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("PUSHHUB_URL", raising=False)
    monkeypatch.setenv(variable, "nonsense")
    assert main(["topics", "list", "--project=p", *flags]) == 1
    assert capsys.readouterr().err == f"ERROR: (pubsub.topics.list) {said}\n"


def test_a_name_that_is_not_utf_8_gets_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["topics", "describe", "\udcff", "--project=p", "--url=http://127.0.0.1:1"]) == 1
    assert capsys.readouterr().err == "ERROR: (pubsub.topics.describe) an argument is not UTF-8\n"


def test_a_message_may_have_any_bytes() -> None:
    client = Mock()
    options = dict.fromkeys([flag.key for flag in topics.VERBS["publish"].flags])
    topics.publish(client, options | {"topic": "t", "project": "p", "message": os.fsdecode(b"\xff\0")})
    assert client.call.call_args.args[2] == {"messages": [{"data": base64.b64encode(b"\xff\0").decode()}]}


@pytest.mark.parametrize(
    ("open_output", "status", "said"),
    [
        ("os.dup2(os.pipe()[1], 1)", 141, ""),
        ("os.dup2(os.open('/dev/full', os.O_WRONLY), 1)", 1, "pushhub: No space left on device\n"),
    ],
)
@pytest.mark.parametrize("words", [["--help"], ["completion", "bash"]])
def test_output_that_cannot_be_written_brings_no_traceback(
    words: list[str], open_output: str, status: int, said: str
) -> None:
    code = (
        f"import os, sys; {open_output}; os.closerange(3, 9); sys.argv[1:] = {words}; import pushhub.cli as c; c.main()"
    )
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, stderr=subprocess.PIPE, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (status, said)


@pytest.mark.parametrize("words", ["{} --help", "help {}"])
@pytest.mark.parametrize(
    "command", ["up", "doctor", "emulator", "completion", "capacity", "backup", "receive", "topics"]
)
def test_help_is_shown_and_nothing_else_happens(
    command: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PUSHHUB_SECRET_KEY", "x")  # otherwise `receive` sets one, for this whole process
    monkeypatch.setattr(sys, "argv", ["pushhub", *words.format(command).split()])
    with pytest.raises(SystemExit) as exit_:
        pushhub_main()
    assert not exit_.value.code
    shown = capsys.readouterr().out
    assert shown.startswith(f"usage: pushhub {command} [-h]")
    assert "--pythonpath" not in shown
    assert list(tmp_path.iterdir()) == []


WAITING = """
import time
try:
    print(1, flush=True)
    time.sleep(600)
finally:
    print("cleaned up")
"""


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_command_that_is_stopped_cleans_up_and_prints_no_traceback(number: signal.Signals, status: int) -> None:
    command = subprocess.Popen(
        [sys.executable, "manage.py", "shell", "--no-imports", "--command", WAITING],
        cwd=ROOT,
        env=os.environ | {"PUSHHUB_SECRET_KEY": "x"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert command.stdout is not None and command.stdout.readline() == "1\n"
    command.send_signal(number)
    assert command.communicate(timeout=60) == ("cleaned up\n", "")
    assert command.returncode == status


def test_djangos_commands_are_not_taken_for_mistakes() -> None:
    assert sorted(set(management_commands())) == sorted(get_commands())


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("topcs", "pushhub: unknown command 'topcs': did you mean topics?"),
        ("diagnose", "pushhub: unknown command 'diagnose': did you mean subscriptions diagnose?"),
        ("backu", "pushhub: unknown command 'backu': did you mean backup?"),
        ("xyzzy", "pushhub: unknown command 'xyzzy': pushhub --help lists them"),
        ("--version", f"pushhub {__version__}"),
    ],
)
def test_the_first_word(
    word: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["pushhub", word])
    try:
        pushhub_main()
    except SystemExit as exit_:
        assert exit_.code == 2
    assert said + "\n" in capsys.readouterr()


@pytest.mark.parametrize("words", [["help"], ["backup", "--help"]])
def test_help_needs_no_settings(words: list[str], tmp_path: Path) -> None:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PUSHHUB_", "DJANGO_"))}
    ran = subprocess.run(
        [ROOT / "bin" / "pushhub", *words], env=clean, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert "backup" in ran.stdout
    assert [*tmp_path.iterdir()] == []
