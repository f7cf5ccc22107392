"""`pubsub snapshots`."""

from __future__ import annotations

from subscriptions.cli import labels
from subscriptions.cli.client import Client
from subscriptions.cli.policies import policy_verbs
from subscriptions.cli.resources import delete_each, describe_by, list_all, name_by
from subscriptions.cli.verbs import Options, Result, Verb, flag, mask_of

SNAPSHOT = flag("snapshot", "an id, or projects/shop/snapshots/before")
SNAPSHOTS = flag("snapshots", "ids, or full names", nargs="+", metavar="snapshot")
snapshot_name, subscription_name = name_by("snapshot"), name_by("subscription")


def create(client: Client, options: Options) -> Result:
    body = {"subscription": subscription_name(options), "labels": options["labels"] or {}}
    snapshot = client.call("PUT", snapshot_name(options), body)
    return Result(snapshot, note=f"Created snapshot [{snapshot['name']}].")


def update(client: Client, options: Options) -> Result:
    name = snapshot_name(options)
    fields = labels.fields_of(client, name, options)
    body = {"snapshot": fields, "updateMask": mask_of([*fields])}
    return Result(client.call("PATCH", name, body), note=f"Updated snapshot [{name}].")


VERBS = {
    "create": Verb(
        "create a snapshot of a subscription's backlog",
        create,
        SNAPSHOT,
        flag("--subscription", "the subscription with the backlog", required=True),
        flag("--subscription-project", "the project of --subscription", metavar="PROJECT"),
        *labels.ON_CREATE,
    ),
    "update": Verb("change its labels", update, SNAPSHOT, *labels.ON_UPDATE),
    "delete": Verb("delete snapshots", delete_each("snapshots"), SNAPSHOTS),
    "describe": Verb("show a snapshot", describe_by(snapshot_name), SNAPSHOT),
    "list": list_all("snapshots", ("name", "topic", "expireTime")),
    **policy_verbs(SNAPSHOT, snapshot_name),
}
