"""The flags of labels, which are the same for every resource that has labels."""

from __future__ import annotations

from subscriptions.cli.client import Client, Fields
from subscriptions.cli.values import pairs, words
from subscriptions.cli.verbs import Options, flag

ON_CREATE = (flag("--labels", "labels: a=b,c=d", type=pairs, metavar="KEY=VALUE,..."),)
ON_UPDATE = (
    flag("--update-labels", "labels to add or to change", type=pairs, metavar="KEY=VALUE,..."),
    flag("--remove-labels", "keys of labels to remove", type=words, metavar="KEY,..."),
    flag("--clear-labels", "remove all labels", action="store_true"),
)


def fields_of(client: Client, name: str, options: Options) -> Fields:
    """Return the field that the flags change, from the labels that the resource has."""
    added, removed, is_cleared = options["update_labels"] or {}, options["remove_labels"] or [], options["clear_labels"]
    if not (added or removed or is_cleared):
        return {}
    labels = {} if is_cleared else client.call("GET", name).get("labels", {})
    return {"labels": {key: value for key, value in {**labels, **added}.items() if key not in removed}}
