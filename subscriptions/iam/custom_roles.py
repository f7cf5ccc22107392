"""Custom roles of projects and organizations, in the form of IAM v1."""

from __future__ import annotations

import re
import time
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import QuerySet

from pushhub.common.errors import AlreadyExists, FailedPrecondition, InvalidArgument, NotFound, clipped
from pushhub.common.principals import OPERATOR, Principal
from subscriptions.iam import policies
from subscriptions.iam.access import role_find
from subscriptions.iam.requests import CREATE_ROLE, ETAG, ROLE, STAGE, UNDELETE_ROLE
from subscriptions.iam.roles import PERMISSIONS, PREDEFINED, Role
from subscriptions.models import Organization, Project
from subscriptions.models.iam import RoleResource
from subscriptions.resources.masks import mask_words

ROLE_ID_PATTERN = re.compile(r"[a-zA-Z0-9_.]{3,64}", re.ASCII)
MUTABLE = frozenset({"title", "description", "includedPermissions", "stage"})

Owner = Project | Organization


def role_create(owner: Owner, request: object, *, caller: Principal = OPERATOR) -> RoleResource:
    """`request` is a CreateRoleRequest."""
    read = CREATE_ROLE.read(request)
    role_id = read.get("roleId", "")
    if not ROLE_ID_PATTERN.fullmatch(role_id):
        raise InvalidArgument(
            f"The role_id {clipped(role_id)!r} must be 3 to 64 characters long and match [a-zA-Z0-9_.]*.",
            field="roleId",
        )
    row = RoleResource(role_id=role_id, **_owned_by(owner))
    _assign(row, read.get("role", {}), MUTABLE)
    _refuse_taken(role_find(row.name), row)
    try:
        with transaction.atomic():
            _store(row)
    except IntegrityError:
        raise _taken(row) from None
    return row


def role_update(name: str, request: object, *, mask: str = "", caller: Principal = OPERATOR) -> RoleResource:
    """`request` is a Role. Without a mask, what it has is taken over."""
    given = ROLE.read(request)
    fields = set(mask_words(mask, known=MUTABLE | {"etag"})) if mask.strip() else set(given)
    with transaction.atomic():
        row = _locked(name)
        policies.etag_check(given.get("etag", ""), row.generation)
        if row.deleted:
            raise FailedPrecondition(f"You can't update the role {clipped(name)}, as it is deleted.")
        _assign(row, given, fields & MUTABLE)
        _store(row)
    return row


def role_delete(name: str, *, etag: str = "", caller: Principal = OPERATOR) -> RoleResource:
    """From now on it grants nothing. Bindings that name it stay, and count again once it is undeleted."""
    return _set_deleted(name, etag=ETAG.read(etag, "etag"), deleted=True)


def role_undelete(name: str, request: object, *, caller: Principal = OPERATOR) -> RoleResource:
    """`request` is an UndeleteRoleRequest."""
    return _set_deleted(name, etag=UNDELETE_ROLE.read(request).get("etag", ""), deleted=False)


def role_get(name: str) -> RoleResource:
    found = role_find(name)
    if found is None:
        raise NotFound(f"The role named {clipped(name)} was not found.")
    return found


def roles_of(owner: Owner, *, deleted: bool) -> QuerySet[RoleResource]:
    rows = RoleResource.objects.filter(**_owned_by(owner)).select_related("project", "organization")
    return rows if deleted else rows.filter(deleted=False)


def predefined_get(name: str) -> Role:
    found = PREDEFINED.get(name)
    if found is None:
        raise NotFound(f"The role named {clipped(name)} was not found.")
    return found


def role_resource(role: RoleResource | Role, *, full: bool = True) -> dict[str, Any]:
    """The Role in JSON form; a list's have their permissions only when asked for."""
    answer: dict[str, Any] = {"name": role.name, "title": role.title}
    if isinstance(role, RoleResource):
        answer |= {"description": role.description, "stage": role.stage, "deleted": role.deleted}
        answer["etag"] = policies.etag_format(role.generation)
    else:
        answer |= {"stage": "GA", "etag": "AA=="}
    if full:
        answer["includedPermissions"] = sorted(role.permissions)
    return {field: value for field, value in answer.items() if value}


def _owned_by(owner: Owner) -> dict[str, Any]:
    return {"project": owner} if isinstance(owner, Project) else {"organization": owner}


def _assign(row: RoleResource, given: dict[str, Any], fields: set[str] | frozenset[str]) -> None:
    if "title" in fields:
        row.title = given.get("title", "")
    if "description" in fields:
        row.description = given.get("description", "")
    if "stage" in fields:
        row.stage = given.get("stage") or STAGE.names[0]
    if "includedPermissions" in fields:
        row.permissions = _permissions(given.get("includedPermissions", []))


def _permissions(given: list[str]) -> list[str]:
    for position, permission in enumerate(given):
        if permission not in PERMISSIONS:
            raise InvalidArgument(
                f"Permission {clipped(permission)} is not valid.", field=f"includedPermissions[{position}]"
            )
    return sorted(set(given))


def _refuse_taken(found: RoleResource | None, row: RoleResource) -> None:
    if found is not None and found.deleted:
        raise FailedPrecondition(
            f"You can't create a role with role_id ({row.role_id}) where there is an existing role with that role_id "
            "in a deleted state."
        )
    if found is not None:
        raise _taken(row)


def _taken(row: RoleResource) -> AlreadyExists:
    owner = row.project or row.organization
    return AlreadyExists(f"A role named {row.role_id} in {owner.name if owner else ''} already exists.")


def _locked(name: str) -> RoleResource:
    return RoleResource.objects.select_for_update(of=("self",)).get(pk=role_get(name).pk)


def _set_deleted(name: str, *, etag: str, deleted: bool) -> RoleResource:
    with transaction.atomic():
        row = _locked(name)
        policies.etag_check(etag, row.generation)
        if row.deleted == deleted:
            raise FailedPrecondition(f"The role {clipped(name)} is {'already' if deleted else 'not'} deleted.")
        row.deleted = deleted
        _store(row)
    return row


def _store(row: RoleResource) -> None:
    row.generation = policies.next_generation(row.generation, now_us=time.time_ns() // 1000)
    row.save()
