"""Projects, in the form of Resource Manager v1."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime
from typing import Any

from django.conf import settings
from django.db import transaction
from django.db.models import Q, QuerySet
from django.db.models.fields.json import KeyTextTransform
from django.db.models.lookups import Exact

from pushhub.common import names
from pushhub.common.clock import utcnow
from pushhub.common.decimals import read_decimal
from pushhub.common.errors import FailedPrecondition, InvalidArgument, clipped
from pushhub.common.principals import OPERATOR, Principal
from pushhub.common.protojson import format_timestamp
from subscriptions import selectors
from subscriptions.iam import access, grants, tree
from subscriptions.iam.visible import rows_held
from subscriptions.models import Folder, Organization, Project
from subscriptions.resources import fields
from subscriptions.resources.table import drop_falsy
from subscriptions.services import hierarchy
from subscriptions.services.rows import already_exists

#: Google's rule, stricter than what PushHub allows for local projects. Digits alone could be another project's number.
ID_PATTERN = re.compile(r"[a-z][a-z0-9-]{4,28}[a-z0-9]", re.ASCII)
GET = "resourcemanager.projects.get"
#: Of the filter of a list. SQLite refuses an expression of a thousand.
MAX_TERMS = 100


def create_project(
    *,
    project_id: str,
    parent: Organization | Folder | None = None,
    created_at: datetime | None = None,
    caller: Principal = OPERATOR,
) -> Project:
    """Create a project owned by `caller`. Only superusers create one without a parent.

    `created_at` can be in the past, because service agents of projects from before 2021-04-09 need a grant.
    """
    names.check_new_project(project_id, field="projectId")
    if parent is not None:
        access.require(caller, hierarchy.CREATE_PROJECT, parent)
    elif not access.is_root(caller):
        raise access.denied(hierarchy.CREATE_PROJECT, names.project_name(project_id))
    with transaction.atomic():
        project, is_new = _create_project(project_id, parent, created_at or utcnow(), caller)
    if not is_new:
        raise already_exists(project_id)
    return project


def ensure_project(*, project: str, caller: Principal = OPERATOR) -> Project:
    """Return the project of a name. In development, its first use creates it."""
    names.parse_project(names.project_name(project))
    if settings.DEVELOPMENT and not selectors.project_exists(project=project):
        names.check_new_project(project, field="name")
        with transaction.atomic():
            return _create_project(project, None, utcnow(), caller)[0]
    row = selectors.get_project(project=project)
    _check_active(row)
    return row


def _create_project(
    project_id: str, parent: Organization | Folder | None, created_at: datetime, caller: Principal
) -> tuple[Project, bool]:
    """Return the project and whether it is new. Ids of old projects and the emulator's may differ in case alone."""
    alike = Project.objects.filter(project_id__iexact=project_id).exclude(project_id=project_id)
    if settings.EMULATOR == "OFF" and alike.exists():
        raise already_exists(project_id)
    defaults = {"created_at": created_at, **hierarchy.parent_columns(parent)}
    project, is_new = Project.objects.get_or_create(project_id=project_id, defaults=defaults)
    if is_new:
        grants.begin_policy(project, creator=caller)
    return project, is_new


def create_project_request(*, request: object, caller: Principal = OPERATOR) -> Project:
    """Create a project. `request` is a Project with an id and, unless the caller is a superuser, a parent."""
    resource = fields.PROJECT.read(request)
    project_id = resource.get("projectId", "")
    if settings.EMULATOR == "OFF" and not ID_PATTERN.fullmatch(project_id):
        raise InvalidArgument(
            f"Invalid project id given (project_id={clipped(project_id)}). It must be 6 to 30 characters long and "
            "match [a-z]([-a-z0-9]*[a-z0-9]).",
            field="projectId",
        )
    parent = hierarchy.get_parent(_parent_name(resource.get("parent", {})), caller=caller, field="parent.id")
    with transaction.atomic():
        project = create_project(project_id=project_id, parent=parent, caller=caller)
        project.display_name = resource.get("name", "")
        project.labels = resource.get("labels", {})
        project.save(update_fields=["display_name", "labels"])
    return project


def update_project(*, project: str, request: object) -> Project:
    """Replace the name and labels of a project by those of `request`, which is a Project."""
    resource = fields.PROJECT.read(request)
    with transaction.atomic():
        row = selectors.get_project(project=project)
        if resource.get("projectId", row.project_id) != row.project_id:
            raise InvalidArgument("A project's id cannot be changed.", field="projectId")
        parent_name = row.parent.name if row.parent is not None else ""
        if "parent" in resource and _parent_name(resource["parent"]) != parent_name:
            raise FailedPrecondition("A project cannot be moved by an update.", field="parent")
        _check_active(row)
        row.display_name = resource.get("name", "")
        row.labels = resource.get("labels", {})
        row.save(update_fields=["display_name", "labels"])
    return row


