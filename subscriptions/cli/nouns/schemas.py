"""`pubsub schemas`."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

from subscriptions.cli.client import Client
from subscriptions.cli.errors import CliError
from subscriptions.cli.policies import policy_verbs
from subscriptions.cli.resources import LIMIT, call_one, delete_each, describe_by, list_all, name_by
from subscriptions.cli.values import full_name, project_name
from subscriptions.cli.verbs import Flag, Options, Result, Verb, flag

SCHEMA = flag("schema", "an id such as order, or projects/shop/schemas/order; of one revision: order@4d29c1b3")
SCHEMAS = flag("schemas", "ids, or full names", nargs="+", metavar="schema")
TYPES = {"avro": "AVRO", "protocol-buffer": "PROTOCOL_BUFFER"}
ENCODINGS = ("json", "binary")


def _definition(*, required: bool = True) -> tuple[Flag, ...]:
    return (
        flag("--type", "avro or protocol-buffer", choices=TYPES, required=required),
        flag("--definition", "the definition itself"),
        flag("--definition-file", "a file with the definition", metavar="FILE"),
    )


schema_name = name_by("schema")


def _read(path: str, name: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CliError(f"{name}={path}: {getattr(error, 'strerror', '') or 'not text'}") from None


def _schema(options: Options) -> dict[str, Any]:
    if bool(options["definition"]) == bool(options["definition_file"]):
        raise CliError("give one of --definition and --definition-file")
    if not options["type"]:
        raise CliError("a definition needs --type")
    definition = options["definition"] or _read(options["definition_file"], "--definition-file")
    return {"type": TYPES[options["type"]], "definition": definition}


def create(client: Client, options: Options) -> Result:
    project, _, schema_id = schema_name(options).removeprefix("projects/").partition("/schemas/")
    schema = client.call("POST", f"projects/{project}/schemas", _schema(options), schemaId=schema_id)
    return Result(schema, note=f"Created schema [{schema['name']}].")


def commit(client: Client, options: Options) -> Result:
    name = schema_name(options)
    body = {"name": name, "schema": {"name": name, **_schema(options)}}
    schema = client.call("POST", f"{name}:commit", body)
    return Result(schema, note=f"Committed revision [{schema.get('revisionId', '')}] of schema [{name}].")


def rollback(client: Client, options: Options) -> Result:
    name = schema_name(options)
    schema = client.call("POST", f"{name}:rollback", {"name": name, "revisionId": options["revision_id"]})
    return Result(schema, note=f"Rolled back schema [{name}].")


def list_revisions(client: Client, options: Options) -> Result:
    rows = client.pages(f"{schema_name(options)}:listRevisions", "schemas", limit=options["limit"])
    return Result(rows, columns=("name", "revisionId", "revisionCreateTime"))


def validate_schema(client: Client, options: Options) -> Result:
    client.call("POST", f"projects/{options['project']}/schemas:validate", {"schema": _schema(options)})
    return Result(note="Schema is valid.")


def validate_message(client: Client, options: Options) -> Result:
    if bool(options["message"]) == bool(options["message_file"]):
        raise CliError("give one of --message and --message-file")
    if options["schema_name"] and (options["definition"] or options["definition_file"]):
        raise CliError("give either --schema-name or a definition")
    text = options["message"] or _read(options["message_file"], "--message-file")
    body: dict[str, Any] = {
        "message": base64.b64encode(text.encode()).decode(),
        "encoding": options["message_encoding"].upper(),
    }
    if options["schema_name"]:
        body["name"] = full_name(options["schema_name"], "schemas", options["project"])
    else:
        body["schema"] = _schema(options)
    client.call("POST", f"{project_name(options['project'])}/schemas:validateMessage", body)
    return Result(note="Message is valid.")


VERBS = {
    "create": Verb("create a schema", create, SCHEMA, *_definition()),
    "commit": Verb("add a revision", commit, SCHEMA, *_definition()),
    "rollback": Verb(
        "add a revision like an earlier one",
        rollback,
        SCHEMA,
        flag("--revision-id", "the earlier revision", required=True),
    ),
    "delete": Verb("delete schemas with all their revisions", delete_each("schemas"), SCHEMAS),
    "delete-revision": call_one(
        "delete one revision", schema_name, "DELETE :deleteRevision", "Deleted revision [{name}].", SCHEMA
    ),
    "describe": Verb("show a schema", describe_by(schema_name), SCHEMA),
    "list": list_all("schemas", ("name", "type", "revisionId")),
    "list-revisions": Verb("show the revisions of a schema", list_revisions, SCHEMA, LIMIT),
    "validate-schema": Verb("check a definition", validate_schema, *_definition()),
    "validate-message": Verb(
        "check a message against a schema",
        validate_message,
        flag("--message", "the message itself"),
        flag("--message-file", "a file with the message", metavar="FILE"),
        flag("--message-encoding", "json or binary", choices=ENCODINGS, default="json"),
        flag("--schema-name", "a schema that exists; without it, give a definition"),
        *_definition(required=False),
    ),
    **policy_verbs(SCHEMA, schema_name),
}
