"""The resource tree: which row a full name stands for, and what is above it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from django.apps import apps
from django.db.models import Model

from pushhub.common import names
from pushhub.common.decimals import read_decimal
from pushhub.common.errors import InvalidArgument, NotFound, clipped
from pushhub.common.replica import from_primary, primary_row
from pushhub.common.rows import row_or_none
from subscriptions import selectors
from subscriptions.models import Folder, Organization, Project, Snapshot, Subscription, Topic
from subscriptions.models.schemas import Schema

#: A row that has a policy, a name and a place in the tree.
Resource = Model

#: Far deeper than Google allows (10). It also ends a loop, which no service creates.
MAX_DEPTH = 50


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of resource: its name in the policy table, its service, and the prefix of its permissions."""

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
#: By the collection in a full name: the first part of a short name, the part behind the project in a longer one.
KIND_OF_COLLECTION = {f"{kind.word}s": kind for kind in KINDS.values()}


def kind_of(resource: Resource) -> Kind:
    return KINDS[type(resource).__name__]


def kind_of_name(name: str, *, field: str = "resource") -> Kind:
    """Return the kind of a full name, whether or not the resource exists; InvalidArgument for a malformed name."""
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
    """Return the name as errors and audit entries show it: `//pubsub.googleapis.com/projects/p/topics/t`."""
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
    """Return the resource and everything above it, nearest first."""
    resources: list[Resource] = []
    above: Resource | None = primary_row(resource)  # a page's row may not know yet that its project was moved
    while above is not None and len(resources) < MAX_DEPTH:
        resources.append(above)
        above = parent_of(above)
    return resources


@from_primary
def get_resource(name: str, *, field: str = "resource") -> Resource:
    """Return the row of a full name of any kind; NotFound, or InvalidArgument for a malformed name."""
    kind = kind_of_name(name, field=field)
    return _GETTERS[kind.word](name, field)


def find_resource(name: str, *, field: str = "resource") -> Resource | None:
    """Do as `get_resource`, but return None if there is no such resource."""
    try:
        return get_resource(name, field=field)
    except NotFound:
        return None


def resource_or_above(name: str, *, field: str = "resource") -> Resource | None:
    """Return the row of a full name or, if it doesn't exist, the project around it.

    Callers who hold a permission on the project may learn what is missing in it.
    """
    return find_resource(name, field=field) or above(name)


def resource_of(kind: str, pk: int) -> Resource | None:
    """Return the row that a policy belongs to, which is stored by its kind and primary key."""
    model_name = next((name for name, candidate in KINDS.items() if candidate.word == kind), "")
    model = apps.get_app_config("subscriptions").models.get(model_name.lower())
    return None if model is None else row_or_none(model._default_manager.filter(pk=pk))


def above(name: str) -> Resource | None:
    """Return the project that a name lies in, if that exists."""
    parts = name.split("/")
    if len(parts) != 4 or parts[1] == "-":
        return None
    return find_resource("/".join(parts[:2]))


def _project(name: str, field: str) -> Resource:
    if name == "projects/-":
        raise selectors.resource_missing("-", field=field)
    return selectors.get_project(project=names.parse_project(name, field=field))


def _numbered(model: type[Organization] | type[Folder]) -> Callable[[str, str], Resource]:
    def get(name: str, field: str) -> Resource:
        text = name.partition("/")[2]
        number = read_decimal(text, most=names.LAST_NUMBER)
        if number is None:
            raise names.invalid_name(name, field=field)
        row = row_or_none(model.objects.filter(number=number))
        if row is None:
            raise selectors.resource_missing(text, field=field)
        return row

    return get


def _owned(model: type[Model]) -> Callable[[str, str], Resource]:
    """Return the getter of a kind whose ids follow the rule of topics."""
    word = KINDS[model.__name__].word

    def get(name: str, field: str) -> Resource:
        name = name.partition("@")[0]  # a schema's revision shares the schema's policy
        project, resource_id = names.parse_owned(name, collection=f"{word}s", field=field)
        row = selectors.owned_row(model, project=project, **{f"{word}_id": resource_id})
        if row is None:
            raise selectors.resource_missing(resource_id, field=field)
        return row

    return get


_GETTERS: dict[str, Callable[[str, str], Resource]] = {
    "organization": _numbered(Organization),
    "folder": _numbered(Folder),
    "project": _project,
    "topic": _owned(Topic),
    "subscription": _owned(Subscription),
    "snapshot": _owned(Snapshot),
    "schema": _owned(Schema),
    "serviceAccount": lambda name, field: selectors.get_service_account(name=name),
}
