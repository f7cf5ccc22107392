"""Service accounts, in the form of IAM v1."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rest_framework.request import Request
from rest_framework.response import Response

from pushhub.common.principals import Principal
from pushhub.common.protojson import format_timestamp
from subscriptions import selectors
from subscriptions.api.base import ApiView, caller_of
from subscriptions.api.openapi import PAGING, list_of
from subscriptions.api.routes import PROJECT, listed, serve
from subscriptions.iam import access
from subscriptions.iam.methods import IAM
from subscriptions.identity import impersonation
from subscriptions.paging import Page, paged
from subscriptions.resources import fields
from subscriptions.resources.render import service_account_resource
from subscriptions.services import service_accounts
from subscriptions.services.projects import ensure_project

ACCOUNTS = PROJECT + "/serviceAccounts"
ACCOUNT = ACCOUNTS + "/{account}"
#: IAM's page sizes, which differ from Pub/Sub's.
DEFAULT_PAGE, LARGEST_PAGE = 20, 100
UNDELETE = "iam.serviceAccounts.undelete"
CREDENTIALS = "google.iam.credentials.v1."
NO_STORE = {"Cache-Control": "no-store"}


@serve("GET", ACCOUNTS, IAM, gives=list_of("accounts", fields.SERVICE_ACCOUNT), parameters=PAGING)
def list_service_accounts(project: str, query: Mapping[str, str], caller: Principal) -> Any:
    """Return the service accounts of a project."""
    page = Page.read(query, default=DEFAULT_PAGE, cap=LARGEST_PAGE)
    owner = ensure_project(project=project, caller=caller)
    accounts = selectors.service_accounts_of(owner)
    rows, token = paged(accounts, page, keys=("email",), scope=f"service accounts {owner.pk}")
    return listed("accounts", [service_account_resource(row) for row in rows], token)


@serve("POST", ACCOUNTS, IAM, takes=fields.CREATE_SERVICE_ACCOUNT, gives=fields.SERVICE_ACCOUNT)
def create_service_account(project: str, body: object, caller: Principal) -> Any:
    """Create a service account."""
    return service_account_resource(
        service_accounts.create_service_account(project=project, request=body, caller=caller)
    )


@serve("GET", ACCOUNT, IAM, gives=fields.SERVICE_ACCOUNT)
def get_service_account(name: str) -> Any:
    """Return a service account, by its email or its unique id."""
    return service_account_resource(selectors.get_service_account(name=name))


@serve("PATCH", ACCOUNT, IAM + "PatchServiceAccount", takes=fields.PATCH_SERVICE_ACCOUNT, gives=fields.SERVICE_ACCOUNT)
def update_service_account(name: str, body: object) -> Any:
    """Change the fields of a service account that the mask names."""
    return service_account_resource(service_accounts.update_service_account(name=name, request=body))


delete_service_account = serve("DELETE", ACCOUNT, IAM)(service_accounts.delete_service_account)
disable_service_account = serve("POST", ACCOUNT + ":disable", IAM, takes=fields.EMPTY)(
    service_accounts.disable_service_account
)
enable_service_account = serve("POST", ACCOUNT + ":enable", IAM, takes=fields.EMPTY)(
    service_accounts.enable_service_account
)


class UndeleteView(ApiView):
    """Checks the permission on the account's project, which a name with `-` doesn't tell."""

    def check_access(self, request: Request, kwargs: Mapping[str, str]) -> None:
        if kwargs["project"] == "-":
            account = selectors.find_deleted_service_account(unique_id=kwargs["account"])
            if account is not None and access.allowed(caller_of(request), UNDELETE, account.project):
                kwargs = {**kwargs, "project": account.project.project_id}
        super().check_access(request, kwargs)


@serve("POST", ACCOUNT + ":undelete", IAM, takes=fields.EMPTY, gives=fields.UNDELETE_SERVICE_ACCOUNT, base=UndeleteView)
def undelete_service_account(name: str) -> Any:
    """Undelete an account that was deleted in the last 30 days."""
    return {"restoredAccount": service_account_resource(service_accounts.undelete_service_account(name=name))}


@serve(
    "POST", ACCOUNT + ":generateAccessToken", CREDENTIALS, takes=fields.GENERATE_ACCESS_TOKEN, gives=fields.ACCESS_TOKEN
)
def generate_access_token(name: str, body: object, caller: Principal) -> Any:
    """Return an access token of the account, for a caller that may impersonate it (IAM Credentials)."""
    issued = impersonation.generate_access_token(name=name, request=body, caller=caller)
    expiry = format_timestamp(issued.row.expires_at.replace(microsecond=0))
    return Response({"accessToken": issued.token, "expireTime": expiry}, headers=NO_STORE)


@serve("POST", ACCOUNT + ":generateIdToken", CREDENTIALS, takes=fields.GENERATE_ID_TOKEN, gives=fields.ID_TOKEN)
def generate_id_token(name: str, body: object, caller: Principal) -> Any:
    """Return an OpenID Connect token of the account, for a caller that may impersonate it (IAM Credentials)."""
    token = impersonation.generate_id_token(name=name, request=body, caller=caller)
    return Response({"token": token}, headers=NO_STORE)
