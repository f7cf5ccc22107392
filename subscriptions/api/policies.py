"""Policies over REST: `getIamPolicy`, `setIamPolicy` and `testIamPermissions` of every resource with a policy."""

from __future__ import annotations

from drf_spectacular.utils import OpenApiParameter, extend_schema, extend_schema_view
from rest_framework.request import Request
from rest_framework.response import Response

from pushhub.common.errors import InvalidArgument, clipped
from subscriptions.api.base import ApiView, caller_of
from subscriptions.api.openapi import body, message
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

VERSION = OpenApiParameter("options.requestedPolicyVersion", int, description="0, 1 or 3")


class PolicyView(ApiView):
    """The base of all views of policies. It finds the resource that the URL names."""

    def resource(self, request: Request, **kwargs: str) -> Resource:
        if set(kwargs) == {"project"}:  # in development, the first use creates a project
            return ensure_project(project=kwargs["project"], caller=caller_of(request))
        return get_resource(self.resource_name(**kwargs))


class PolicyRead(PolicyView):
    """Read a policy, by GET as in Pub/Sub."""

    methods = {"GET": "google.iam.v1.IAMPolicy.GetIamPolicy"}

    def get(self, request: Request, **kwargs: str) -> Response:
        return Response(grants.get_policy(self.resource(request, **kwargs), options=_options(request)))


class PolicyPosted(PolicyView):
    """Read a policy, by POST as in IAM and Resource Manager v1."""

    methods = {"POST": "google.iam.v1.IAMPolicy.GetIamPolicy"}

    def post(self, request: Request, **kwargs: str) -> Response:
        options = GET_IAM_POLICY.read(request.data).get("options") or _options(request)
        return Response(grants.get_policy(self.resource(request, **kwargs), options=options))


class PolicyWrite(PolicyView):
    """Replace a policy."""

    methods = {"POST": "google.iam.v1.IAMPolicy.SetIamPolicy"}

    def post(self, request: Request, **kwargs: str) -> Response:
        resource = self.resource(request, **kwargs)
        return Response(grants.set_policy(resource, request.data, caller=caller_of(request)))


class PermissionsTest(PolicyView):
    """Test which of some permissions the caller holds."""

    methods = {"POST": "google.iam.v1.IAMPolicy.TestIamPermissions"}

    def post(self, request: Request, **kwargs: str) -> Response:
        name = self.resource_name(**kwargs)
        return Response(grants.list_held_permissions(name, request.data, caller=caller_of(request)))


def documented(view: type[PolicyView], collection: str) -> type[ApiView]:
    """Return the view of one collection, with its own entry in the OpenAPI document."""
    verb, operation, options = {
        PolicyRead: ("get", "getIamPolicy", {"parameters": [VERSION], "responses": message(POLICY)}),
        PolicyPosted: ("post", "getIamPolicy", {"request": body(GET_IAM_POLICY), "responses": message(POLICY)}),
        PolicyWrite: ("post", "setIamPolicy", {"request": body(SET_IAM_POLICY), "responses": message(POLICY)}),
        PermissionsTest: (
            "post",
            "testIamPermissions",
            {"request": body(TEST_IAM_PERMISSIONS), "responses": message(TEST_IAM_PERMISSIONS_RESPONSE)},
        ),
    }[view]
    schema = extend_schema(operation_id=f"{collection}_{operation}", tags=["policies"], **options)
    shown = type(f"{collection}{view.__name__}", (view,), {"__doc__": view.__doc__})
    return extend_schema_view(**{verb: schema})(shown)


def _options(request: Request) -> dict[str, int | str]:
    version = request.query_params.get("options.requestedPolicyVersion", "")
    if version and not (version.isascii() and version.isdigit() and len(version) < 5):
        raise InvalidArgument(
            f"Invalid value at 'options.requested_policy_version' (TYPE_INT32), \"{clipped(version)}\"",
            field="options.requestedPolicyVersion",
        )
    return {"requestedPolicyVersion": int(version)} if version else {}
