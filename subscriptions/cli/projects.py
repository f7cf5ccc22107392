"""`projects`."""

from __future__ import annotations

from subscriptions.cli.client import Client
from subscriptions.cli.policies import policy_verbs
from subscriptions.cli.topics import LIMIT
from subscriptions.cli.verbs import Options, Said, Verb, flag

PROJECT = flag("project_id", "the project's id or number", metavar="PROJECT_ID")


def project_name(options: Options) -> str:
    return f"projects/{options['project_id']}"


def create(client: Client, options: Options) -> Said:
    body = {"projectId": options["project_id"], "name": options["name"] or ""}
    for kind in ("organization", "folder"):
        if options[kind]:
            body["parent"] = {"type": kind, "id": options[kind]}
    client.call("POST", "projects", {field: value for field, value in body.items() if value})
    return Said(note=f"Created [projects/{options['project_id']}].")


def describe(client: Client, options: Options) -> Said:
    return Said(client.call("GET", project_name(options)))


def list_all(client: Client, options: Options) -> Said:
    found = client.pages("projects", "projects", limit=options["limit"])
    return Said(found, columns=("projectId", "name", "projectNumber"), form="table")


def delete(client: Client, options: Options) -> Said:
    client.call("DELETE", project_name(options))
    return Said(note=f"Deleted [{project_name(options)}].")


def undelete(client: Client, options: Options) -> Said:
    client.call("POST", f"{project_name(options)}:undelete")
    return Said(note=f"Restored [{project_name(options)}].")


VERBS = {
    "create": Verb(
        "make a project", create, (PROJECT, flag("--name"), flag("--organization", "its number"), flag("--folder"))
    ),
    "describe": Verb("show a project", describe, (PROJECT,)),
    "list": Verb("show the projects that you may see", list_all, (LIMIT,)),
    "delete": Verb("mark a project as deleted", delete, (PROJECT,)),
    "undelete": Verb("take the mark back", undelete, (PROJECT,)),
    **policy_verbs(PROJECT, project_name, read="POST"),
}
