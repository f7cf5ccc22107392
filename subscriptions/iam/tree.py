"""The resource tree: what a full name stands for, and what lies above it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from django.apps import apps
from django.db.models import Model

from pushhub.common import names
from pushhub.common.errors import InvalidArgument, NotFound, clipped
from subscriptions import selectors
from subscriptions.models import Folder, Organization, Project

#: A row that has a policy, a name and a place in the tree.
Resource = Model

#: Far deeper than Google allows (10); a loop, which no service makes, ends here too.
MAX_DEPTH = 50


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of resource: its word in the policy table, its service, and what its permissions begin with."""

    word: str
    host: str
    permissions: str


KINDS = {
    "Organization": Kind("organization", "cloudresourcemanager", "resourcemanager.organizations"),
    "Folder": Kind("folder", "cloudresourcemanager", "resourcemanager.folders"),
    "Project": Kind("project", "cloudresourcemanager", "resourcemanager.projects"),
    "Topic": Kind("topic", "pubsub", "pubsub.topics"),
    "Subscription": Kind("subscription", "pubsub", "pubsub.subscriptions"),
    "Snapshot": Kind("snapshot", "pubsub", "pubsub.snapshots"),
    "Schema": Kind("schema", "pubsub", "pubsub.schemas"),
    "ServiceAccount": Kind("serviceAccount", "iam", "iam.serviceAccounts"),
}
#: By what follows the project in a name, or begins it.
KIND_OF_COLLECTION = {
    "organizations": KINDS["Organization"],
    "folders": KINDS["Folder"],
    "projects": KINDS["Project"],
    "topics": KINDS["Topic"],
    "subscriptions": KINDS["Subscription"],
    "snapshots": KINDS["Snapshot"],
    "schemas": KINDS["Schema"],
    "serviceAccounts": KINDS["ServiceAccount"],
}


def kind_of(resource: Resource) -> Kind:
    return KINDS[type(resource).__name__]


def kind_of_name(name: str, *, field: str = "resource") -> Kind:
    """The kind that a full name is of, whether or not there is such a resource; InvalidArgument if it is no name."""
    parts = name.split("/")
    collection = parts[2] if len(parts) == 4 else parts[0] if len(parts) == 2 else ""
    kind = KIND_OF_COLLECTION.get(collection)
    if kind is None or (len(parts) == 4) == (collection in ("organizations", "folders", "projects")):
        raise names.invalid_name(name, field=field)
    return kind


def is_name(name: str) -> bool:
    """Whether this is the full name of something that has a policy."""
    try:
        kind_of_name(name)
    except InvalidArgument:
        return False
    return True


def full_name(name: str) -> str:
    """`//pubsub.googleapis.com/projects/p/topics/t`: the name as errors and audit entries show it."""
    return f"//{kind_of_name(name).host}.googleapis.com/{clipped(name)}"


def name_of(resource: Resource) -> str:
    name: str = resource.name  # type: ignore[attr-defined]
    return name


def parent_of(resource: Resource) -> Resource | None:
    if isinstance(resource, (Project, Folder)):
        return resource.parent
    if isinstance(resource, Organization):
        return None
    project: Project = resource.project  # type: ignore[attr-defined]
    return project


def lineage(resource: Resource) -> list[Resource]:
    """The resource and all that lie above it, nearest first."""
    found: list[Resource] = []
    above: Resource | None = resource
    while above is not None and len(found) < MAX_DEPTH:
        found.append(above)
        above = parent_of(above)
    return found


def resource_get(name: str, *, field: str = "resource") -> Resource:
    """The row of a full name of any kind; NotFound, or InvalidArgument if it is no such name."""
    kind = kind_of_name(name, field=field)
    return _GETTERS[kind.word](name, field)


def resource_find(name: str, *, field: str = "resource") -> Resource | None:
    """As `resource_get`, but None where there is none."""
    try:
        return resource_get(name, field=field)
    except NotFound:
        return None


def resource_or_above(name: str, *, field: str = "resource") -> Resource | None:
    """The row of a full name or, where there is none, the project around it: who may look there may know that."""
    return resource_find(name, field=field) or above(name)


def resource_of(kind: str, pk: int) -> Resource | None:
    """The row that a policy is of, which is stored by its kind and primary key."""
    model = next((name for name, one in KINDS.items() if one.word == kind), "")
    found = apps.get_app_config("subscriptions").models.get(model.lower())
    return None if found is None else found._default_manager.filter(pk=pk).first()


def above(name: str) -> Resource | None:
    """The project that a name lies in, where that exists: who may look into it may know what is missing there."""
    parts = name.split("/")
    if len(parts) != 4 or parts[1] == "-":
        return None
    return resource_find("/".join(parts[:2]))


def _project(name: str, field: str) -> Resource:
    if name == "projects/-":
        raise selectors.resource_missing("-", field=field)
    return selectors.project_get(project=names.parse_project(name, field=field))


def _numbered(model: type[Organization] | type[Folder]) -> Callable[[str, str], Resource]:
    def get(name: str, field: str) -> Resource:
        number = name.partition("/")[2]
        if not (number.isascii() and number.isdecimal() and len(number) < 19):
            raise names.invalid_name(name, field=field)
        found = model.objects.filter(number=int(number)).first()
        if found is None:
            raise selectors.resource_missing(number, field=field)
        return found

    return get


def _owned(model_name: str, id_field: str, collection: str) -> Callable[[str, str], Resource]:
    """For the kinds whose ids follow the rule of topics."""

    def get(name: str, field: str) -> Resource:
        name = name.partition("@")[0]  # a schema's revision shares the schema's policy
        project, resource_id = names.parse_owned(name, collection=collection, field=field)
        model: type[Model] | None = apps.get_app_config("subscriptions").models.get(model_name.lower())
        if model is None:
            raise selectors.resource_missing(resource_id, field=field)
        found = selectors.owned_row(model, project=project, **{id_field: resource_id})
        if found is None:
            raise selectors.resource_missing(resource_id, field=field)
        return found

    return get


_GETTERS: dict[str, Callable[[str, str], Resource]] = {
    "organization": _numbered(Organization),
    "folder": _numbered(Folder),
    "project": _project,
    "topic": _owned("Topic", "topic_id", "topics"),
    "subscription": _owned("Subscription", "subscription_id", "subscriptions"),
    "snapshot": _owned("Snapshot", "snapshot_id", "snapshots"),
    "schema": _owned("Schema", "schema_id", "schemas"),
    "serviceAccount": lambda name, field: selectors.service_account_get(name=name),
}
