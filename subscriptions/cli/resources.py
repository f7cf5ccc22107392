"""The verbs that are the same for most resources."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from subscriptions.cli.client import Client, Fields
from subscriptions.cli.program import each
from subscriptions.cli.values import count, full_name
from subscriptions.cli.verbs import Flag, Options, Result, Verb, flag

Run = Callable[[Client, Options], Result]
#: Returns the name of the resource that the options name.
Name = Callable[[Options], str]

LIMIT = flag("--limit", "the maximum number of items", type=count)


def name_by(argument: str) -> Name:
    """Return what names the resource of an argument such as `topic`, which is an id or a full name.

    An id is of the project of `--topic-project`, or else of `--project`.
    """

    def name_of(options: Options) -> str:
        project = options.get(f"{argument}_project") or options["project"]
        return full_name(options[argument], f"{argument}s", project)

    return name_of


def names_in(collection: str, options: Options) -> list[str]:
    """Return the full names of an argument such as `topics`."""
    return [full_name(name, collection, options["project"]) for name in options[collection]]


def describe_by(name_of: Name) -> Run:
    """Return the function of a verb that shows the resource with the name `name_of(options)`."""
    return lambda client, options: Result(client.call("GET", name_of(options)))


def list_all(collection: str, columns: Sequence[str] = ("name",)) -> Verb:
    """Return the verb that shows the resources of a collection of the project."""

    def show(client: Client, options: Options) -> Result:
        rows = client.pages(f"projects/{options['project']}/{collection}", collection, limit=options["limit"])
        return Result(rows, columns=columns)

    return Verb(f"show a project's {collection}", show, LIMIT)


def create_each(client: Client, names: Sequence[str], body: Fields, *, noun: str) -> Result:
    """Create each of the named resources from the same fields, even if others fail."""
    created: list[Any] = []
    result = each(names, lambda name: created.append(client.call("PUT", name, body)), done=f"Created {noun}")
    value = created if len(names) > 1 else next(iter(created), None)
    return replace(result, value=value, form="none")


def call_one(help: str, name_of: Name, call: str, done: str, *flags: Flag) -> Verb:
    """Return the verb that makes a call such as `POST :undelete` of one resource; `done` may name it and options."""
    method, _, suffix = call.partition(" ")

    def run(client: Client, options: Options) -> Result:
        client.call(method, f"{name_of(options)}{suffix}")
        return Result(note=done.format_map({**options, "name": name_of(options)}))

    return Verb(help, run, *flags)


def call_each(collection: str, done: str, method: str = "POST", verb: str = "") -> Run:
    """Return the function of a verb that calls a method such as `:pause` of each named resource."""

    def call(client: Client, options: Options) -> Result:
        names = names_in(collection, options)
        return each(names, lambda name: client.call(method, f"{name}{verb}"), done=done)

    return call


def delete_each(collection: str) -> Run:
    """Return the function of a verb that deletes the resources of a collection such as `topics`."""
    return call_each(collection, f"Deleted {collection.removesuffix('s')}", "DELETE")
