"""Policies: `getIamPolicy`, `setIamPolicy` and `testIamPermissions` of every resource with a policy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from drf_spectacular.utils import OpenApiParameter

from pushhub.common.errors import InvalidArgument, clipped
from pushhub.common.principals import Principal
from subscriptions.api.routes import PROJECT, SUBSCRIPTION, TOPIC, serve
from subscriptions.iam import grants
from subscriptions.iam.requests import (
    GET_IAM_POLICY,
    POLICY,
    SET_IAM_POLICY,
    TEST_IAM_PERMISSIONS,
    TEST_IAM_PERMISSIONS_RESPONSE,
)
from subscriptions.iam.tree import Resource, get_resource
from subscriptions.services.projects import ensure_project
from subscriptions.services.rows import check_body_name

SERVICE = "google.iam.v1.IAMPolicy."
VERSION = OpenApiParameter("options.requestedPolicyVersion", int, description="0, 1 or 3")

#: The resources that have policies, and their addresses.
RESOURCES = {
    "organizations": "v1/organizations/{organization}",
    "folders": "v1/folders/{folder}",
    "projects": PROJECT,
    "topics": TOPIC,
    "subscriptions": SUBSCRIPTION,
    "snapshots": PROJECT + "/snapshots/{snapshot}",
    "schemas": PROJECT + "/schemas/{schema}",
    "serviceAccounts": PROJECT + "/serviceAccounts/{account}",
}
#: Those of Pub/Sub, whose policies are read by GET; others are read by POST.
READ_BY_GET = ("topics", "subscriptions", "snapshots", "schemas")
#: Resource Manager has policies in later versions, too; folders only there. Their form is the same.
LATER = {"organizations": ("v3",), "folders": ("v2", "v3"), "projects": ("v3",)}


def read_policy(name: str, query: Mapping[str, str], caller: Principal) -> Any:
    """Read a policy, by GET as in Pub/Sub."""
    return grants.get_policy(find_resource(name, caller), options=_options(query))


def get_policy(name: str, query: Mapping[str, str], body: object, caller: Principal) -> Any:
    """Read a policy, by POST as in IAM and Resource Manager v1."""
    check_body_name(body, name, field="resource")
    options = GET_IAM_POLICY.read(body).get("options") or _options(query)
    return grants.get_policy(find_resource(name, caller), options=options)


def set_policy(name: str, body: object, caller: Principal) -> Any:
    """Replace a policy."""
    check_body_name(body, name, field="resource")
    return grants.set_policy(find_resource(name, caller), body, caller=caller)


def list_held_permissions(name: str, body: object, caller: Principal) -> Any:
    """Test which of some permissions the caller holds."""
    check_body_name(body, name, field="resource")
    return grants.list_held_permissions(name, body, caller=caller)


def find_resource(name: str, caller: Principal) -> Resource:
    collection, _, rest = name.partition("/")
    if collection == "projects" and "/" not in rest:  # in development, its first use creates it
        return ensure_project(project=rest, caller=caller)
    return get_resource(name)


def _options(query: Mapping[str, str]) -> dict[str, int | str]:
    version = query.get("options.requestedPolicyVersion", "")
    if version and not (version.isascii() and version.isdigit() and len(version) < 5):
        raise InvalidArgument(
            f"Invalid value at 'options.requested_policy_version' (TYPE_INT32), \"{clipped(version)}\"",
            field="options.requestedPolicyVersion",
        )
    return {"requestedPolicyVersion": int(version)} if version else {}


def _serve_policies(address: str, *, operation_id: str | None = None) -> None:
    """Serve the methods at an address. They aren't in the OpenAPI document if `operation_id` is empty."""

    def at(verb: str, method: str, **description: Any) -> Any:
        where = f"{address}:{method[0].lower()}{method[1:]}"
        return serve(verb, where, SERVICE + method, operation_id=operation_id, tag="policies", **description)

    if address.rpartition("/")[0].rpartition("/")[2] in READ_BY_GET:
        at("GET", "GetIamPolicy", parameters=[VERSION], gives=POLICY)(read_policy)
    else:
        at("POST", "GetIamPolicy", takes=GET_IAM_POLICY, gives=POLICY)(get_policy)
    at("POST", "SetIamPolicy", takes=SET_IAM_POLICY, gives=POLICY)(set_policy)
    permissions = {"takes": TEST_IAM_PERMISSIONS, "gives": TEST_IAM_PERMISSIONS_RESPONSE}
    at("POST", "TestIamPermissions", **permissions)(list_held_permissions)


for _collection, _address in RESOURCES.items():
    _serve_policies(_address)
    for _version in LATER.get(_collection, ()):
        _serve_policies(_address.replace("v1", _version, 1), operation_id="")
