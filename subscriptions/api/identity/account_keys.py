"""Keys of service accounts over REST, in the form of IAM v1."""

from __future__ import annotations

import base64
from typing import Any

from drf_spectacular.utils import OpenApiParameter
from rest_framework.request import Request
from rest_framework.response import Response

from subscriptions import selectors
from subscriptions.api.base import ApiView, PublicView, serve
from subscriptions.api.openapi import list_of
from subscriptions.identity import account_keys
from subscriptions.resources import fields
from subscriptions.resources.render import service_account_key_resource

IAM = "google.iam.admin.v1."


class ServiceAccountKeyList(ApiView):
    """The keys of a service account."""

    @serve(
        IAM + "ListServiceAccountKeys",
        "serviceAccounts_keys_list",
        gives=list_of("keys", fields.SERVICE_ACCOUNT_KEY),
        parameters=[OpenApiParameter("keyTypes", str, many=True, enum=["USER_MANAGED", "SYSTEM_MANAGED"])],
    )
    def get(self, request: Request, name: str) -> Any:
        owner = selectors.get_service_account(name=name)
        rows = account_keys.service_account_keys_of(owner, kinds=request.query_params.getlist("keyTypes"))
        keys = [service_account_key_resource(row) for row in rows]
        return {"keys": keys} if keys else {}

    @serve(
        IAM + "CreateServiceAccountKey",
        "serviceAccounts_keys_create",
        takes=fields.CREATE_SERVICE_ACCOUNT_KEY,
        gives=fields.SERVICE_ACCOUNT_KEY,
    )
    def post(self, request: Request, name: str) -> Any:
        """Create a key. Only this response has its private half."""
        issued = account_keys.create_service_account_key(name=name, request=request.data)
        private = {
            "privateKeyType": "TYPE_GOOGLE_CREDENTIALS_FILE",
            "privateKeyData": base64.b64encode(issued.key_file).decode(),
        }
        answer = service_account_key_resource(issued.row) | private
        return Response(answer, headers={"Cache-Control": "no-store"})


class ServiceAccountKeyUpload(ApiView):
    """Upload the public half of a key."""

    @serve(
        IAM + "UploadServiceAccountKey",
        "serviceAccounts_keys_upload",
        takes=fields.UPLOAD_SERVICE_ACCOUNT_KEY,
        gives=fields.SERVICE_ACCOUNT_KEY,
    )
    def post(self, request: Request, name: str) -> Any:
        return service_account_key_resource(account_keys.upload_service_account_key(name=name, request=request.data))


class ServiceAccountKeyDetail(ApiView):
    """One key, by its id."""

    @serve(
        IAM + "GetServiceAccountKey",
        "serviceAccounts_keys_get",
        gives=fields.SERVICE_ACCOUNT_KEY,
        parameters=[OpenApiParameter("publicKeyType", str, enum=["TYPE_X509_PEM_FILE", "TYPE_RAW_PUBLIC_KEY"])],
    )
    def get(self, request: Request, name: str) -> Any:
        key = account_keys.get_service_account_key(name=name)
        data = account_keys.public_key_data(key, form=request.query_params.get("publicKeyType", ""))
        return service_account_key_resource(key) | ({"publicKeyData": data} if data else {})

    @serve(IAM + "DeleteServiceAccountKey", "serviceAccounts_keys_delete")
    def delete(self, request: Request, name: str) -> None:
        account_keys.delete_service_account_key(name=name)


class ServiceAccountKeyDisable(ApiView):
    """Disable a key: its signatures aren't accepted until it is enabled again."""

    @serve(IAM + "DisableServiceAccountKey", "serviceAccounts_keys_disable", takes=fields.EMPTY)
    def post(self, request: Request, name: str) -> None:
        fields.DISABLE_KEY.read(request.data)
        account_keys.disable_service_account_key(name=name)


class ServiceAccountKeyEnable(ApiView):
    """Enable a key again."""

    @serve(IAM + "EnableServiceAccountKey", "serviceAccounts_keys_enable", takes=fields.EMPTY)
    def post(self, request: Request, name: str) -> None:
        fields.EMPTY.read(request.data)
        account_keys.enable_service_account_key(name=name)


class AccountCerts(PublicView):
    """The certificates of an account's keys, by key id: `client_x509_cert_url` in the key file."""

    @serve("", "robot_certs", tag="service account keys")
    def get(self, request: Request, account: str) -> Any:
        certificates: dict[str, Any] = account_keys.certificates_of(account)
        return certificates
