"""Organizations and folders, and which of them contains a project."""

from __future__ import annotations

from django.db import transaction
from django.db.models import ProtectedError

from pushhub.common.errors import FailedPrecondition, InvalidArgument
from pushhub.common.principals import OPERATOR, Principal
from subscriptions.iam import access, grants, tree
from subscriptions.models import Folder, Organization

MAX_NAME_CHARACTERS = 255
#: The depth to which Google nests folders.
MAX_FOLDER_DEPTH = 10
CREATE_PROJECT = "resourcemanager.projects.create"

Parent = Organization | Folder


def create_organization(*, display_name: str, caller: Principal = OPERATOR) -> Organization:
    """Create an organization owned by `caller`. Superusers only."""
    row = Organization(display_name=_name(display_name))
    if not access.is_root(caller):
        raise access.denied("resourcemanager.organizations.create", row.name)
    with transaction.atomic():
        row.save(force_insert=True)
        grants.begin_policy(row, creator=caller)
    return row


def create_folder(*, display_name: str, parent: Parent, caller: Principal = OPERATOR) -> Folder:
    """Create a folder below `parent`, owned by `caller`."""
    access.require(caller, "resourcemanager.folders.create", parent)
    row = Folder(display_name=_name(display_name), **parent_columns(parent))
    if sum(isinstance(above, Folder) for above in tree.lineage(parent)) >= MAX_FOLDER_DEPTH:
        raise FailedPrecondition(f"Folders lie at most {MAX_FOLDER_DEPTH} deep.")
    with transaction.atomic():
        row.save(force_insert=True)
        grants.begin_policy(row, creator=caller)
    return row


def rename_parent(row: Parent, *, display_name: str) -> Parent:
    """Change the display name of an organization or a folder."""
    row.display_name = _name(display_name)
    with transaction.atomic():
        row.save(update_fields=["display_name"])
    return row


def delete_parent(row: Parent) -> None:
    """Delete an organization or a folder. Raises FailedPrecondition while it contains a folder or a project."""
    try:
        row.delete()
    except ProtectedError:
        raise FailedPrecondition(f"{row.name} cannot be deleted: folders or projects lie in it.") from None


def get_parent(name: str, *, caller: Principal = OPERATOR, field: str = "parent") -> Parent | None:
    """Return the parent of a full name, `organizations/{number}` or `folders/{number}`; None for an empty name.

    Only callers who may create a project below it learn whether it exists.
    """
    if not name:
        return None
    if tree.kind_of_name(name, field=field).word not in ("organization", "folder"):
        raise InvalidArgument("The parent must be an organization or a folder.", field=field)
    access.require_named(caller, CREATE_PROJECT, name, field=field)
    parent = tree.get_resource(name, field=field)
    assert isinstance(parent, (Organization, Folder))
    return parent


def parent_columns(parent: Parent | None) -> dict[str, Parent | None]:
    is_folder = isinstance(parent, Folder)
    return {"organization": None if is_folder else parent, "folder": parent if is_folder else None}


def _name(display_name: str) -> str:
    name = display_name.strip()
    if not 0 < len(name) <= MAX_NAME_CHARACTERS:
        raise InvalidArgument(f"A display name has 1 to {MAX_NAME_CHARACTERS} characters.", field="displayName")
    return name
