"""`pubsub topics`."""

from __future__ import annotations

import base64
import os
import sys
from typing import Any

from subscriptions.cli import labels, transforms
from subscriptions.cli.client import Client
from subscriptions.cli.policies import policy_verbs
from subscriptions.cli.resources import LIMIT, create_each, delete_each, describe_by, list_all, name_by, names_in
from subscriptions.cli.values import duration, full_name, pairs, words
from subscriptions.cli.verbs import Options, Result, Verb, check_needs, cleared_by, flag, mask_of

TOPIC = flag("topic", "an id such as orders, or projects/shop/topics/orders")
TOPICS = flag("topics", "ids, or full names", nargs="+", metavar="topic")
SUBSCRIPTION = flag("subscription", "an id such as worker, or projects/shop/subscriptions/worker")
RETENTION = flag("--message-retention-duration", "how long messages are kept for seeks: 10m to 31d", type=duration)
SCHEMA = flag("--schema", "what messages must fit: an id, or a full name")
SCHEMA_SETTINGS = (
    flag("--schema-project", "the project of --schema", metavar="PROJECT"),
    flag("--message-encoding", "of messages with a schema: json or binary", type=str.upper, metavar="ENCODING"),
    flag("--first-revision-id", "the oldest revision of --schema that messages may fit", metavar="REVISION"),
    flag("--last-revision-id", "the newest revision of --schema that messages may fit", metavar="REVISION"),
)
SETTINGS = (
    RETENTION,
    SCHEMA,
    *SCHEMA_SETTINGS,
    flag("--message-storage-policy-allowed-regions", "where messages may be stored", type=words, metavar="REGION,..."),
    transforms.FILE,
)
#: By field, the flag that clears it, and those that set it.
CLEARED = {
    "messageRetentionDuration": (
        flag(
            "--clear-message-retention-duration",
            "keep messages only until all subscriptions have them",
            action="store_true",
        ),
        [RETENTION],
    ),
    "schemaSettings": (flag("--clear-schema-settings", "accept messages of any form", action="store_true"), [SCHEMA]),
    "messageTransforms": (transforms.CLEAR, [transforms.FILE]),
}
CLEAR = tuple(clear for clear, _ in CLEARED.values())
topic_name, schema_name = name_by("topic"), name_by("schema")


def fields_of(options: Options) -> dict[str, Any]:
    check_needs(options, "--schema", SCHEMA_SETTINGS)
    settings = {
        "encoding": options["message_encoding"],
        "firstRevisionId": options["first_revision_id"],
        "lastRevisionId": options["last_revision_id"],
    }
    if options["schema"]:
        settings["schema"] = schema_name(options)
    regions = options["message_storage_policy_allowed_regions"]
    fields = {
        "messageRetentionDuration": options["message_retention_duration"],
        "schemaSettings": {field: value for field, value in settings.items() if value},
        "messageStoragePolicy": {"allowedPersistenceRegions": regions} if regions else None,
        **transforms.fields_of(options),
    }
    return {field: value for field, value in fields.items() if value}


def create(client: Client, options: Options) -> Result:
    body = fields_of(options) | ({"labels": options["labels"]} if options["labels"] else {})
    return create_each(client, names_in("topics", options), body, noun="topic")


def update(client: Client, options: Options) -> Result:
    name = topic_name(options)
    fields = fields_of(options) | labels.fields_of(client, name, options)
    body = {"topic": fields, "updateMask": mask_of([*fields, *cleared_by(options, CLEARED)])}
    return Result(client.call("PATCH", name, body), note=f"Updated topic [{name}].")


def list_subscriptions(client: Client, options: Options) -> Result:
    return Result(client.pages(f"{topic_name(options)}/subscriptions", "subscriptions", limit=options["limit"]))


def publish(client: Client, options: Options) -> Result:
    data = sys.stdin.buffer.read() if options["message"] == "-" else os.fsencode(options["message"] or "")
    message = {
        "data": base64.b64encode(data).decode(),
        "attributes": options["attribute"],
        "orderingKey": options["ordering_key"],
    }
    body = {"messages": [{field: value for field, value in message.items() if value}]}
    return Result(client.call("POST", f"{topic_name(options)}:publish", body), columns=("messageIds",))


def detach(client: Client, options: Options) -> Result:
    name = full_name(options["subscription"], "subscriptions", options["project"])
    client.call("POST", f"{name}:detach")
    return Result(note=f"Detached subscription [{name}].")


VERBS = {
    "create": Verb("create topics", create, TOPICS, *labels.ON_CREATE, *SETTINGS),
    "update": Verb("change a topic", update, TOPIC, *labels.ON_UPDATE, *SETTINGS, *CLEAR),
    "delete": Verb("delete topics, but not their subscriptions", delete_each("topics"), TOPICS),
    "describe": Verb("show a topic", describe_by(topic_name), TOPIC),
    "list": list_all("topics"),
    "list-subscriptions": Verb("show the names of a topic's subscriptions", list_subscriptions, TOPIC, LIMIT),
    "publish": Verb(
        "publish one message",
        publish,
        TOPIC,
        flag("--message", "the text; - reads it from standard input"),
        flag("--attribute", "attributes: a=b,c=d", type=pairs, metavar="KEY=VALUE,..."),
        flag("--ordering-key", "messages of a key are delivered in order"),
    ),
    "detach-subscription": Verb("detach a subscription from its topic", detach, SUBSCRIPTION),
    **policy_verbs(TOPIC, topic_name),
}
