"""The command line's flags: what each becomes in the request, and what is printed."""

from __future__ import annotations

import json
import re
import resource
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from pushhub.cli import PARSERS, USAGE
from subscriptions.cli import values
from subscriptions.cli.client import Client, Fields
from subscriptions.cli.errors import CliError
from subscriptions.cli.expressions import parse_filter
from subscriptions.cli.formats import parse_format, rendered, table
from subscriptions.cli.main import PUBSUB, WORDS, tree_of
from subscriptions.cli.nouns import accounts, projects, schemas, snapshots, subscriptions, topics
from subscriptions.cli.verbs import Verb


class Recorder:
    """Answers every call with its request, and with some labels."""

    def __init__(self, **present: Any) -> None:
        self.calls: list[tuple[str, str, Fields]] = []
        self._present = {"labels": {"a": "1", "b": "2"}, "topic": "projects/p/topics/orders", "etag": "x", **present}

    def call(self, method: str, path: str, body: Fields | None = None, **query: Any) -> Fields:
        self.calls.append((method, path, body or {}))
        return {"name": path, **self._present}

    def pages(self, path: str, collection: str, **query: Any) -> list[Any]:
        self.calls.append(("GET", path, query))
        return []


NOUNS = {
    "topics": topics.VERBS,
    "subscriptions": subscriptions.VERBS,
    "snapshots": snapshots.VERBS,
    "schemas": schemas.VERBS,
    "accounts": accounts.VERBS,
    "keys": accounts.KEY_VERBS,
    "projects": projects.VERBS,
}


def run(verbs: dict[str, Verb], verb: str, *words: str, **present: Any) -> list[tuple[str, str, Fields]]:
    """Run a command line in the project `p`, and return the calls that it makes."""
    parser = ArgumentParser()
    for flag in verbs[verb].flags:
        flag.add(parser)
    client = Recorder(**present)
    options = {**vars(parser.parse_args(words)), "project": "p", "format": None}
    verbs[verb].run(client, options)  # type: ignore[arg-type]
    return client.calls


def run_line(line: str) -> tuple[str, str, Fields]:
    """Run a command line that begins with a noun; return its last call."""
    noun, verb, *words = line.split()
    return run(NOUNS[noun], verb, *words)[-1]


def body(verbs: dict[str, Verb], verb: str, *words: str) -> Fields:
    return run(verbs, verb, *words)[-1][2]


CREATE = ("worker", "--topic", "orders")
ENDPOINT = "--push-endpoint=https://e.com/"


