"""Projects, as Resource Manager v1 has them."""

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
from pushhub.common.errors import FailedPrecondition, InvalidArgument, clipped
from pushhub.common.principals import OPERATOR, Principal
from pushhub.common.protojson import timestamp_format
from subscriptions import selectors
from subscriptions.iam import access, grants, tree
from subscriptions.models import Folder, Organization, Project
from subscriptions.resources import fields
from subscriptions.services import hierarchy
from subscriptions.services.rows import already_exists

#: Google's own, stricter than what PushHub lets local projects be called: digits alone could be another's number.
ID_PATTERN = re.compile(r"[a-z][a-z0-9-]{4,28}[a-z0-9]", re.ASCII)
GET = "resourcemanager.projects.get"


def project_create(
    *,
    project_id: str,
    parent: Organization | Folder | None = None,
    created_at: datetime | None = None,
    caller: Principal = OPERATOR,
) -> Project:
    """Make a project, which `caller` then owns. Where it has no parent, only those who may do everything make one.

    `created_at` lets a project be as old as the one it stands for: the service agents of old ones need a grant.
    """
    names.check_new_project(project_id, field="projectId")
    may_create(caller, parent, name=names.project_name(project_id))
    with transaction.atomic():
        made, project = _project_make(project_id, parent, created_at or utcnow(), caller)
    if not made:
        raise already_exists(project_id)
    return project


def may_create(caller: Principal, parent: Organization | Folder | None, *, name: str) -> None:
    """Raise PermissionDenied unless `caller` may make the project `name` below `parent`."""
    if parent is not None:
        access.require(caller, hierarchy.CREATE_PROJECT, parent)
    elif not access.is_root(caller):
        raise access.denied(hierarchy.CREATE_PROJECT, name)


def project_ensure(*, project: str, caller: Principal = OPERATOR) -> Project:
    """The project of a name's segment; in development it comes into being at its first use."""
    names.parse_project(names.project_name(project))
    if settings.DEVELOPMENT and not selectors.project_exists(project=project):
        names.check_new_project(project, field="name")
        with transaction.atomic():
            return _project_make(project, None, utcnow(), caller)[1]
    found = selectors.project_get(project=project)
    if found.delete_requested_at is not None:
        raise FailedPrecondition(f"Project {found.project_id} has been deleted.")
    return found


def _project_make(
    project_id: str, parent: Organization | Folder | None, created_at: datetime, caller: Principal
) -> tuple[bool, Project]:
    """Whether it was made here, and the project. Projects of old may have ids that differ in letter case alone."""
    if Project.objects.filter(project_id__iexact=project_id).exclude(project_id=project_id).exists():
        raise already_exists(project_id)
    defaults = {"created_at": created_at, **hierarchy.parent_columns(parent)}
    project, made = Project.objects.get_or_create(project_id=project_id, defaults=defaults)
    if made:
        grants.policy_begin(project, creator=caller)
    return made, project


def project_request_create(*, request: object, caller: Principal = OPERATOR) -> Project:
    """`request` is a Project with an id and, unless the caller may do everything, a parent."""
    given = fields.PROJECT.read(request)
    project_id = given.get("projectId", "")
    if not ID_PATTERN.fullmatch(project_id):
        raise InvalidArgument(
            f"Invalid project id given (project_id={clipped(project_id)}). It must be 6 to 30 characters long and "
            "match [a-z]([-a-z0-9]*[a-z0-9]).",
            field="projectId",
        )
    parent = hierarchy.parent_get(_parent_name(given.get("parent", {})), caller=caller, field="parent.id")
    with transaction.atomic():
        project = project_create(project_id=project_id, parent=parent, caller=caller)
        project.display_name = given.get("name", "")
        project.labels = given.get("labels", {})
        project.save(update_fields=["display_name", "labels"])
    return project


