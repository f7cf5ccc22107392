"""Roles, in the form of IAM v1: the predefined ones, and the custom ones of projects and organizations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from drf_spectacular.utils import OpenApiParameter

from pushhub.common import names
from pushhub.common.principals import Principal
from subscriptions.api.openapi import PAGING, list_of
from subscriptions.api.routes import PROJECT, Handler, listed, serve
from subscriptions.iam import custom_roles
from subscriptions.iam.custom_roles import Owner, role_resource
from subscriptions.iam.methods import IAM
from subscriptions.iam.requests import CREATE_ROLE, ROLE, UNDELETE_ROLE
from subscriptions.iam.roles import PREDEFINED
from subscriptions.iam.tree import get_resource
from subscriptions.models import Organization
from subscriptions.paging import Page, paged
from subscriptions.services.projects import ensure_project

#: IAM's page sizes.
DEFAULT_PAGE, LARGEST_PAGE = 300, 1000
MASK = OpenApiParameter("updateMask", str, description="The fields to change; by default all fields of the body")
ETAG = OpenApiParameter("etag", str, description="The etag of the role when it was last read")
VIEW = OpenApiParameter("view", str, description="FULL: with the permissions of each role")
DELETED = OpenApiParameter("showDeleted", bool, description="true: with the deleted roles")
#: What has custom roles, and its addresses.
OWNERS = {"projects": PROJECT, "organizations": "v1/organizations/{organization}"}


def serve_owned(verb: str, address: str, word: str, **description: Any) -> Callable[[Handler], Handler]:
    """Return a decorator that serves a function at the roles of projects and at those of organizations."""

    def decorate(handler: Handler) -> Handler:
        for collection, owner in OWNERS.items():
            shared = {"operation_id": f"{collection}_roles_{word}", "tag": "roles", **description}
            serve(verb, owner + address, IAM, **shared)(handler)
        return handler

    return decorate


@serve("GET", "v1/roles", IAM, gives=list_of("roles", ROLE), parameters=[VIEW])
def list_predefined_roles(query: Mapping[str, str]) -> Any:
    """Return the predefined roles."""
    full = _is_full(query)
    return listed("roles", [role_resource(role, full=full) for role in PREDEFINED.values()], "")


@serve("GET", "v1/roles/{role}", IAM, gives=ROLE)
def get_predefined_role(role: str) -> Any:
    """Return a predefined role."""
    return role_resource(custom_roles.get_predefined(f"roles/{role}"))


@serve_owned("GET", "/roles", "list", parameters=[*PAGING, VIEW, DELETED], gives=list_of("roles", ROLE))
def list_roles(name: str, query: Mapping[str, str], caller: Principal) -> Any:
    """Return the custom roles of a project or an organization."""
    page = Page.read(query, default=DEFAULT_PAGE, cap=LARGEST_PAGE)
    owner = _owner(name, caller)
    roles = custom_roles.roles_of(owner, deleted=query.get("showDeleted") == "true")
    rows, token = paged(roles, page, keys=("role_id",), scope=f"roles {owner.name}")
    full = _is_full(query)
    return listed("roles", [role_resource(row, full=full) for row in rows], token)


@serve_owned("POST", "/roles", "create", takes=CREATE_ROLE, gives=ROLE)
def create_role(name: str, body: object, caller: Principal) -> Any:
    """Create a custom role."""
    return role_resource(custom_roles.create_role(_owner(name, caller), body))


@serve_owned("GET", "/roles/{role}", "get", gives=ROLE)
def get_role(name: str, caller: Principal) -> Any:
    """Return a custom role."""
    return role_resource(custom_roles.get_role(_with_id(name, caller)))


@serve_owned("PATCH", "/roles/{role}", "patch", parameters=[MASK], takes=ROLE, gives=ROLE)
def update_role(name: str, query: Mapping[str, str], body: object, caller: Principal) -> Any:
    """Change the fields of a custom role that the mask names, or all fields of the body."""
    mask = query.get("updateMask") or query.get("update_mask") or ""
    return role_resource(custom_roles.update_role(_with_id(name, caller), body, mask=mask))


@serve_owned("DELETE", "/roles/{role}", "delete", parameters=[ETAG], gives=ROLE)
def delete_role(name: str, query: Mapping[str, str], caller: Principal) -> Any:
    """Delete a custom role, which can be undeleted."""
    etag = query.get("etag", "")
    return role_resource(custom_roles.delete_role(_with_id(name, caller), etag=etag))


@serve_owned("POST", "/roles/{role}:undelete", "undelete", takes=UNDELETE_ROLE, gives=ROLE)
def undelete_role(name: str, body: object, caller: Principal) -> Any:
    """Undelete a role."""
    return role_resource(custom_roles.undelete_role(_with_id(name, caller), body))


def _owner(name: str, caller: Principal) -> Owner:
    """Return the project or the organization of a name."""
    if name.startswith("projects/"):
        return ensure_project(project=names.parse_project(name), caller=caller)
    organization = get_resource(name)
    assert isinstance(organization, Organization)
    return organization


def _with_id(name: str, caller: Principal) -> str:
    """Return the full name of a role, with the project's id even if the URL has its number."""
    owner, _, role = name.rpartition("/roles/")
    return f"{_owner(owner, caller).name}/roles/{role}"


def _is_full(query: Mapping[str, str]) -> bool:
    return query.get("view") == "FULL"