@pytest.mark.parametrize(
    ("flags", "fields"),
    [
        ([ENDPOINT], {"pushConfig": {"pushEndpoint": "https://e.com/"}}),
        (
            [ENDPOINT, "--push-auth-service-account=a@p.iam.gserviceaccount.com", "--push-auth-token-audience=x"],
            {
                "pushConfig": {
                    "pushEndpoint": "https://e.com/",
                    "oidcToken": {"serviceAccountEmail": "a@p.iam.gserviceaccount.com", "audience": "x"},
                }
            },
        ),
        ([ENDPOINT, "--push-no-wrapper"], {"pushConfig": {"pushEndpoint": "https://e.com/", "noWrapper": {}}}),
        (
            [ENDPOINT, "--push-no-wrapper", "--push-no-wrapper-write-metadata"],
            {"pushConfig": {"pushEndpoint": "https://e.com/", "noWrapper": {"writeMetadata": True}}},
        ),
        (
            [ENDPOINT, "--push-attributes=x-pushhub-rate=5"],
            {"pushConfig": {"pushEndpoint": "https://e.com/", "attributes": {"x-pushhub-rate": "5"}}},
        ),
        (["--ack-deadline=60"], {"ackDeadlineSeconds": 60}),
        (["--ack-deadline=1m"], {"ackDeadlineSeconds": 60}),
        (["--message-retention-duration=7d"], {"messageRetentionDuration": "604800s"}),
        (["--retain-acked-messages"], {"retainAckedMessages": True}),
        (["--no-retain-acked-messages"], {"retainAckedMessages": False}),
        (["--expiration-period=31d"], {"expirationPolicy": {"ttl": "2678400s"}}),
        (["--expiration-period=never"], {"expirationPolicy": {}}),
        (["--min-retry-delay=10s"], {"retryPolicy": {"minimumBackoff": "10s"}}),
        (
            ["--min-retry-delay=10", "--max-retry-delay=600s"],
            {"retryPolicy": {"minimumBackoff": "10s", "maximumBackoff": "600s"}},
        ),
        (["--dead-letter-topic=dead"], {"deadLetterPolicy": {"deadLetterTopic": "projects/p/topics/dead"}}),
        (
            ["--dead-letter-topic=dead", "--dead-letter-topic-project=q", "--max-delivery-attempts=7"],
            {"deadLetterPolicy": {"deadLetterTopic": "projects/q/topics/dead", "maxDeliveryAttempts": 7}},
        ),
        (["--enable-message-ordering"], {"enableMessageOrdering": True}),
        (["--enable-exactly-once-delivery"], {"enableExactlyOnceDelivery": True}),
        (["--message-filter=attributes:x"], {"filter": "attributes:x"}),
        (["--labels=a=b,c=d"], {"labels": {"a": "b", "c": "d"}}),
        (["--topic-project=q"], {"topic": "projects/q/topics/orders"}),
    ],
)
def test_flags_of_a_new_subscription(flags: list[str], fields: Fields) -> None:
    plain = {
        "topic": "projects/p/topics/orders",
        "pushConfig": {},
        "enableMessageOrdering": False,
        "filter": "",
        "labels": {},
    }
    assert body(subscriptions.VERBS, "create", *CREATE, *flags) == {**plain, **fields}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("subscriptions create worker --topic orders --max-delivery-attempts=5", "--max-.* needs --dead-letter-topic$"),
        ("subscriptions update worker --dead-letter-topic-project=q", "needs --dead-letter-topic$"),
        (
            "subscriptions create worker --topic orders --push-endpoint=https://e/ --push-no-wrapper-write-metadata",
            "--push-no-wrapper-write-metadata needs --push-no-wrapper$",
        ),
        ("topics create orders --message-encoding=json", "--message-encoding needs --schema$"),
        ("topics update orders --schema-project=q", "--schema-project needs --schema$"),
        ("topics update orders", "nothing to change"),
        ("subscriptions update worker", "nothing to change"),
        ("subscriptions update worker --no-push-no-wrapper", "-no-wrapper needs --push-endpoint: "),
        ("subscriptions update worker --push-attributes=", "--push-attributes needs --push-endpoint: "),
        ("schemas validate-message --message=x --definition=x", "a definition needs --type$"),
        (
            "schemas validate-message --message=x --schema-name=order --definition=x --type=avro",
            "give either --schema-name or a definition$",
        ),
        ("snapshots update before", "nothing to change"),
        ("accounts update pusher@p.iam.gserviceaccount.com", "nothing to change"),
        ("projects create shop --organization=1 --folder=2", "give either --organization or --folder$"),
        (
            "subscriptions update worker --max-retry-delay=9s --clear-retry-policy",
            "give either --clear-retry-policy or --max-retry-delay$",
        ),
        (
            "subscriptions update worker --dead-letter-topic=t --clear-dead-letter-policy",
            "give either --clear-dead-letter-policy or --dead-letter-topic$",
        ),
        ("topics update orders --schema=s --clear-schema-settings", "give either --clear-schema-settings or --schema$"),
    ],
)
def test_a_flag_that_would_be_ignored_is_refused(line: str, said: str) -> None:
    with pytest.raises(CliError, match=said):
        run_line(line)


