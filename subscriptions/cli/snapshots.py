"""`pubsub snapshots`."""

from __future__ import annotations

from subscriptions.cli import labels
from subscriptions.cli.client import Client
from subscriptions.cli.policies import policy_verbs
from subscriptions.cli.program import each
from subscriptions.cli.topics import LIMIT
from subscriptions.cli.values import full_name
from subscriptions.cli.verbs import Options, Said, Verb, flag

SNAPSHOT = flag("snapshot", "an id, or projects/shop/snapshots/before")
SNAPSHOTS = flag("snapshots", "ids, or full names", nargs="+", metavar="snapshot")


def snapshot_name(options: Options) -> str:
    return full_name(options["snapshot"], "snapshots", options["project"])


def create(client: Client, options: Options) -> Said:
    project = options["subscription_project"] or options["project"]
    body = {
        "subscription": full_name(options["subscription"], "subscriptions", project),
        "labels": options["labels"] or {},
    }
    made = client.call("PUT", snapshot_name(options), body)
    return Said(made, note=f"Created snapshot [{made['name']}].")


def update(client: Client, options: Options) -> Said:
    name = snapshot_name(options)
    wanted = labels.changed(client.call("GET", name).get("labels", {}), options)
    body = {"snapshot": {"labels": wanted}, "updateMask": "labels"}
    return Said(client.call("PATCH", name, body), note=f"Updated snapshot [{name}].")


def delete(client: Client, options: Options) -> Said:
    names = [full_name(name, "snapshots", options["project"]) for name in options["snapshots"]]
    return each(names, lambda name: client.call("DELETE", name), done="Deleted snapshot")


def describe(client: Client, options: Options) -> Said:
    return Said(client.call("GET", snapshot_name(options)))


def list_all(client: Client, options: Options) -> Said:
    found = client.pages(f"projects/{options['project']}/snapshots", "snapshots", limit=options["limit"])
    return Said(found, columns=("name", "topic", "expireTime"))


VERBS = {
    "create": Verb(
        "keep a subscription's backlog to go back to",
        create,
        (
            SNAPSHOT,
            flag("--subscription", "whose backlog", required=True),
            flag("--subscription-project", metavar="PROJECT"),
            *labels.ON_CREATE,
        ),
    ),
    "update": Verb("change its labels", update, (SNAPSHOT, *labels.ON_UPDATE)),
    "delete": Verb("delete snapshots", delete, (SNAPSHOTS,)),
    "describe": Verb("show a snapshot", describe, (SNAPSHOT,)),
    "list": Verb("show a project's snapshots", list_all, (LIMIT,)),
    **policy_verbs(SNAPSHOT, snapshot_name),
}