def delete_project(*, project: str) -> None:
    """Delete a project, which can be undeleted. Nothing new can be created in it; what it contains goes on."""
    with transaction.atomic():
        row = selectors.get_project(project=project)
        _check_active(row)
        row.delete_requested_at = utcnow()
        row.save(update_fields=["delete_requested_at"])


def undelete_project(*, project: str) -> None:
    """Undelete a project."""
    with transaction.atomic():
        row = selectors.get_project(project=project)
        if row.delete_requested_at is None:
            raise FailedPrecondition(f"Project {row.project_id} has not been deleted.")
        row.delete_requested_at = None
        row.save(update_fields=["delete_requested_at"])


def projects_visible(caller: Principal, *, filter: str = "") -> QuerySet[Project]:
    """Return the projects that the caller may get and that match the filter of a ListProjectsRequest."""
    return rows_held(caller, GET, Project.objects.select_related("organization", "folder").filter(parse_filter(filter)))


def project_resource(project: Project) -> dict[str, Any]:
    resource = {
        "projectNumber": str(project.number),
        "projectId": project.project_id,
        "lifecycleState": "DELETE_REQUESTED" if project.delete_requested_at else "ACTIVE",
        "name": project.display_name or project.project_id,
        "createTime": format_timestamp(project.created_at),
        "labels": project.labels,
        "parent": resource_id(project.parent) if project.parent is not None else None,
    }
    return drop_falsy(resource)


def resource_id(resource: tree.Resource) -> dict[str, str]:
    """Return the ResourceId of a project, a folder or an organization."""
    identifier = resource.project_id if isinstance(resource, Project) else tree.name_of(resource).rpartition("/")[2]
    return {"type": tree.kind_of(resource).word, "id": identifier}


def _exact(column: str) -> Callable[[str], Q]:
    """A condition on a value, in which a `*` at the end stands for any rest."""

    def condition(value: str) -> Q:
        kind = "istartswith" if value.endswith("*") else "iexact"
        return Q(**{f"{column}__{kind}": value.removesuffix("*")})

    return condition


def _state(value: str) -> Q:
    return Q(delete_requested_at__isnull=value.upper() == "ACTIVE")


def _number(column: str) -> Callable[[str], Q]:
    def condition(value: str) -> Q:
        number = read_decimal(value, most=names.LAST_NUMBER)
        return Q(pk__in=[]) if number is None else Q(**{column: number})

    return condition


def _parent_type(value: str) -> Q:
    return Q(**{f"{value}__isnull": False}) if value in ("organization", "folder") else Q(pk__in=[])


FILTERS: dict[str, Callable[[str], Q]] = {
    "id": _exact("project_id"),
    "projectid": _exact("project_id"),
    "name": _exact("display_name"),
    "lifecyclestate": _state,
    "projectnumber": _number("number"),
    "parent.type": _parent_type,
    "parent.id": lambda value: _number("organization__number")(value) | _number("folder__number")(value),
}


def parse_filter(text: str) -> Q:
    """Return the condition that all terms of a filter make: `name:how* labels.color=red lifecycleState:ACTIVE`."""
    condition = Q()
    terms = text.split()
    if len(terms) > MAX_TERMS:
        raise InvalidArgument(f"A filter may have {MAX_TERMS} terms.", field="filter")
    for term in terms:
        if term == "AND":
            continue
        match = re.fullmatch(r'([A-Za-z]+|parent\.[a-z]+|labels\.[a-z0-9_-]{1,63})[:=]"?([^"\0]{1,200})"?', term)
        if match is None:
            raise _invalid_filter(term)
        condition &= _condition(match[1], match[2], term)
    return condition


def _condition(key: str, value: str, term: str) -> Q:
    if key.startswith("labels."):
        label = key.removeprefix("labels.")
        return Q(labels__has_key=label) if value == "*" else Q(Exact(KeyTextTransform(label, "labels"), value))
    condition = FILTERS.get(key.lower())
    if condition is None:
        raise _invalid_filter(term)
    return condition(value)


def _invalid_filter(term: str) -> InvalidArgument:
    return InvalidArgument(f"Invalid filter: {clipped(term)}", field="filter")


def _parent_name(identifier: dict[str, str]) -> str:
    """Return the full name of a ResourceId, "" for an empty one."""
    if not identifier:
        return ""
    if identifier.get("type") not in ("organization", "folder"):
        raise InvalidArgument("The parent must be an organization or a folder.", field="parent.type")
    return f"{identifier['type']}s/{identifier.get('id', '')}"


def _check_active(project: Project) -> None:
    if project.delete_requested_at is not None:
        raise FailedPrecondition(f"Project {project.project_id} has been deleted.")