@pytest.mark.parametrize(
    ("flags", "fields", "mask"),
    [
        (["--ack-deadline=60"], {"ackDeadlineSeconds": 60}, "ackDeadlineSeconds"),
        (["--push-endpoint="], {"pushConfig": {}}, "pushConfig"),
        (["--clear-retry-policy"], {}, "retryPolicy"),
        (["--clear-dead-letter-policy"], {}, "deadLetterPolicy"),
        (["--update-labels=b=3,c=4"], {"labels": {"a": "1", "b": "3", "c": "4"}}, "labels"),
        (["--remove-labels=a"], {"labels": {"b": "2"}}, "labels"),
        (["--clear-labels"], {"labels": {}}, "labels"),
        (["--clear-labels", "--update-labels=c=4"], {"labels": {"c": "4"}}, "labels"),
        (
            ["--topic=orders", "--expiration-period=2d", "--no-enable-exactly-once-delivery"],
            {"enableExactlyOnceDelivery": False, "expirationPolicy": {"ttl": "172800s"}},
            "enableExactlyOnceDelivery,expirationPolicy",
        ),
    ],
)
def test_flags_of_an_update_are_its_mask(flags: list[str], fields: Fields, mask: str) -> None:
    calls = run(subscriptions.VERBS, "update", "worker", *flags)
    assert calls[-1] == ("PATCH", "projects/p/subscriptions/worker", {"subscription": fields, "updateMask": mask})


@pytest.mark.parametrize(
    ("line", "call", "sent"),
    [
        ("topics create orders", "PUT projects/p/topics/orders", {}),
        ("topics create projects/q/topics/orders", "PUT projects/q/topics/orders", {}),
        (
            "topics create t --message-retention-duration=1d --labels=a=b",
            "PUT projects/p/topics/t",
            {"labels": {"a": "b"}, "messageRetentionDuration": "86400s"},
        ),
        (
            "topics update t --clear-message-retention-duration",
            "PATCH projects/p/topics/t",
            {"topic": {}, "updateMask": "messageRetentionDuration"},
        ),
        ("topics delete a b", "DELETE projects/p/topics/b", {}),
        ("topics list-subscriptions t", "GET projects/p/topics/t/subscriptions", {"limit": None}),
        ("topics detach-subscription s", "POST projects/p/subscriptions/s:detach", {}),
        (
            "topics publish t --message=hi --attribute=a=b --ordering-key=k",
            "POST projects/p/topics/t:publish",
            {"messages": [{"data": "aGk=", "attributes": {"a": "b"}, "orderingKey": "k"}]},
        ),
        ("subscriptions ack s --ack-ids=x,y", "POST projects/p/subscriptions/s:acknowledge", {"ackIds": ["x", "y"]}),
        (
            "subscriptions modify-message-ack-deadline s --ack-ids=x --ack-deadline=0",
            "POST projects/p/subscriptions/s:modifyAckDeadline",
            {"ackIds": ["x"], "ackDeadlineSeconds": 0},
        ),
        (
            "subscriptions modify-push-config s --push-endpoint=https://e.com/",
            "POST projects/p/subscriptions/s:modifyPushConfig",
            {"pushConfig": {"pushEndpoint": "https://e.com/"}},
        ),
        (
            "subscriptions seek s --time=2026-01-01T00:00:00Z",
            "POST projects/p/subscriptions/s:seek",
            {"time": "2026-01-01T00:00:00Z"},
        ),
        (
            "subscriptions seek s --snapshot=before --snapshot-project=q",
            "POST projects/p/subscriptions/s:seek",
            {"snapshot": "projects/q/snapshots/before"},
        ),
        (
            "topics update t --schema=s --schema-project=q --message-encoding=json --clear-message-transforms",
            "PATCH projects/p/topics/t",
            {
                "topic": {"schemaSettings": {"encoding": "JSON", "schema": "projects/q/schemas/s"}},
                "updateMask": "schemaSettings,messageTransforms",
            },
        ),
        (
            "topics create t --message-storage-policy-allowed-regions=a,b",
            "PUT projects/p/topics/t",
            {"messageStoragePolicy": {"allowedPersistenceRegions": ["a", "b"]}},
        ),
        (
            "snapshots create before --subscription=s --subscription-project=q",
            "PUT projects/p/snapshots/before",
            {"subscription": "projects/q/subscriptions/s", "labels": {}},
        ),
        (
            "snapshots update before --remove-labels=b",
            "PATCH projects/p/snapshots/before",
            {"snapshot": {"labels": {"a": "1"}}, "updateMask": "labels"},
        ),
        (
            "accounts create pusher --display-name=P --description=d",
            "POST projects/p/serviceAccounts",
            {"accountId": "pusher", "serviceAccount": {"displayName": "P", "description": "d"}},
        ),
        (
            "accounts update e@x --display-name=",
            "PATCH projects/-/serviceAccounts/e@x",
            {"serviceAccount": {"displayName": ""}, "updateMask": "displayName"},
        ),
        ("accounts disable e@x", "POST projects/-/serviceAccounts/e@x:disable", {}),
        ("keys delete k1 --iam-account=e@x", "DELETE projects/-/serviceAccounts/e@x/keys/k1", {}),
        (
            "projects create shop --name=Shop --folder=12",
            "POST projects",
            {"projectId": "shop", "name": "Shop", "parent": {"type": "folder", "id": "12"}},
        ),
    ],
)
def test_command_lines_and_their_requests(line: str, call: str, sent: Fields) -> None:
    assert run_line(line) == (*call.split(), sent)


