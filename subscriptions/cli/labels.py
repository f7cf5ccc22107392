"""The flags of labels, which are the same for every resource that has labels."""

from __future__ import annotations

from collections.abc import Mapping

from subscriptions.cli.values import pairs, words
from subscriptions.cli.verbs import Options, flag

ON_CREATE = (flag("--labels", "labels: a=b,c=d", type=pairs, metavar="KEY=VALUE,..."),)
ON_UPDATE = (
    flag("--update-labels", "labels to add or to change", type=pairs, metavar="KEY=VALUE,..."),
    flag("--remove-labels", "keys of labels to remove", type=words, metavar="KEY,..."),
    flag("--clear-labels", "remove all labels", action="store_true"),
)


def are_changed(options: Options) -> bool:
    return bool(options["update_labels"] or options["remove_labels"] or options["clear_labels"])


def changed(present: Mapping[str, str], options: Options) -> dict[str, str]:
    """Return the labels after an update."""
    labels = {**({} if options["clear_labels"] else present), **(options["update_labels"] or {})}
    return {key: value for key, value in labels.items() if key not in (options["remove_labels"] or [])}
