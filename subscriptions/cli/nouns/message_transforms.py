"""`pubsub message-transforms`."""

from __future__ import annotations

import base64
from typing import Any

from subscriptions.cli.client import Client
from subscriptions.cli.errors import CliError
from subscriptions.cli.transforms import FILE, transforms_of
from subscriptions.cli.values import content_of, full_name, pairs, project_name
from subscriptions.cli.verbs import Options, Result, Verb, flag


def validate(client: Client, options: Options) -> Result:
    path = options["message_transform_file"]
    transform = content_of(path)
    if isinstance(transform, list):
        if len(transform) != 1:
            raise CliError(f"{path}: not a single message transform")
        [transform] = transform
    client.call("POST", f"projects/{options['project']}:validateMessageTransform", {"messageTransform": transform})
    return Result(note="Message transform is valid.")


def test(client: Client, options: Options) -> Result:
    if options["message"] is None and not options["attribute"]:
        raise CliError("give --message, --attribute, or both")
    places = ("message_transforms_file", "subscription", "topic")
    if sum(bool(options[place]) for place in places) != 1:
        raise CliError("give one of --message-transforms-file, --subscription and --topic")
    message = {
        "data": base64.b64encode((options["message"] or "").encode()).decode(),
        "attributes": options["attribute"],
    }
    body: dict[str, Any] = {"message": {field: value for field, value in message.items() if value}}
    if options["message_transforms_file"]:
        body["messageTransforms"] = {"messageTransforms": transforms_of(options["message_transforms_file"])}
    if options["subscription"]:
        body["subscription"] = full_name(options["subscription"], "subscriptions", options["project"])
    if options["topic"]:
        body["topic"] = full_name(options["topic"], "topics", options["topic_project"] or options["project"])
    return Result(client.call("POST", f"{project_name(options['project'])}:testMessageTransforms", body))


VERBS = {
    "validate": Verb(
        "check a message transform",
        validate,
        flag(
            "--message-transform-file",
            "a file in JSON or YAML with one message transform",
            required=True,
            metavar="FILE",
        ),
    ),
    "test": Verb(
        "show what message transforms make of a message",
        test,
        flag("--message", "the text"),
        flag("--attribute", "attributes: a=b,c=d", type=pairs, metavar="KEY=VALUE,..."),
        FILE,
        flag("--subscription", "the subscription whose transforms are tried", metavar="SUBSCRIPTION"),
        flag("--topic", "the topic whose transforms are tried", metavar="TOPIC"),
        flag("--topic-project", "the project of --topic", metavar="PROJECT"),
    ),
}