def test_a_topic_that_is_not_the_subscriptions_own_is_refused() -> None:
    with pytest.raises(CliError, match="is a subscription to projects/p/topics/orders and not to projects/p/topics/x"):
        run(subscriptions.VERBS, "update", "worker", "--topic=x", "--ack-deadline=60")


@pytest.mark.parametrize("name", ["", "a/b"])
def test_what_is_neither_an_id_nor_a_full_name_is_refused(name: str) -> None:
    with pytest.raises(CliError, match=f"^'{name}': give an id, or projects/PROJECT/topics/ID$"):
        run(topics.VERBS, "describe", name)


def test_bindings_are_added_and_removed() -> None:
    words = ["t", "--member=user:b@x", "--role=roles/viewer"]
    bindings = [{"role": "roles/viewer", "members": ["user:a@x"]}]
    added = run(topics.VERBS, "add-iam-policy-binding", *words, bindings=bindings)[-1][2]["policy"]
    assert added["bindings"] == [{"role": "roles/viewer", "members": ["user:a@x", "user:b@x"]}]
    assert added["etag"] == "x", "with the etag, no change by others in the meantime is lost"
    removed = run(topics.VERBS, "remove-iam-policy-binding", *words, bindings=added["bindings"])[-1][2]["policy"]
    assert removed["bindings"] == [{"role": "roles/viewer", "members": ["user:a@x"]}]
    with pytest.raises(CliError, match="not found"):
        run(topics.VERBS, "remove-iam-policy-binding", *words, bindings=[])


@pytest.mark.parametrize("audit", [{}, {"auditConfigs": [{"service": "allServices"}]}])
def test_a_policy_of_a_file_replaces_all_that_it_has(audit: Fields, tmp_path: Path) -> None:
    """Without a mask, the API leaves the audit configuration as it is."""
    (file := tmp_path / "policy").write_text(json.dumps({"bindings": [], "etag": "x", **audit}))
    [(_, path, sent)] = run(topics.VERBS, "set-iam-policy", "t", str(file))
    assert path == "projects/p/topics/t:setIamPolicy"
    assert sent.get("updateMask") == ("bindings,etag,auditConfigs" if audit else None)


def test_a_key_file_that_cannot_be_written_whole_is_deleted_with_its_key(tmp_path: Path) -> None:
    """Given a disk that is full after 100 bytes, then neither the beginning of a file stays nor the key."""
    path, client = tmp_path / "key.json", Recorder(name="k", privateKeyData="eHh4" * 1000)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        with pytest.raises(CliError, match=f"^{path}: File too large$"):
            accounts.create_key(client, {"output_file": str(path), "iam_account": "e@x"})  # type: ignore[arg-type]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert client.calls[1:] == [("DELETE", "k", {})] and not path.exists()


def test_a_key_is_made_only_if_its_file_can_be(tmp_path: Path) -> None:
    client = Recorder()
    for path, said in ((tmp_path, "File exists"), (tmp_path / "none" / "key.json", "No such file or directory")):
        with pytest.raises(CliError, match=f"^{path}: {said}$"):
            accounts.create_key(client, {"output_file": str(path), "iam_account": "e@x"})  # type: ignore[arg-type]
    assert client.calls == []


