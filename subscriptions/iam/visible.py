"""Which rows of a table may a caller act on? The answer of access.py for many rows, as one query."""

from __future__ import annotations

from typing import TypeVar

from django.db.models import Model, Q, QuerySet

from pushhub.common.principals import Principal
from subscriptions.iam import access, tree
from subscriptions.iam.methods import METHODS
from subscriptions.models import Folder, Organization, Project

Row = TypeVar("Row", bound=Model)


def rows_callable(caller: Principal, method: str, rows: QuerySet[Row]) -> QuerySet[Row]:
    """Those of the rows that `caller` may call a method of the table on. They are of a kind that has policies.

    What the method needs on a resource that the request's body names is not asked here.
    """
    for requirement in METHODS[method]:
        if not requirement.in_body:
            permission = requirement.permission.replace("*", tree.KINDS[rows.model.__name__].permissions, 1)
            rows = rows_held(caller, permission, rows)
    return rows


def rows_held(caller: Principal, permission: str, rows: QuerySet[Row]) -> QuerySet[Row]:
    """Those of the rows, of a kind that has policies, on which `caller` holds the permission."""
    if access.is_root(caller):
        return rows
    granting: dict[str, set[int]] = {}
    for kind, pk in access.resources_granting(caller, permission):
        granting.setdefault(kind, set()).add(pk)
    if not granting:
        return rows.none()
    own = Q(pk__in=granting.get(tree.KINDS[rows.model.__name__].word, set()))
    if rows.model is Organization:
        return rows.filter(own)
    folders = _with_folders_below(granting.get("folder", set()), granting.get("organization", set()))
    if rows.model is Folder:
        return rows.filter(pk__in=folders)
    below = Q(organization__in=granting.get("organization", set())) | Q(folder__in=folders)
    if rows.model is Project:
        return rows.filter(own | below)
    projects = Project.objects.order_by().filter(Q(pk__in=granting.get("project", set())) | below)
    return rows.filter(own | Q(project__in=projects))


def _with_folders_below(folders: set[int], organizations: set[int]) -> set[int]:
    """These folders, and all that lie in them or in these organizations."""
    if not folders and not organizations:
        return set()
    found = set(folders)
    left = list(Folder.objects.order_by().values_list("pk", "organization_id", "folder_id"))
    size = -1
    while size != len(found):
        size = len(found)
        found |= {pk for pk, organization, folder in left if organization in organizations or folder in found}
    return found
