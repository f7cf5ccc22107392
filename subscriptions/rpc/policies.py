"""google.iam.v1.IAMPolicy: the policies of all resources that have one."""

from __future__ import annotations

from typing import Any

from google.iam.v1 import policy_pb2

from subscriptions.api import policies
from subscriptions.rpc.calls import Method
from subscriptions.rpc.protobuf import to_dict
from subscriptions.rpc.unary import answered_by


def _policy_to_set(request: Any) -> dict[str, Any]:
    values: dict[str, Any] = {"policy": to_dict(request.policy)} if request.HasField("policy") else {}
    if request.update_mask.paths:
        values["updateMask"] = ",".join(request.update_mask.paths)
    return values


METHODS: dict[str, Method] = dict(
    [
        answered_by(policies.get_policy, answer=policy_pb2.Policy),
        answered_by(policies.set_policy, answer=policy_pb2.Policy, body=_policy_to_set),
        answered_by(policies.list_held_permissions, name="resource"),
    ]
)