def test_each_flag_has_a_help_text() -> None:
    flags = [flag for word in WORDS for verb in _verbs_of(tree_of(word)) for flag in verb.flags]
    actions = [action for module in PARSERS.values() for action in import_module(module).parser()._actions]
    assert [flag.name for flag in flags if not flag.help] == []
    assert [action.dest for action in actions if not action.help] == []


def _verbs_of(tree: Any) -> Iterator[Verb]:
    for node in tree.values():
        yield from [node] if isinstance(node, Verb) else _verbs_of(node)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("10", "10s"), ("10s", "10s"), ("0.5s", "0.500s"), ("5m", "300s"), ("2h", "7200s"), ("1d12h", "129600s")],
)
def test_durations(text: str, seconds: str) -> None:
    assert values.duration(text) == seconds


@pytest.mark.parametrize("text", ["", "x", "5w", "-5s", "m5", "1d12"])
def test_malformed_durations_are_refused(text: str) -> None:
    with pytest.raises(ArgumentTypeError, match="give a number and one of"):
        values.duration(text)


def test_pairs() -> None:
    assert values.pairs("a=b,c=d=e,f=") == {"a": "b", "c": "d=e", "f": ""}
    assert values.pairs("^;^a=b,c;d=e") == {"a": "b,c", "d": "e"}
    assert values.pairs("") == {}
    for wrong in ("a", "=b", "a=b,,c=d"):
        with pytest.raises(ArgumentTypeError, match="key=value"):
            values.pairs(wrong)


def test_formats() -> None:
    rows = [{"name": "a", "topic": "t", "n": 1}, {"name": "世界", "topic": None}]
    assert rendered(rows, parse_format("table"), columns=("name", "topic")) == "NAME  TOPIC\na     t\n世界"
    assert rendered(rows[0], parse_format("json"), columns=()) == '{\n  "name": "a",\n  "topic": "t",\n  "n": 1\n}'
    assert rendered(rows, parse_format("yaml"), columns=()) == "n: 1\nname: a\ntopic: t\n---\nname: 世界\ntopic: null"
    assert rendered(["x", "y"], parse_format("yaml"), columns=()) == "x\n---\ny"
    assert rendered(rows, parse_format("none"), columns=()) == ""


def test_tables_are_aligned_in_any_script() -> None:
    assert table([["世界", "x"], ["é", "y"]], heads=["data", "ackId"]) == "DATA  ACK_ID\n世界  x\né     y"


def test_a_table_has_one_line_a_row_and_steers_no_terminal() -> None:
    assert table([["a\nb", "\x1b[2J"], ["世界", "\x9b2J"]], heads=["x", "y"]).splitlines() == [
        "X     Y",
        "a\\nb  \\x1b[2J",
        "世界  \\x9b2J",
    ]


def test_diagnose_prints_the_steps_and_the_summary() -> None:
    steps = [
        {"name": "url", "status": "ok", "message": "Fine."},
        {"name": "name", "status": "failed", "message": "No."},
    ]
    client = Recorder(
        subscription="projects/p/subscriptions/worker", steps=steps, summary="name: No. Correct it.", healthy=False
    )
    options = {"subscription": "worker", "project": "p", "send_probe": True, "format": None, "all": False}
    said = subscriptions.VERBS["diagnose"].run(client, options)  # type: ignore[arg-type]
    assert client.calls == [("POST", "projects/p/subscriptions/worker:diagnose", {"sendProbe": True})]
    assert said.value.splitlines() == ["STEP  STATUS  MESSAGE", "url   ok      Fine.", "name  failed  No."]
    assert said.failures == ["[projects/p/subscriptions/worker]: name: No. Correct it."]


def test_diagnose_of_a_healthy_subscription_succeeds() -> None:
    client = Recorder(steps=[{"name": "url", "status": "ok", "message": "Fine."}], summary="Works.", healthy=True)
    options = {"subscription": "worker", "project": "p", "send_probe": False, "format": None, "all": False}
    said = subscriptions.VERBS["diagnose"].run(client, options)  # type: ignore[arg-type]
    assert said.value.splitlines()[-1] == "Works."
    assert not said.failures


