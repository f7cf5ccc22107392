"""Roles over REST, in the form of IAM v1: the predefined ones, and the custom ones of projects and organizations."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import OpenApiParameter, extend_schema, extend_schema_view
from rest_framework.request import Request
from rest_framework.response import Response

from pushhub.common import names
from subscriptions.api.base import ApiView, caller_of, serve
from subscriptions.api.openapi import PAGING, body, list_of, message
from subscriptions.api.topics import listed
from subscriptions.iam import custom_roles
from subscriptions.iam.custom_roles import Owner, role_resource
from subscriptions.iam.requests import CREATE_ROLE, ROLE, UNDELETE_ROLE
from subscriptions.iam.roles import PREDEFINED
from subscriptions.iam.tree import get_resource
from subscriptions.models import Organization
from subscriptions.paging import Page, paged
from subscriptions.services.projects import ensure_project

TAGS = ["roles"]
#: IAM's page sizes.
DEFAULT_PAGE, LARGEST_PAGE = 300, 1000
IAM = "google.iam.admin.v1."
MASK = OpenApiParameter("updateMask", str, description="The fields to change; by default all fields of the body")
ETAG = OpenApiParameter("etag", str, description="The etag of the role when it was last read")
VIEW = OpenApiParameter("view", str, description="FULL: with the permissions of each role")
DELETED = OpenApiParameter("showDeleted", bool, description="true: with the deleted roles")


class PredefinedRoleList(ApiView):
    """The predefined roles."""

    @serve(IAM + "ListPredefinedRoles", "roles_list", gives=list_of("roles", ROLE), parameters=[VIEW])
    def get(self, request: Request) -> Any:
        full = _is_full(request)
        return listed("roles", [role_resource(role, full=full) for role in PREDEFINED.values()], "")


class PredefinedRoleDetail(ApiView):
    """One predefined role."""

    @serve(IAM + "GetPredefinedRole", "roles_get", gives=ROLE)
    def get(self, request: Request, role: str) -> Any:
        return role_resource(custom_roles.get_predefined(f"roles/{role}"))


class RoleOwnerView(ApiView):
    """What the views of custom roles share: the owner of the roles."""

    def owner(self, request: Request, **kwargs: str) -> Owner:
        if "project" in kwargs:
            return ensure_project(project=kwargs["project"], caller=caller_of(request))
        organization = get_resource(names.organization_name(kwargs["organization"]))
        assert isinstance(organization, Organization)
        return organization

    def role_name(self, request: Request, *, role: str, **kwargs: str) -> str:
        """Return the full name of a role, with the project's id even if the URL has its number."""
        return f"{self.owner(request, **kwargs).name}/roles/{role}"


class RoleList(RoleOwnerView):
    """The custom roles of a project or an organization."""

    methods = {"GET": IAM + "ListRoles", "POST": IAM + "CreateRole"}

    def get(self, request: Request, **kwargs: str) -> Response:
        page = Page.read(request.query_params, default=DEFAULT_PAGE, cap=LARGEST_PAGE)
        owner = self.owner(request, **kwargs)
        deleted = request.query_params.get("showDeleted") == "true"
        rows, token = paged(
            custom_roles.roles_of(owner, deleted=deleted), page, keys=("role_id",), scope=f"roles {owner.name}"
        )
        full = _is_full(request)
        return Response(listed("roles", [role_resource(row, full=full) for row in rows], token))

    def post(self, request: Request, **kwargs: str) -> Response:
        owner = self.owner(request, **kwargs)
        return Response(role_resource(custom_roles.create_role(owner, request.data, caller=caller_of(request))))


class RoleDetail(RoleOwnerView):
    """One custom role."""

    methods = {"GET": IAM + "GetRole", "PATCH": IAM + "UpdateRole", "DELETE": IAM + "DeleteRole"}

    def get(self, request: Request, **kwargs: str) -> Response:
        return Response(role_resource(custom_roles.get_role(self.role_name(request, **kwargs))))

    def patch(self, request: Request, **kwargs: str) -> Response:
        mask = request.query_params.get("updateMask") or request.query_params.get("update_mask") or ""
        name = self.role_name(request, **kwargs)
        row = custom_roles.update_role(name, request.data, mask=mask, caller=caller_of(request))
        return Response(role_resource(row))

    def delete(self, request: Request, **kwargs: str) -> Response:
        etag = request.query_params.get("etag", "")
        row = custom_roles.delete_role(self.role_name(request, **kwargs), etag=etag, caller=caller_of(request))
        return Response(role_resource(row))


class RoleUndelete(RoleOwnerView):
    """Undelete a role."""

    methods = {"POST": IAM + "UndeleteRole"}

    def post(self, request: Request, **kwargs: str) -> Response:
        name = self.role_name(request, **kwargs)
        return Response(role_resource(custom_roles.undelete_role(name, request.data, caller=caller_of(request))))


def _is_full(request: Request) -> bool:
    return request.query_params.get("view") == "FULL"


def _documented(view: type[RoleOwnerView], collection: str) -> type[ApiView]:
    """Return the view of one collection, with its own entries in the OpenAPI document."""
    operations = {
        (RoleList, "get"): ("list", {"parameters": [*PAGING, VIEW, DELETED], "responses": list_of("roles", ROLE)}),
        (RoleList, "post"): ("create", {"request": body(CREATE_ROLE), "responses": message(ROLE)}),
        (RoleDetail, "get"): ("get", {"responses": message(ROLE)}),
        (RoleDetail, "patch"): ("patch", {"parameters": [MASK], "request": body(ROLE), "responses": message(ROLE)}),
        (RoleDetail, "delete"): ("delete", {"parameters": [ETAG], "responses": message(ROLE)}),
        (RoleUndelete, "post"): ("undelete", {"request": body(UNDELETE_ROLE), "responses": message(ROLE)}),
    }
    schemas = {
        verb: extend_schema(operation_id=f"{collection}_roles_{word}", tags=TAGS, **options)
        for (shown, verb), (word, options) in operations.items()
        if shown is view
    }
    documented_view = type(f"{collection}{view.__name__}", (view,), {"__doc__": view.__doc__})
    return extend_schema_view(**schemas)(documented_view)


ProjectRoleList, OrganizationRoleList = (_documented(RoleList, of) for of in ("projects", "organizations"))
ProjectRoleDetail, OrganizationRoleDetail = (_documented(RoleDetail, of) for of in ("projects", "organizations"))
ProjectRoleUndelete, OrganizationRoleUndelete = (_documented(RoleUndelete, of) for of in ("projects", "organizations"))
