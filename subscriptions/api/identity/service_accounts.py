"""Service accounts over REST, in the form of IAM v1."""

from __future__ import annotations

from collections.abc import Mapping

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from pushhub.common import names
from pushhub.common.protojson import format_timestamp
from subscriptions import selectors
from subscriptions.api.base import ApiView, caller_of
from subscriptions.api.openapi import EMPTY, PAGING, body, list_of, message
from subscriptions.api.topics import listed
from subscriptions.iam import access
from subscriptions.identity import impersonation
from subscriptions.paging import Page, paged
from subscriptions.resources import fields
from subscriptions.resources.render import service_account_resource
from subscriptions.services import service_accounts
from subscriptions.services.projects import ensure_project

TAGS = ["service accounts"]
#: IAM's page sizes, which differ from Pub/Sub's.
DEFAULT_PAGE, LARGEST_PAGE = 20, 100
UNDELETE = "iam.serviceAccounts.undelete"


class ServiceAccountList(ApiView):
    """The service accounts of a project."""

    methods = {"GET": "google.iam.admin.v1.ListServiceAccounts", "POST": "google.iam.admin.v1.CreateServiceAccount"}

    @extend_schema(
        operation_id="serviceAccounts_list",
        tags=TAGS,
        parameters=PAGING,
        responses=list_of("accounts", fields.SERVICE_ACCOUNT),
    )
    def get(self, request: Request, project: str) -> Response:
        page = Page.read(request.query_params, default=DEFAULT_PAGE, cap=LARGEST_PAGE)
        owner = ensure_project(project=project, caller=caller_of(request))
        rows, token = paged(
            selectors.service_accounts_of(owner), page, keys=("email",), scope=f"service accounts {owner.pk}"
        )
        return Response(listed("accounts", [service_account_resource(row) for row in rows], token))

    @extend_schema(
        operation_id="serviceAccounts_create",
        tags=TAGS,
        request=body(fields.CREATE_SERVICE_ACCOUNT),
        responses=message(fields.SERVICE_ACCOUNT),
    )
    def post(self, request: Request, project: str) -> Response:
        account = service_accounts.create_service_account(
            project=project, request=request.data, caller=caller_of(request)
        )
        return Response(service_account_resource(account))


class ServiceAccountDetail(ApiView):
    """One service account, by its email or its unique id."""

    methods = {
        "GET": "google.iam.admin.v1.GetServiceAccount",
        "PATCH": "google.iam.admin.v1.PatchServiceAccount",
        "DELETE": "google.iam.admin.v1.DeleteServiceAccount",
    }

    @extend_schema(operation_id="serviceAccounts_get", tags=TAGS, responses=message(fields.SERVICE_ACCOUNT))
    def get(self, request: Request, project: str, account: str) -> Response:
        name = names.service_account_name(project, account)
        return Response(service_account_resource(selectors.get_service_account(name=name)))

    @extend_schema(
        operation_id="serviceAccounts_patch",
        tags=TAGS,
        request=body(fields.PATCH_SERVICE_ACCOUNT),
        responses=message(fields.SERVICE_ACCOUNT),
    )
    def patch(self, request: Request, project: str, account: str) -> Response:
        name = names.service_account_name(project, account)
        changed = service_accounts.update_service_account(name=name, request=request.data)
        return Response(service_account_resource(changed))

    @extend_schema(operation_id="serviceAccounts_delete", tags=TAGS, responses=EMPTY)
    def delete(self, request: Request, project: str, account: str) -> Response:
        service_accounts.delete_service_account(name=names.service_account_name(project, account))
        return Response({})


class ServiceAccountDisable(ApiView):
    """Disable a service account: it gets no more tokens."""

    methods = {"POST": "google.iam.admin.v1.DisableServiceAccount"}

    @extend_schema(operation_id="serviceAccounts_disable", tags=TAGS, request=body(fields.EMPTY), responses=EMPTY)
    def post(self, request: Request, project: str, account: str) -> Response:
        fields.EMPTY.read(request.data)
        service_accounts.disable_service_account(name=names.service_account_name(project, account))
        return Response({})


class ServiceAccountEnable(ApiView):
    """Enable a service account again."""

    methods = {"POST": "google.iam.admin.v1.EnableServiceAccount"}

    @extend_schema(operation_id="serviceAccounts_enable", tags=TAGS, request=body(fields.EMPTY), responses=EMPTY)
    def post(self, request: Request, project: str, account: str) -> Response:
        fields.EMPTY.read(request.data)
        service_accounts.enable_service_account(name=names.service_account_name(project, account))
        return Response({})


class ServiceAccountUndelete(ApiView):
    """Undelete an account that was deleted in the last 30 days."""

    methods = {"POST": "google.iam.admin.v1.UndeleteServiceAccount"}

    def check_access(self, request: Request, kwargs: Mapping[str, str]) -> None:
        """Check the permission on the account's project, which a name with `-` doesn't tell."""
        if kwargs["project"] == "-":
            account = selectors.find_deleted_service_account(unique_id=kwargs["account"])
            if account is not None and access.allowed(caller_of(request), UNDELETE, account.project):
                kwargs = {**kwargs, "project": account.project.project_id}
        super().check_access(request, kwargs)

    @extend_schema(
        operation_id="serviceAccounts_undelete",
        tags=TAGS,
        request=body(fields.EMPTY),
        responses=message(fields.UNDELETE_SERVICE_ACCOUNT),
    )
    def post(self, request: Request, project: str, account: str) -> Response:
        fields.EMPTY.read(request.data)
        restored = service_accounts.undelete_service_account(name=names.service_account_name(project, account))
        return Response({"restoredAccount": service_account_resource(restored)})


class ServiceAccountAccessToken(ApiView):
    """An access token of the account, for a caller that may impersonate it (IAM Credentials)."""

    methods = {"POST": "google.iam.credentials.v1.GenerateAccessToken"}

    @extend_schema(
        operation_id="serviceAccounts_generateAccessToken",
        tags=TAGS,
        request=body(fields.GENERATE_ACCESS_TOKEN),
        responses=message(fields.GENERATE_ACCESS_TOKEN_RESPONSE),
    )
    def post(self, request: Request, project: str, account: str) -> Response:
        name = names.service_account_name(project, account)
        issued = impersonation.generate_access_token(name=name, request=request.data, caller=caller_of(request))
        expiry = format_timestamp(issued.row.expires_at.replace(microsecond=0))
        return Response({"accessToken": issued.token, "expireTime": expiry}, headers={"Cache-Control": "no-store"})


class ServiceAccountIdToken(ApiView):
    """An OpenID Connect token of the account, for a caller that may impersonate it (IAM Credentials)."""

    methods = {"POST": "google.iam.credentials.v1.GenerateIdToken"}

    @extend_schema(
        operation_id="serviceAccounts_generateIdToken",
        tags=TAGS,
        request=body(fields.GENERATE_ID_TOKEN),
        responses=message(fields.GENERATE_ID_TOKEN_RESPONSE),
    )
    def post(self, request: Request, project: str, account: str) -> Response:
        name = names.service_account_name(project, account)
        token = impersonation.generate_id_token(name=name, request=request.data, caller=caller_of(request))
        return Response({"token": token}, headers={"Cache-Control": "no-store"})
