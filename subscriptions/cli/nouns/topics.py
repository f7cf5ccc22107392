"""`pubsub topics`."""

from __future__ import annotations

import base64
import sys
from typing import Any

from subscriptions.cli import labels, transforms
from subscriptions.cli.client import Client
from subscriptions.cli.policies import policy_verbs
from subscriptions.cli.resources import delete_each, describe_by
from subscriptions.cli.values import duration, full_name, pairs
from subscriptions.cli.verbs import Options, Result, Verb, flag

TOPIC = flag("topic", "an id such as orders, or projects/shop/topics/orders")
TOPICS = flag("topics", "ids, or full names", nargs="+", metavar="topic")
RETENTION = flag(
    "--message-retention-duration",
    "how long messages are kept for seeks: 10m to 31d",
    type=duration,
    metavar="DURATION",
)
LIMIT = flag("--limit", "the maximum number of items", type=int)


def topic_name(options: Options) -> str:
    return full_name(options["topic"], "topics", options["project"])


def create(client: Client, options: Options) -> Result:
    created = []
    for topic in options["topics"]:
        body = {
            "labels": options["labels"],
            "messageRetentionDuration": options["message_retention_duration"],
            **transforms.fields_of(options),
        }
        name = full_name(topic, "topics", options["project"])
        created.append(client.call("PUT", name, {field: value for field, value in body.items() if value}))
    return Result(_single_or_all(created), note=_notes("Created topic", created), form="none")


def update(client: Client, options: Options) -> Result:
    name = topic_name(options)
    fields: dict[str, Any] = transforms.fields_of(options)
    if options["clear_message_transforms"]:
        fields.setdefault("messageTransforms", [])
    if labels.are_changed(options):
        fields["labels"] = labels.changed(client.call("GET", name).get("labels", {}), options)
    if options["message_retention_duration"] or options["clear_message_retention_duration"]:
        fields["messageRetentionDuration"] = options["message_retention_duration"]
    body = {"topic": {key: value for key, value in fields.items() if value}, "updateMask": ",".join(fields)}
    return Result(client.call("PATCH", name, body), note=f"Updated topic [{name}].")


def list_all(client: Client, options: Options) -> Result:
    return Result(client.pages(f"projects/{options['project']}/topics", "topics", limit=options["limit"]))


def list_subscriptions(client: Client, options: Options) -> Result:
    return Result(client.pages(f"{topic_name(options)}/subscriptions", "subscriptions", limit=options["limit"]))


def publish(client: Client, options: Options) -> Result:
    text = sys.stdin.read() if options["message"] == "-" else options["message"] or ""
    message = {
        "data": base64.b64encode(text.encode()).decode(),
        "attributes": options["attribute"],
        "orderingKey": options["ordering_key"],
    }
    body = {"messages": [{field: value for field, value in message.items() if value}]}
    return Result(client.call("POST", f"{topic_name(options)}:publish", body), columns=("messageIds",))


def detach(client: Client, options: Options) -> Result:
    name = full_name(options["subscription"], "subscriptions", options["project"])
    client.call("POST", f"{name}:detach")
    return Result(note=f"Detached subscription [{name}].")


def _single_or_all(rows: list[Any]) -> Any:
    return rows[0] if len(rows) == 1 else rows


def _notes(words: str, rows: list[Any]) -> str:
    return "\n".join(f"{words} [{row['name']}]." for row in rows)


VERBS = {
    "create": Verb("create topics", create, (TOPICS, *labels.ON_CREATE, RETENTION, transforms.FILE)),
    "update": Verb(
        "change a topic",
        update,
        (
            TOPIC,
            *labels.ON_UPDATE,
            RETENTION,
            flag(
                "--clear-message-retention-duration",
                "keep messages only until all subscriptions have them",
                action="store_true",
            ),
            transforms.FILE,
            transforms.CLEAR,
        ),
    ),
    "delete": Verb("delete topics, but not their subscriptions", delete_each("topics"), (TOPICS,)),
    "describe": Verb("show a topic", describe_by(topic_name), (TOPIC,)),
    "list": Verb("show a project's topics", list_all, (LIMIT,)),
    "list-subscriptions": Verb("show the names of a topic's subscriptions", list_subscriptions, (TOPIC, LIMIT)),
    "publish": Verb(
        "publish one message",
        publish,
        (
            TOPIC,
            flag("--message", "the text; - reads it from standard input"),
            flag("--attribute", "attributes: a=b,c=d", type=pairs, metavar="KEY=VALUE,..."),
            flag("--ordering-key", "messages of a key are delivered in order"),
        ),
    ),
    "detach-subscription": Verb("detach a subscription from its topic", detach, (flag("subscription"),)),
    **policy_verbs(TOPIC, topic_name),
}
