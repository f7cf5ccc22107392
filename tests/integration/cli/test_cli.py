"""The command line against a running server: Google's documented lines, exit codes, and errors of one line."""

from __future__ import annotations

import json
import re
import shlex
import stat
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from pytest_django.live_server_helper import LiveServer

from subscriptions.cli.main import main
from subscriptions.iam import grants
from subscriptions.iam.tree import get_resource
from subscriptions.identity import access_tokens
from subscriptions.services.topics import create_topic

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.any_database]

PUSHER = "pusher@shop.iam.gserviceaccount.com"
#: From Google's page "Push subscriptions", under "gcloud"; the reader fills in the variables.
DOCUMENTED = """
# Configure the push subscription
gcloud pubsub subscriptions VERB ${SUBSCRIPTION} \\
 --topic=${TOPIC} \\
 --push-endpoint=${PUSH_ENDPOINT_URI} \\
 --push-auth-service-account=${SERVICE_ACCOUNT_EMAIL} \\
 --push-auth-token-audience=${OPTIONAL_AUDIENCE_OVERRIDE}
"""
GRANT = """
gcloud projects add-iam-policy-binding ${PROJECT_ID} \\
 --member="serviceAccount:${PUBSUB_SERVICE_ACCOUNT}"\\
 --role='roles/iam.serviceAccountTokenCreator'
"""


class Said(NamedTuple):
    """The output and the exit code of a command line."""

    code: int
    out: str
    err: str


