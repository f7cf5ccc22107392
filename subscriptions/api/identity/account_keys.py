"""Keys of service accounts, in the form of IAM v1."""

from __future__ import annotations

import base64
from typing import Any

from drf_spectacular.utils import OpenApiParameter
from rest_framework.request import Request
from rest_framework.response import Response

from subscriptions import selectors
from subscriptions.api.base import PublicView
from subscriptions.api.identity.service_accounts import ACCOUNT, NO_STORE
from subscriptions.api.openapi import list_of
from subscriptions.api.routes import TAGS, listed, serve
from subscriptions.iam.methods import IAM
from subscriptions.identity import account_keys
from subscriptions.resources import fields
from subscriptions.resources.render import service_account_key_resource

KEYS = ACCOUNT + "/keys"
KEY = KEYS + "/{key}"
KEYS_TAG = TAGS["serviceAccounts_keys"]
KEY_TYPES = OpenApiParameter("keyTypes", str, many=True, enum=["USER_MANAGED", "SYSTEM_MANAGED"])
PUBLIC_KEY_TYPE = OpenApiParameter("publicKeyType", str, enum=["TYPE_X509_PEM_FILE", "TYPE_RAW_PUBLIC_KEY"])


@serve("GET", KEYS, IAM, gives=list_of("keys", fields.SERVICE_ACCOUNT_KEY), parameters=[KEY_TYPES])
def list_service_account_keys(name: str, request: Request) -> Any:
    """Return the keys of a service account."""
    owner = selectors.get_service_account(name=name)
    rows = account_keys.service_account_keys_of(owner, kinds=request.query_params.getlist("keyTypes"))
    return listed("keys", [service_account_key_resource(row) for row in rows], "")


@serve("POST", KEYS, IAM, takes=fields.CREATE_SERVICE_ACCOUNT_KEY, gives=fields.SERVICE_ACCOUNT_KEY)
def create_service_account_key(name: str, body: object) -> Any:
    """Create a key. Only this response has its private half."""
    issued = account_keys.create_service_account_key(name=name, request=body)
    private = {
        "privateKeyType": "TYPE_GOOGLE_CREDENTIALS_FILE",
        "privateKeyData": base64.b64encode(issued.key_file).decode(),
    }
    return Response(service_account_key_resource(issued.row) | private, headers=NO_STORE)


@serve("POST", KEYS + ":upload", IAM, takes=fields.UPLOAD_SERVICE_ACCOUNT_KEY, gives=fields.SERVICE_ACCOUNT_KEY)
def upload_service_account_key(name: str, body: object) -> Any:
    """Upload the public half of a key."""
    return service_account_key_resource(account_keys.upload_service_account_key(name=name, request=body))


@serve("GET", KEY, IAM, gives=fields.SERVICE_ACCOUNT_KEY, parameters=[PUBLIC_KEY_TYPE])
def get_service_account_key(name: str, request: Request) -> Any:
    """Return a key, by its id."""
    key = account_keys.get_service_account_key(name=name)
    data = account_keys.public_key_data(key, form=request.query_params.get("publicKeyType", ""))
    return service_account_key_resource(key) | ({"publicKeyData": data} if data else {})


delete_service_account_key = serve("DELETE", KEY, IAM)(account_keys.delete_service_account_key)
disable_service_account_key = serve("POST", KEY + ":disable", IAM, takes=fields.DISABLE_KEY)(
    account_keys.disable_service_account_key
)
enable_service_account_key = serve("POST", KEY + ":enable", IAM, takes=fields.EMPTY)(
    account_keys.enable_service_account_key
)


@serve("GET", "robot/v1/metadata/x509/{account}", "", operation_id="robot_certs", tag=KEYS_TAG, base=PublicView)
def list_certificates(account: str) -> Any:
    """Return the certificates of an account's keys, by key id: `client_x509_cert_url` in the key file."""
    return account_keys.certificates_of(account)
