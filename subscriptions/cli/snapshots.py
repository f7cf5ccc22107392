"""`pubsub snapshots`."""

from __future__ import annotations

from subscriptions.cli import labels
from subscriptions.cli.client import Client
from subscriptions.cli.policies import policy_verbs
from subscriptions.cli.topics import LIMIT
from subscriptions.cli.values import full_name
from subscriptions.cli.verbs import Options, Result, Verb, flag

SNAPSHOT = flag("snapshot", "an id, or projects/shop/snapshots/before")


def snapshot_name(options: Options) -> str:
    return full_name(options["snapshot"], "snapshots", options["project"])


def create(client: Client, options: Options) -> Result:
    project = options["subscription_project"] or options["project"]
    body = {
        "subscription": full_name(options["subscription"], "subscriptions", project),
        "labels": options["labels"] or {},
    }
    snapshot = client.call("PUT", snapshot_name(options), body)
    return Result(snapshot, note=f"Created snapshot [{snapshot['name']}].")


def update(client: Client, options: Options) -> Result:
    name = snapshot_name(options)
    wanted = labels.changed(client.call("GET", name).get("labels", {}), options)
    body = {"snapshot": {"labels": wanted}, "updateMask": "labels"}
    return Result(client.call("PATCH", name, body), note=f"Updated snapshot [{name}].")


def delete(client: Client, options: Options) -> Result:
    client.call("DELETE", snapshot_name(options))
    return Result(note=f"Deleted snapshot [{snapshot_name(options)}].")


def describe(client: Client, options: Options) -> Result:
    return Result(client.call("GET", snapshot_name(options)))


def list_all(client: Client, options: Options) -> Result:
    snapshots = client.pages(f"projects/{options['project']}/snapshots", "snapshots", limit=options["limit"])
    return Result(snapshots, columns=("name", "topic", "expireTime"))


VERBS = {
    "create": Verb(
        "create a snapshot of a subscription's backlog",
        create,
        (
            SNAPSHOT,
            flag("--subscription", "the subscription with the backlog", required=True),
            flag("--subscription-project", metavar="PROJECT"),
            *labels.ON_CREATE,
        ),
    ),
    "update": Verb("change the labels of a snapshot", update, (SNAPSHOT, *labels.ON_UPDATE)),
    "delete": Verb("delete a snapshot", delete, (SNAPSHOT,)),
    "describe": Verb("show a snapshot", describe, (SNAPSHOT,)),
    "list": Verb("show a project's snapshots", list_all, (LIMIT,)),
    **policy_verbs(SNAPSHOT, snapshot_name),
}
