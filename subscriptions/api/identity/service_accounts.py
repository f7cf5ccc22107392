"""Service accounts over REST, in the form of IAM v1."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rest_framework.request import Request
from rest_framework.response import Response

from pushhub.common.protojson import format_timestamp
from subscriptions import selectors
from subscriptions.api.base import ApiView, caller_of, serve
from subscriptions.api.openapi import PAGING, list_of
from subscriptions.api.topics import listed
from subscriptions.iam import access
from subscriptions.identity import impersonation
from subscriptions.paging import Page, paged
from subscriptions.resources import fields
from subscriptions.resources.render import service_account_resource
from subscriptions.services import service_accounts
from subscriptions.services.projects import ensure_project

#: IAM's page sizes, which differ from Pub/Sub's.
DEFAULT_PAGE, LARGEST_PAGE = 20, 100
UNDELETE = "iam.serviceAccounts.undelete"
IAM = "google.iam.admin.v1."
CREDENTIALS = "google.iam.credentials.v1."


class ServiceAccountList(ApiView):
    """The service accounts of a project."""

    @serve(
        IAM + "ListServiceAccounts",
        "serviceAccounts_list",
        gives=list_of("accounts", fields.SERVICE_ACCOUNT),
        parameters=PAGING,
    )
    def get(self, request: Request, project: str) -> Any:
        page = Page.read(request.query_params, default=DEFAULT_PAGE, cap=LARGEST_PAGE)
        owner = ensure_project(project=project, caller=caller_of(request))
        rows, token = paged(
            selectors.service_accounts_of(owner), page, keys=("email",), scope=f"service accounts {owner.pk}"
        )
        return listed("accounts", [service_account_resource(row) for row in rows], token)

    @serve(
        IAM + "CreateServiceAccount",
        "serviceAccounts_create",
        takes=fields.CREATE_SERVICE_ACCOUNT,
        gives=fields.SERVICE_ACCOUNT,
    )
    def post(self, request: Request, project: str) -> Any:
        account = service_accounts.create_service_account(
            project=project, request=request.data, caller=caller_of(request)
        )
        return service_account_resource(account)


class ServiceAccountDetail(ApiView):
    """One service account, by its email or its unique id."""

    @serve(IAM + "GetServiceAccount", "serviceAccounts_get", gives=fields.SERVICE_ACCOUNT)
    def get(self, request: Request, name: str) -> Any:
        return service_account_resource(selectors.get_service_account(name=name))

    @serve(
        IAM + "PatchServiceAccount",
        "serviceAccounts_patch",
        takes=fields.PATCH_SERVICE_ACCOUNT,
        gives=fields.SERVICE_ACCOUNT,
    )
    def patch(self, request: Request, name: str) -> Any:
        changed = service_accounts.update_service_account(name=name, request=request.data)
        return service_account_resource(changed)

    @serve(IAM + "DeleteServiceAccount", "serviceAccounts_delete")
    def delete(self, request: Request, name: str) -> None:
        service_accounts.delete_service_account(name=name)


class ServiceAccountDisable(ApiView):
    """Disable a service account: it gets no more tokens."""

    @serve(IAM + "DisableServiceAccount", "serviceAccounts_disable", takes=fields.EMPTY)
    def post(self, request: Request, name: str) -> None:
        fields.EMPTY.read(request.data)
        service_accounts.disable_service_account(name=name)


class ServiceAccountEnable(ApiView):
    """Enable a service account again."""

    @serve(IAM + "EnableServiceAccount", "serviceAccounts_enable", takes=fields.EMPTY)
    def post(self, request: Request, name: str) -> None:
        fields.EMPTY.read(request.data)
        service_accounts.enable_service_account(name=name)


class ServiceAccountUndelete(ApiView):
    """Undelete an account that was deleted in the last 30 days."""

    def check_access(self, request: Request, kwargs: Mapping[str, str]) -> None:
        """Check the permission on the account's project, which a name with `-` doesn't tell."""
        if kwargs["project"] == "-":
            account = selectors.find_deleted_service_account(unique_id=kwargs["account"])
            if account is not None and access.allowed(caller_of(request), UNDELETE, account.project):
                kwargs = {**kwargs, "project": account.project.project_id}
        super().check_access(request, kwargs)

    @serve(
        IAM + "UndeleteServiceAccount",
        "serviceAccounts_undelete",
        takes=fields.EMPTY,
        gives=fields.UNDELETE_SERVICE_ACCOUNT,
    )
    def post(self, request: Request, name: str) -> Any:
        fields.EMPTY.read(request.data)
        restored = service_accounts.undelete_service_account(name=name)
        return {"restoredAccount": service_account_resource(restored)}


class ServiceAccountAccessToken(ApiView):
    """An access token of the account, for a caller that may impersonate it (IAM Credentials)."""

    @serve(
        CREDENTIALS + "GenerateAccessToken",
        "serviceAccounts_generateAccessToken",
        takes=fields.GENERATE_ACCESS_TOKEN,
        gives=fields.GENERATE_ACCESS_TOKEN_RESPONSE,
    )
    def post(self, request: Request, name: str) -> Any:
        issued = impersonation.generate_access_token(name=name, request=request.data, caller=caller_of(request))
        expiry = format_timestamp(issued.row.expires_at.replace(microsecond=0))
        return Response({"accessToken": issued.token, "expireTime": expiry}, headers={"Cache-Control": "no-store"})


class ServiceAccountIdToken(ApiView):
    """An OpenID Connect token of the account, for a caller that may impersonate it (IAM Credentials)."""

    @serve(
        CREDENTIALS + "GenerateIdToken",
        "serviceAccounts_generateIdToken",
        takes=fields.GENERATE_ID_TOKEN,
        gives=fields.GENERATE_ID_TOKEN_RESPONSE,
    )
    def post(self, request: Request, name: str) -> Any:
        token = impersonation.generate_id_token(name=name, request=request.data, caller=caller_of(request))
        return Response({"token": token}, headers={"Cache-Control": "no-store"})