def test_diagnose_of_a_project_fails_if_one_subscription_does() -> None:
    """Given two push subscriptions and one that is pulled, then all are diagnosed."""

    class Project(Client):
        def call(self, method: str, path: str, body: Fields | None = None, **query: Any) -> Fields:
            push = {"pushEndpoint": "https://example.com/"}
            if method == "GET":
                names = {"good": push, "bad": push, "pulled": {}}
                return {"subscriptions": [{"name": name, "pushConfig": config} for name, config in names.items()]}
            name = path.removesuffix(":diagnose")
            return {"subscription": name, "healthy": name != "bad", "summary": f"{name} it is."}

    options = {"subscription": None, "project": "p", "send_probe": False, "format": None, "all": True}
    said = subscriptions.VERBS["diagnose"].run(Project("http://localhost"), options)
    assert [row["subscription"] for row in said.value] == ["good", "bad", "pulled"]
    assert said.failures == ["[bad]: bad it is."]
    with pytest.raises(CliError, match="either a subscription or --all"):
        subscriptions.VERBS["diagnose"].run(Project("http://localhost"), options | {"all": False})


def test_pause_and_resume_name_each_subscription() -> None:
    client = Recorder()
    options = {"subscriptions": ["a", "b"], "project": "p", "format": None}
    said = subscriptions.VERBS["pause"].run(client, options)  # type: ignore[arg-type]
    assert [call[:2] for call in client.calls] == [
        ("POST", "projects/p/subscriptions/a:pause"),
        ("POST", "projects/p/subscriptions/b:pause"),
    ]
    assert said.note.splitlines()[0] == "Paused subscription [projects/p/subscriptions/a]."
    subscriptions.VERBS["resume"].run(client, options | {"subscriptions": ["a"]})  # type: ignore[arg-type]
    assert client.calls[-1][1] == "projects/p/subscriptions/a:resume"


def test_a_watched_subscription_prints_what_changes_until_ctrl_c(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given a diagnosis of which a duration changes and then a step, then both are printed, and the subscription."""
    summaries = ["Fine, 77 ms ago.", "Fine, 1.5 s ago.", "flow: It is slow."]

    class Changing(Client):
        def call(self, method: str, path: str, body: Fields | None = None, **query: Any) -> Fields:
            if method == "GET":
                return {"name": path}
            if not summaries:
                raise KeyboardInterrupt
            return {"summary": summaries.pop(0)}

    monkeypatch.setattr(subscriptions, "sleep", lambda seconds: None)
    options = {"subscription": "worker", "project": "p", "watch": 2.0}
    said = subscriptions.VERBS["describe"].run(Changing("http://localhost"), options)
    printed = [line.partition(" ")[2] for line in capsys.readouterr().out.splitlines()]
    assert printed == ["Fine, 77 ms ago.", "flow: It is slow."]
    assert said.value == {"name": "projects/p/subscriptions/worker"}


class Listing(Client):
    """Answers with a list of three topics a page."""

    def call(self, method: str, path: str, body: Fields | None = None, **query: Any) -> Fields:
        page = int(query.get("pageToken") or 0)
        names = [f"projects/p/topics/t{number}" for number in range(3 * page, 3 * page + 3)]
        return {"topics": [{"name": name} for name in names], "nextPageToken": str(page + 1) if page < 2 else ""}


def test_a_limit_counts_the_items_that_the_filter_chooses() -> None:
    client = Listing("http://127.0.0.1:1")
    client.is_listed = parse_filter("name~[47]$")
    options = {"project": "p", "limit": 2}
    assert topics.VERBS["list"].run(client, options).value == [
        {"name": "projects/p/topics/t4"},
        {"name": "projects/p/topics/t7"},
    ]


def test_the_help_and_the_documentation_name_each_noun() -> None:
    page = (Path(__file__).parents[3] / "docs" / "cli.md").read_text(encoding="utf-8")
    usage = ", ".join(re.findall(r"^  ([a-z-]+(?:, [a-z-]+)*)(?:  |$)", USAGE, re.M)).split(", ")
    nouns = set(WORDS) - {PUBSUB}
    assert nouns <= set(usage)
    assert [noun for noun in nouns if not re.search(rf"^\| (`[a-z-]+`, )*`{noun}\b", page, re.M)] == []
