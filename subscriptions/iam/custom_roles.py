"""Custom roles of projects and organizations, in the form of IAM v1."""

from __future__ import annotations

import re
import time
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import QuerySet

from pushhub.common.errors import AlreadyExists, FailedPrecondition, InvalidArgument, NotFound, clipped
from subscriptions.iam import policies
from subscriptions.iam.access import find_role
from subscriptions.iam.requests import CREATE_ROLE, ETAG, ROLE, STAGE, UNDELETE_ROLE
from subscriptions.iam.roles import PERMISSIONS, PREDEFINED, Role
from subscriptions.models import Organization, Project
from subscriptions.models.iam import RoleResource
from subscriptions.resources.masks import mask_words
from subscriptions.resources.table import drop_falsy

ROLE_ID_PATTERN = re.compile(r"[a-zA-Z0-9_.]{3,64}", re.ASCII)
MUTABLE = frozenset({"title", "description", "includedPermissions", "stage"})

Owner = Project | Organization


def create_role(owner: Owner, request: object) -> RoleResource:
    """Create a custom role from a CreateRoleRequest."""
    parsed = CREATE_ROLE.read(request)
    role_id = parsed.get("roleId", "")
    if not ROLE_ID_PATTERN.fullmatch(role_id):
        raise InvalidArgument(
            f"The role_id {clipped(role_id)!r} must be 3 to 64 characters long and match [a-zA-Z0-9_.]*.",
            field="roleId",
        )
    row = RoleResource(role_id=role_id, **_owned_by(owner))
    _assign(row, parsed.get("role", {}), MUTABLE)
    _refuse_taken(find_role(row.name), row)
    try:
        with transaction.atomic():
            _store(row)
    except IntegrityError:
        raise _taken(row) from None
    return row


def update_role(name: str, request: object, *, mask: str = "") -> RoleResource:
    """Change a custom role. `request` is a Role; without a mask, all fields that it has are changed."""
    changes = ROLE.read(request)
    fields = set(mask_words(mask, known=MUTABLE | {"etag"})) if mask.strip() else set(changes)
    with transaction.atomic():
        row = _locked(name)
        policies.check_etag(changes.get("etag", ""), row.generation)
        if row.deleted:
            raise FailedPrecondition(f"You can't update the role {clipped(name)}, as it is deleted.")
        _assign(row, changes, fields & MUTABLE)
        _store(row)
    return row


def delete_role(name: str, *, etag: str = "") -> RoleResource:
    """Delete a role, which grants nothing from then on. Bindings keep it and count again after an undelete."""
    return _set_deleted(name, etag=ETAG.read(etag, "etag"), deleted=True)


def undelete_role(name: str, request: object) -> RoleResource:
    """Undelete a role. `request` is an UndeleteRoleRequest."""
    return _set_deleted(name, etag=UNDELETE_ROLE.read(request).get("etag", ""), deleted=False)


def get_role(name: str) -> RoleResource:
    role = find_role(name)
    if role is None:
        raise NotFound(f"The role named {clipped(name)} was not found.")
    return role


def roles_of(owner: Owner, *, deleted: bool) -> QuerySet[RoleResource]:
    rows = RoleResource.objects.filter(**_owned_by(owner)).select_related("project", "organization")
    return rows if deleted else rows.filter(deleted=False)


def get_predefined(name: str) -> Role:
    role = PREDEFINED.get(name)
    if role is None:
        raise NotFound(f"The role named {clipped(name)} was not found.")
    return role


def role_resource(role: RoleResource | Role, *, full: bool = True) -> dict[str, Any]:
    """Return the Role in JSON form. Without `full`, its permissions are left out."""
    answer: dict[str, Any] = {"name": role.name, "title": role.title}
    if isinstance(role, RoleResource):
        answer |= {"description": role.description, "stage": role.stage, "deleted": role.deleted}
        answer["etag"] = policies.format_etag(role.generation)
    else:
        answer |= {"stage": "GA", "etag": "AA=="}
    if full:
        answer["includedPermissions"] = sorted(role.permissions)
    return drop_falsy(answer)


def _owned_by(owner: Owner) -> dict[str, Any]:
    return {"project": owner} if isinstance(owner, Project) else {"organization": owner}


def _assign(row: RoleResource, changes: dict[str, Any], fields: set[str] | frozenset[str]) -> None:
    if "title" in fields:
        row.title = changes.get("title", "")
    if "description" in fields:
        row.description = changes.get("description", "")
    if "stage" in fields:
        row.stage = changes.get("stage") or STAGE.names[0]
    if "includedPermissions" in fields:
        row.permissions = _permissions(changes.get("includedPermissions", []))


def _permissions(permissions: list[str]) -> list[str]:
    for position, permission in enumerate(permissions):
        if permission not in PERMISSIONS:
            raise InvalidArgument(
                f"Permission {clipped(permission)} is not valid.", field=f"includedPermissions[{position}]"
            )
    return sorted(set(permissions))


def _refuse_taken(existing: RoleResource | None, row: RoleResource) -> None:
    if existing is not None and existing.deleted:
        raise FailedPrecondition(
            f"You can't create a role with role_id ({row.role_id}) where there is an existing role with that role_id "
            "in a deleted state."
        )
    if existing is not None:
        raise _taken(row)


def _taken(row: RoleResource) -> AlreadyExists:
    owner = row.project or row.organization
    return AlreadyExists(f"A role named {row.role_id} in {owner.name if owner else ''} already exists.")


def _locked(name: str) -> RoleResource:
    return RoleResource.objects.select_for_update(of=("self",)).get(pk=get_role(name).pk)


def _set_deleted(name: str, *, etag: str, deleted: bool) -> RoleResource:
    with transaction.atomic():
        row = _locked(name)
        policies.check_etag(etag, row.generation)
        if row.deleted == deleted:
            raise FailedPrecondition(f"The role {clipped(name)} is {'already' if deleted else 'not'} deleted.")
        row.deleted = deleted
        _store(row)
    return row


def _store(row: RoleResource) -> None:
    row.generation = policies.next_generation(row.generation, now_us=time.time_ns() // 1000)
    row.save()
