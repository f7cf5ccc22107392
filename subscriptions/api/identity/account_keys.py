"""Keys of service accounts over REST, in the form of IAM v1."""

from __future__ import annotations

import base64
from typing import Any

from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from pushhub.common import names
from subscriptions import selectors
from subscriptions.api.base import ApiView, PublicView
from subscriptions.api.openapi import ANY_OBJECT, EMPTY, body, list_of, message
from subscriptions.identity import account_keys
from subscriptions.resources import fields
from subscriptions.resources.render import service_account_key_resource

TAGS = ["service account keys"]


class ServiceAccountKeyList(ApiView):
    """The keys of a service account."""

    methods = {
        "GET": "google.iam.admin.v1.ListServiceAccountKeys",
        "POST": "google.iam.admin.v1.CreateServiceAccountKey",
    }

    @extend_schema(
        operation_id="serviceAccounts_keys_list",
        tags=TAGS,
        parameters=[OpenApiParameter("keyTypes", str, many=True, enum=["USER_MANAGED", "SYSTEM_MANAGED"])],
        responses=list_of("keys", fields.SERVICE_ACCOUNT_KEY),
    )
    def get(self, request: Request, project: str, account: str) -> Response:
        owner = selectors.get_service_account(name=names.service_account_name(project, account))
        rows = account_keys.service_account_keys_of(owner, kinds=request.query_params.getlist("keyTypes"))
        keys = [service_account_key_resource(row) for row in rows]
        return Response({"keys": keys} if keys else {})

    @extend_schema(
        operation_id="serviceAccounts_keys_create",
        tags=TAGS,
        request=body(fields.CREATE_SERVICE_ACCOUNT_KEY),
        responses=message(fields.SERVICE_ACCOUNT_KEY),
    )
    def post(self, request: Request, project: str, account: str) -> Response:
        """Create a key. Only this response has its private half."""
        issued = account_keys.create_service_account_key(
            name=names.service_account_name(project, account), request=request.data
        )
        private = {
            "privateKeyType": "TYPE_GOOGLE_CREDENTIALS_FILE",
            "privateKeyData": base64.b64encode(issued.key_file).decode(),
        }
        answer = service_account_key_resource(issued.row) | private
        return Response(answer, headers={"Cache-Control": "no-store"})


class ServiceAccountKeyUpload(ApiView):
    """Upload the public half of a key."""

    methods = {"POST": "google.iam.admin.v1.UploadServiceAccountKey"}

    @extend_schema(
        operation_id="serviceAccounts_keys_upload",
        tags=TAGS,
        request=body(fields.UPLOAD_SERVICE_ACCOUNT_KEY),
        responses=message(fields.SERVICE_ACCOUNT_KEY),
    )
    def post(self, request: Request, project: str, account: str) -> Response:
        name = names.service_account_name(project, account)
        return Response(
            service_account_key_resource(account_keys.upload_service_account_key(name=name, request=request.data))
        )


class ServiceAccountKeyDetail(ApiView):
    """One key, by its id."""

    methods = {
        "GET": "google.iam.admin.v1.GetServiceAccountKey",
        "DELETE": "google.iam.admin.v1.DeleteServiceAccountKey",
    }

    @extend_schema(
        operation_id="serviceAccounts_keys_get",
        tags=TAGS,
        parameters=[OpenApiParameter("publicKeyType", str, enum=["TYPE_X509_PEM_FILE", "TYPE_RAW_PUBLIC_KEY"])],
        responses=message(fields.SERVICE_ACCOUNT_KEY),
    )
    def get(self, request: Request, **segments: str) -> Response:
        key = account_keys.get_service_account_key(name=names.of_segments(**segments))
        data = account_keys.public_key_data(key, form=request.query_params.get("publicKeyType", ""))
        return Response(service_account_key_resource(key) | ({"publicKeyData": data} if data else {}))

    @extend_schema(operation_id="serviceAccounts_keys_delete", tags=TAGS, responses=EMPTY)
    def delete(self, request: Request, **segments: str) -> Response:
        account_keys.delete_service_account_key(name=names.of_segments(**segments))
        return Response({})


class ServiceAccountKeyDisable(ApiView):
    """Disable a key: its signatures aren't accepted until it is enabled again."""

    methods = {"POST": "google.iam.admin.v1.DisableServiceAccountKey"}

    @extend_schema(operation_id="serviceAccounts_keys_disable", tags=TAGS, request=body(fields.EMPTY), responses=EMPTY)
    def post(self, request: Request, **segments: str) -> Response:
        fields.DISABLE_KEY.read(request.data)
        account_keys.disable_service_account_key(name=names.of_segments(**segments))
        return Response({})


class ServiceAccountKeyEnable(ApiView):
    """Enable a key again."""

    methods = {"POST": "google.iam.admin.v1.EnableServiceAccountKey"}

    @extend_schema(operation_id="serviceAccounts_keys_enable", tags=TAGS, request=body(fields.EMPTY), responses=EMPTY)
    def post(self, request: Request, **segments: str) -> Response:
        fields.EMPTY.read(request.data)
        account_keys.enable_service_account_key(name=names.of_segments(**segments))
        return Response({})


class AccountCerts(PublicView):
    """The certificates of an account's keys, by key id: `client_x509_cert_url` in the key file."""

    @extend_schema(operation_id="robot_certs", tags=TAGS, responses=ANY_OBJECT)
    def get(self, request: Request, account: str) -> Response:
        certificates: dict[str, Any] = account_keys.certificates_of(account)
        return Response(certificates)
