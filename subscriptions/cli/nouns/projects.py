"""`projects`."""

from __future__ import annotations

from subscriptions.cli.client import Client
from subscriptions.cli.policies import policy_verbs
from subscriptions.cli.resources import LIMIT, call_one, describe_by
from subscriptions.cli.verbs import Options, Result, Verb, check_either, flag

PROJECT = flag("project_id", "the project's id or number", metavar="PROJECT_ID")
NAME = flag("--name", "its name for people")
ORGANIZATION = flag("--organization", "the number of the organization that it belongs to")
FOLDER = flag("--folder", "the number of the folder that it belongs to")


def project_name(options: Options) -> str:
    return f"projects/{options['project_id']}"


def create(client: Client, options: Options) -> Result:
    check_either(options, [ORGANIZATION], [FOLDER])
    body = {"projectId": options["project_id"], "name": options["name"] or ""}
    for kind in ("organization", "folder"):
        if options[kind]:
            body["parent"] = {"type": kind, "id": options[kind]}
    client.call("POST", "projects", {field: value for field, value in body.items() if value})
    return Result(note=f"Created [projects/{options['project_id']}].")


def list_all(client: Client, options: Options) -> Result:
    projects = client.pages("projects", "projects", limit=options["limit"])
    return Result(projects, columns=("projectId", "name", "projectNumber"), form="table")


VERBS = {
    "create": Verb("create a project", create, PROJECT, NAME, ORGANIZATION, FOLDER),
    "describe": Verb("show a project", describe_by(project_name), PROJECT),
    "list": Verb("show the projects that you may see", list_all, LIMIT),
    "delete": call_one("mark a project as deleted", project_name, "DELETE", "Deleted [{name}].", PROJECT),
    "undelete": call_one("undelete a project", project_name, "POST :undelete", "Restored [{name}].", PROJECT),
    **policy_verbs(PROJECT, project_name, read="POST"),
}