def project_update(*, project: str, request: object) -> Project:
    """`request` is a Project, whose name and labels replace what there is."""
    given = fields.PROJECT.read(request)
    with transaction.atomic():
        row = selectors.project_get(project=project)
        if given.get("projectId", row.project_id) != row.project_id:
            raise InvalidArgument("A project's id cannot be changed.", field="projectId")
        present = row.parent.name if row.parent is not None else ""
        if "parent" in given and _parent_name(given["parent"]) != present:
            raise FailedPrecondition("A project cannot be moved by an update.", field="parent")
        _check_active(row)
        row.display_name = given.get("name", "")
        row.labels = given.get("labels", {})
        row.save(update_fields=["display_name", "labels"])
    return row


def project_delete(*, project: str) -> None:
    """Mark it. Nothing new is made in it from now on; what is there stays, and goes on, for the operator to remove."""
    row = selectors.project_get(project=project)
    _check_active(row)
    row.delete_requested_at = utcnow()
    row.save(update_fields=["delete_requested_at"])


def project_undelete(*, project: str) -> None:
    row = selectors.project_get(project=project)
    if row.delete_requested_at is None:
        raise FailedPrecondition(f"Project {row.project_id} has not been deleted.")
    row.delete_requested_at = None
    row.save(update_fields=["delete_requested_at"])


def projects_visible(caller: Principal, *, filter: str = "") -> QuerySet[Project]:
    """Those that the caller may get, and that the filter of a ListProjectsRequest lets through."""
    found = Project.objects.select_related("organization", "folder").filter(filter_parse(filter))
    if access.is_root(caller):
        return found
    return found.filter(pk__in=[row.pk for row in found if access.allowed(caller, GET, row)])


def project_resource(project: Project) -> dict[str, Any]:
    parent = project.parent
    shown: dict[str, Any] = {
        "projectNumber": str(project.number),
        "projectId": project.project_id,
        "lifecycleState": "DELETE_REQUESTED" if project.delete_requested_at else "ACTIVE",
        "name": project.display_name or project.project_id,
        "createTime": timestamp_format(project.created_at),
    }
    if project.labels:
        shown["labels"] = project.labels
    if parent is not None:
        shown["parent"] = resource_id(parent)
    return shown


def resource_id(resource: tree.Resource) -> dict[str, str]:
    """The ResourceId of a project, a folder or an organization."""
    identifier = resource.project_id if isinstance(resource, Project) else tree.name_of(resource).rpartition("/")[2]
    return {"type": tree.kind_of(resource).word, "id": identifier}


def _exact(column: str) -> Callable[[str], Q]:
    """`*` stands for the rest of a value."""

    def condition(value: str) -> Q:
        kind = "istartswith" if value.endswith("*") else "iexact"
        return Q(**{f"{column}__{kind}": value.removesuffix("*")})

    return condition


def _state(value: str) -> Q:
    return Q(delete_requested_at__isnull=value.upper() == "ACTIVE")


def _number(column: str) -> Callable[[str], Q]:
    def condition(value: str) -> Q:
        is_number = value.isascii() and value.isdecimal() and len(value) < 19
        return Q(**{column: int(value)}) if is_number else Q(pk__in=[])

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


def filter_parse(text: str) -> Q:
    """`name:how* labels.color=red lifecycleState:ACTIVE`: all of the terms; InvalidArgument for what is none."""
    found = Q()
    for term in text.split():
        if term == "AND":
            continue
        match = re.fullmatch(r'([A-Za-z]+|parent\.[a-z]+|labels\.[a-z0-9_-]{1,63})[:=]"?([^"\0]{1,200})"?', term)
        if match is None:
            raise _invalid_filter(term)
        found &= _condition(match[1], match[2], term)
    return found


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


def _parent_name(given: dict[str, str]) -> str:
    """The full name of a ResourceId; none for an empty one."""
    if not given:
        return ""
    if given.get("type") not in ("organization", "folder"):
        raise InvalidArgument("The parent must be an organization or a folder.", field="parent.type")
    return f"{given['type']}s/{given.get('id', '')}"


def _check_active(project: Project) -> None:
    if project.delete_requested_at is not None:
        raise FailedPrecondition(f"Project {project.project_id} has been deleted.")
