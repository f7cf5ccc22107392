"""Which rows of a table a caller may act on: the answer of access.py for many rows, in one query."""

from __future__ import annotations

from typing import TypeVar

from django.db.models import Model, Q, QuerySet

from pushhub.common.principals import Principal
from subscriptions.iam import access, tree
from subscriptions.iam.methods import METHODS
from subscriptions.models import Folder, Organization, Project

Row = TypeVar("Row", bound=Model)


def rows_callable(caller: Principal, method: str, rows: QuerySet[Row]) -> QuerySet[Row]:
    """Return the rows on which `caller` may call a method of the table. The rows must be of a kind that has policies.

    Requirements on a resource in the request's body are not checked here.
    """
    for requirement in METHODS[method]:
        if not requirement.in_body:
            permission = requirement.permission.replace("*", tree.KINDS[rows.model.__name__].permissions, 1)
            rows = rows_held(caller, permission, rows)
    return rows


def rows_held(caller: Principal, permission: str, rows: QuerySet[Row]) -> QuerySet[Row]:
    """Return the rows on which `caller` holds the permission. The rows must be of a kind that has policies."""
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
    organizations = granting.get("organization", set())
    folders = _with_folders_below(granting.get("folder", set()), organizations)
    if rows.model is Folder:
        return rows.filter(pk__in=folders)
    below = Q(organization__in=organizations) | Q(folder__in=folders)
    if rows.model is Project:
        return rows.filter(own | below)
    projects = granting.get("project", set())
    if organizations or folders:
        projects |= set(Project.objects.order_by().filter(below).values_list("pk", flat=True))
    # With a subquery in place of the numbers, SQLite sorts all rows, with all that is selected of each, for one page.
    return rows.filter(own | Q(project__in=projects))


def _with_folders_below(folders: set[int], organizations: set[int]) -> set[int]:
    """Return these folders and all folders below them or below these organizations."""
    if not folders and not organizations:
        return set()
    below = set(folders)
    folder_rows = list(Folder.objects.order_by().values_list("pk", "organization_id", "folder_id"))
    size = -1
    while size != len(below):
        size = len(below)
        below |= {pk for pk, organization, folder in folder_rows if organization in organizations or folder in below}
    return below
