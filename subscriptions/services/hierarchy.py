"""Organizations, folders, and which of them a project lies in."""

from __future__ import annotations

from django.db import transaction
from django.db.models import ProtectedError

from pushhub.common.errors import FailedPrecondition, InvalidArgument
from pushhub.common.principals import OPERATOR, Principal
from subscriptions.iam import access, grants, tree
from subscriptions.models import Folder, Organization, Project

MAX_NAME_CHARACTERS = 255
#: As deep as Google lets folders lie.
MAX_FOLDER_DEPTH = 10
CREATE_PROJECT = "resourcemanager.projects.create"

Parent = Organization | Folder


def organization_create(*, display_name: str, caller: Principal = OPERATOR) -> Organization:
    """The root of a tree, which `caller` then owns: for those to make who may do everything."""
    row = Organization(display_name=_name(display_name))
    if not access.is_root(caller):
        raise access.denied("resourcemanager.organizations.create", row.name)
    with transaction.atomic():
        row.save(force_insert=True)
        grants.policy_begin(row, creator=caller)
    return row


def folder_create(*, display_name: str, parent: Parent, caller: Principal = OPERATOR) -> Folder:
    """A folder below `parent`, which `caller` then owns."""
    access.require(caller, "resourcemanager.folders.create", parent)
    row = Folder(display_name=_name(display_name), **parent_columns(parent))
    depth_check(parent)
    with transaction.atomic():
        row.save(force_insert=True)
        grants.policy_begin(row, creator=caller)
    return row


def parent_rename(row: Parent, *, display_name: str) -> Parent:
    """Give an organization or a folder another name to be shown by."""
    row.display_name = _name(display_name)
    row.save(update_fields=["display_name"])
    return row


def parent_delete(row: Parent) -> None:
    """Delete an organization or a folder; FailedPrecondition while a folder or a project lies in it."""
    try:
        row.delete()
    except ProtectedError:
        raise FailedPrecondition(f"{row.name} cannot be deleted: folders or projects lie in it.") from None


def depth_check(parent: Parent) -> None:
    """Raise FailedPrecondition where no folder may be made below `parent`."""
    if sum(isinstance(above, Folder) for above in tree.lineage(parent)) >= MAX_FOLDER_DEPTH:
        raise FailedPrecondition(f"Folders lie at most {MAX_FOLDER_DEPTH} deep.")


def project_move(*, project: Project, parent: Parent | None, caller: Principal = OPERATOR) -> Project:
    """Put a project below another parent, whose policies then count for it instead of the old one's."""
    access.require(caller, "resourcemanager.projects.move", project)
    if parent is not None:
        access.require(caller, CREATE_PROJECT, parent)
    for column, value in parent_columns(parent).items():
        setattr(project, column, value)
    project.save(update_fields=["organization", "folder"])
    return project


def parent_get(name: str, *, caller: Principal = OPERATOR, field: str = "parent") -> Parent | None:
    """The parent of a full name, `organizations/{number}` or `folders/{number}`; none for an empty one.

    Whether it exists is told to those only who may make a project below it.
    """
    if not name:
        return None
    if tree.kind_of_name(name, field=field).word not in ("organization", "folder"):
        raise InvalidArgument("The parent must be an organization or a folder.", field=field)
    access.require_named(caller, CREATE_PROJECT, name, field=field)
    found = tree.resource_get(name, field=field)
    assert isinstance(found, (Organization, Folder))
    return found


def parent_columns(parent: Parent | None) -> dict[str, Parent | None]:
    is_folder = isinstance(parent, Folder)
    return {"organization": None if is_folder else parent, "folder": parent if is_folder else None}


def _name(display_name: str) -> str:
    name = display_name.strip()
    if not 0 < len(name) <= MAX_NAME_CHARACTERS:
        raise InvalidArgument(f"A display name has 1 to {MAX_NAME_CHARACTERS} characters.", field="displayName")
    return name
