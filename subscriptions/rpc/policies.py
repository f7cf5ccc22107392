"""google.iam.v1.IAMPolicy: the policies of all resources that have one."""

from __future__ import annotations

from typing import Any

from google.iam.v1 import iam_policy_pb2, policy_pb2

from pushhub.common.principals import Principal
from subscriptions.iam import grants
from subscriptions.iam.tree import Resource, get_resource
from subscriptions.rpc.calls import Method, Unary
from subscriptions.rpc.protobuf import to_dict, to_message
from subscriptions.services.projects import ensure_project


def _resource(name: str, caller: Principal) -> Resource:
    words = name.split("/")
    if len(words) == 2 and words[0] == "projects":  # in development, its first use creates it
        return ensure_project(project=words[1], caller=caller)
    return get_resource(name)


def get_policy(request: Any, caller: Principal) -> Any:
    policy = grants.get_policy(_resource(request.resource, caller), options=to_dict(request.options))
    return to_message(policy, policy_pb2.Policy)


def set_policy(request: Any, caller: Principal) -> Any:
    values: dict[str, Any] = {"policy": to_dict(request.policy)} if request.HasField("policy") else {}
    if request.update_mask.paths:
        values["updateMask"] = ",".join(request.update_mask.paths)
    policy = grants.set_policy(_resource(request.resource, caller), values, caller=caller)
    return to_message(policy, policy_pb2.Policy)


def list_held_permissions(request: Any, caller: Principal) -> Any:
    held = grants.list_held_permissions(request.resource, {"permissions": list(request.permissions)}, caller=caller)
    return to_message(held, iam_policy_pb2.TestIamPermissionsResponse)


METHODS: dict[str, Method] = {
    "GetIamPolicy": Unary(iam_policy_pb2.GetIamPolicyRequest, policy_pb2.Policy, get_policy),
    "SetIamPolicy": Unary(iam_policy_pb2.SetIamPolicyRequest, policy_pb2.Policy, set_policy),
    "TestIamPermissions": Unary(
        iam_policy_pb2.TestIamPermissionsRequest, iam_policy_pb2.TestIamPermissionsResponse, list_held_permissions
    ),
}
