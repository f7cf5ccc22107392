"""The verbs `describe` and `delete`, which are the same for most resources."""

from __future__ import annotations

from collections.abc import Callable

from subscriptions.cli.client import Client
from subscriptions.cli.program import each
from subscriptions.cli.values import full_name
from subscriptions.cli.verbs import Options, Result

Run = Callable[[Client, Options], Result]


def describe_by(name_of: Callable[[Options], str]) -> Run:
    """Return the function of a verb that shows the resource with the name `name_of(options)`."""
    return lambda client, options: Result(client.call("GET", name_of(options)))


def delete_each(collection: str) -> Run:
    """Return the function of a verb that deletes the resources of a collection such as `topics`."""

    def delete(client: Client, options: Options) -> Result:
        names = [full_name(name, collection, options["project"]) for name in options[collection]]
        return each(names, lambda name: client.call("DELETE", name), done=f"Deleted {collection.removesuffix('s')}")

    return delete