@pytest.fixture
def cli(
    redis_url: str, live_server: LiveServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Any:
    """Runs a command line in the project `shop`."""
    monkeypatch.setenv("PUSHHUB_URL", live_server.url)
    monkeypatch.setenv("PUSHHUB_PROJECT", "shop")

    def run(line: str) -> Said:
        capsys.readouterr()
        try:
            code = main(shlex.split(line, comments=True))
        except SystemExit as end:
            code = int(end.code or 0)
        return Said(code, *capsys.readouterr())

    return run


def filled(text: str, **variables: str) -> str:
    """Return a documented line with its variables filled in and without the word `gcloud`."""
    text = re.sub(r"\$\{(\w+)\}", lambda match: variables[match[1]], text.replace('"\\\n', '" \\\n'))
    return text.replace("gcloud ", "").replace("\\\n", " ").partition("# Configure the push subscription")[2] or (
        text.replace("gcloud ", "").replace("\\\n", " ")
    )


@pytest.mark.parametrize("verb", ["create", "update", "modify-push-config"])
def test_the_documented_command_lines(cli: Any, verb: str) -> None:
    cli("pubsub topics create orders")
    cli("iam service-accounts create pusher")
    if verb != "create":
        cli("pubsub subscriptions create hello --topic=orders")
    line = filled(
        DOCUMENTED.replace("VERB", verb),
        SUBSCRIPTION="hello",
        TOPIC="orders",
        PUSH_ENDPOINT_URI="https://example.com/push",
        SERVICE_ACCOUNT_EMAIL=PUSHER,
        OPTIONAL_AUDIENCE_OVERRIDE="aud",
    )
    said = cli(line.strip())
    assert said.code == 0, said.err
    shown = yaml.safe_load(cli("pubsub subscriptions describe hello").out)
    assert shown["pushConfig"] == {
        "pushEndpoint": "https://example.com/push",
        "oidcToken": {"serviceAccountEmail": PUSHER, "audience": "aud"},
    }


def test_the_documented_grant(cli: Any) -> None:
    cli("pubsub topics create orders")
    number = json.loads(cli("projects describe shop --format=json").out)["projectNumber"]
    agent = f"service-{number}@gcp-sa-pubsub.iam.gserviceaccount.com"
    said = cli(filled(GRANT, PROJECT_ID="shop", PUBSUB_SERVICE_ACCOUNT=agent).strip())
    assert said.code == 0, said.err
    assert said.err == "Updated IAM policy for [projects/shop].\n"
    policy = json.loads(cli("projects get-iam-policy shop --format json").out)
    held = {"role": "roles/iam.serviceAccountTokenCreator", "members": [f"serviceAccount:{agent}"]}
    assert held in policy["bindings"]


def test_a_message_from_publish_to_acknowledgement(cli: Any) -> None:
    assert cli("pubsub topics create orders").err == "Created topic [projects/shop/topics/orders].\n"
    cli("pubsub subscriptions create worker --topic orders")
    said = cli("pubsub topics publish orders --message 'hello 世界' --attribute lang=zh --format json")
    (message_id,) = json.loads(said.out)["messageIds"]
    (received,) = json.loads(cli("pubsub subscriptions pull worker --format json").out)
    assert received["message"]["messageId"] == message_id
    ack_id = received["ackId"]
    said = cli(f"pubsub subscriptions modify-message-ack-deadline worker --ack-ids {ack_id} --ack-deadline 0")
    assert said.code == 0, said.err
    head, row = cli("pubsub subscriptions pull worker --auto-ack").out.splitlines()
    assert head.split() == ["DATA", "MESSAGE_ID", "ORDERING_KEY", "ATTRIBUTES", "DELIVERY_ATTEMPT"]
    assert row.split() == ["hello", "世界", message_id, "lang=zh"]
    assert cli("pubsub subscriptions pull worker").out == "Listed 0 items.\n"


def test_an_error_of_the_api_is_one_line_and_exit_code_1(cli: Any) -> None:
    said = cli("pubsub topics describe none")
    assert (said.code, said.out) == (1, "")
    expected = "ERROR: (pubsub.topics.describe) "
    assert said.err.startswith(expected)
    assert "NOT_FOUND" in said.err
    assert said.err.count("\n") == 1


def test_help_is_exit_code_0_for_every_command(cli: Any) -> None:
    for line in ("pubsub", "pubsub topics", "pubsub subscriptions create", "iam service-accounts keys", "projects"):
        said = cli(f"{line} --help")
        assert said.code == 0
        assert "usage: " in said.out


def test_without_a_project_short_names_are_refused(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PUSHHUB_PROJECT")
    for short in (
        "topics create orders",
        "subscriptions create worker --topic=projects/shop/topics/orders",
        "message-transforms test --message=x --topic=projects/shop/topics/orders",
        "schemas validate-message --message=x --schema-name=projects/shop/schemas/order",
    ):
        said = cli(f"pubsub {short}")
        assert (said.code, "no project: give --project" in said.err) == (1, True)
    assert cli("pubsub topics create projects/shop/topics/orders").code == 0
    assert cli("pubsub topics create returns --project shop").code == 0


def test_tokens_and_key_files(cli: Any, tmp_path: Path, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    cli("pubsub topics create orders")
    cli("iam service-accounts create pusher")
    key = tmp_path / "key.json"
    assert cli(f"iam service-accounts keys create {key} --iam-account {PUSHER}").code == 0
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert cli(f"iam service-accounts keys create {key} --iam-account {PUSHER}").code == 1
    assert len(json.loads(cli(f"iam service-accounts keys list --iam-account {PUSHER} --format json").out)) == 1
    settings.ANONYMOUS = ""
    settings.DEVELOPMENT = False
    assert "UNAUTHENTICATED" in cli("pubsub topics describe orders").err
    said = cli(f"pubsub topics describe orders --key-file {key}")
    assert "PERMISSION_DENIED" in said.err
    topic = get_resource("projects/shop/topics/orders")
    grants.grant_role(topic, role="roles/pubsub.viewer", member=f"serviceAccount:{PUSHER}")
    assert cli(f"pubsub topics describe orders --key-file {key}").code == 0
    token = tmp_path / "token"
    token.write_text(access_tokens.create_access_token(member=f"serviceAccount:{PUSHER}").token)
    assert cli(f"pubsub topics describe orders --access-token-file {token}").code == 0
    monkeypatch.setenv("PUSHHUB_TOKEN", token.read_text())
    assert cli("pubsub topics describe orders").code == 0
    (binary := tmp_path / "binary").write_bytes(b"\xff\n\xff")
    (empty := tmp_path / "empty").touch()
    for wrong in (
        *(f"--key-file {token}", "--key-file /none", "--access-token-file /none"),
        *(f"--access-token-file {binary}", f"--access-token-file {empty}"),
    ):
        said = cli(f"pubsub topics describe orders {wrong}")
        assert (said.code, said.err.count("\n")) == (1, 1), said.err


def test_lists_go_on_past_the_first_page(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(5):
        create_topic(name=f"projects/shop/topics/topic-{number}", topic={})
    monkeypatch.setattr("subscriptions.paging.Page.read", lambda query, **_: _page(query))
    assert cli("pubsub topics list --format table").out.splitlines() == [
        "NAME",
        *(f"projects/shop/topics/topic-{number}" for number in range(5)),
    ]
    assert len(cli("pubsub topics list --limit 3 --format table").out.splitlines()) == 4


def _page(query: Any) -> Any:
    from subscriptions.paging import Page

    return Page(size=2, token=query.get("pageToken", ""))


def test_snapshots_and_seek(cli: Any) -> None:
    cli("pubsub topics create orders")
    cli("pubsub subscriptions create worker --topic orders")
    cli("pubsub topics publish orders --message kept")
    assert cli("pubsub snapshots create before --subscription worker").code == 0
    cli("pubsub subscriptions pull worker --auto-ack")
    assert cli("pubsub subscriptions seek worker --snapshot before").code == 0
    assert "kept" in cli("pubsub subscriptions pull worker").out
    assert cli("pubsub snapshots delete before").code == 0
    assert cli("pubsub subscriptions seek worker").code == 1


def test_schemas_from_the_command_line(cli: Any, tmp_path: Path) -> None:
    """Given a definition in a file, when a schema is created, committed and rolled back, then its revisions say so."""
    avro = '{"type": "record", "name": "Order", "fields": [{"name": "id", "type": "string"}]}'
    wider = '{"type": "record", "name": "Order", "fields": [{"name": "id", "type": "string", "default": ""}]}'
    file = tmp_path / "order.avsc"
    file.write_text(avro)
    assert cli(f"pubsub schemas create order --type=avro --definition-file={file}").code == 0
    first = cli("pubsub schemas describe order --format='value(revisionId)'").out.strip()
    assert cli(f"pubsub schemas commit order --type=avro --definition='{wider}'").code == 0
    assert len(cli("pubsub schemas list-revisions order --format='value(revisionId)'").out.split()) == 2
    assert cli(f"pubsub schemas rollback order --revision-id={first}").code == 0
    assert cli(f"pubsub schemas delete-revision order@{first}").code == 0
    assert cli("""pubsub schemas validate-message --schema-name=order --message='{"id": "1"}'""").code == 0
    refused = cli("pubsub schemas validate-message --schema-name=order --message='{}'")
    assert refused.code == 1 and "INVALID_ARGUMENT" in refused.err
    assert cli("pubsub schemas list --filter=name=order --uri").out.strip().endswith("/v1/projects/shop/schemas/order")
    deleted = cli("pubsub schemas delete nothing order")
    assert deleted.code == 1
    assert "Deleted schema [projects/shop/schemas/order]." in deleted.err and "NOT_FOUND" in deleted.err
    assert cli("pubsub schemas list --format='value(name)'").out == ""
