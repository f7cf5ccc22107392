"""The messages of google.iam.v1, derived from its protocol buffers, and those of IAM v1's roles, written out."""

from __future__ import annotations

from google.iam.v1 import iam_policy_pb2, options_pb2, policy_pb2

from pushhub.common.protojson import Bool, Enum, Message, Repeated, String
from subscriptions.iam.policies import MAX_PRINCIPALS
from subscriptions.resources.descriptors import message_of

ETAG = String(256)
MEMBER = String(400)

#: The fields whose values have bounds of their own.
KINDS = {
    "resource": String(1024),
    "role": String(300),
    "etag": ETAG,
    "AuditLogConfig.exemptedMembers": Repeated(MEMBER, max_items=MAX_PRINCIPALS),
    # More members than are allowed can be read, because the error about their count has a text of its own.
    "Binding.members": Repeated(MEMBER, max_items=10 * MAX_PRINCIPALS),
    "SetIamPolicyRequest.updateMask": String(1024),
    "TestIamPermissionsRequest.permissions": Repeated(String(200), max_items=10_000),
}
_binding = message_of(policy_pb2.Binding.DESCRIPTOR, kinds=KINDS)
#: Only the REST form of a binding has an id.
BINDING = Message(_binding.name, {**_binding.fields, "bindingId": String()})
KINDS["Policy.bindings"] = Repeated(BINDING, max_items=MAX_PRINCIPALS)
POLICY = message_of(policy_pb2.Policy.DESCRIPTOR, kinds=KINDS)
OPTIONS = message_of(options_pb2.GetPolicyOptions.DESCRIPTOR)
GET_IAM_POLICY = message_of(iam_policy_pb2.GetIamPolicyRequest.DESCRIPTOR, kinds=KINDS)
SET_IAM_POLICY = message_of(iam_policy_pb2.SetIamPolicyRequest.DESCRIPTOR, kinds=KINDS)
TEST_IAM_PERMISSIONS = message_of(iam_policy_pb2.TestIamPermissionsRequest.DESCRIPTOR, kinds=KINDS)
TEST_IAM_PERMISSIONS_RESPONSE = message_of(iam_policy_pb2.TestIamPermissionsResponse.DESCRIPTOR)

STAGE = Enum("ALPHA", "BETA", "GA", "DEPRECATED", "DISABLED", "EAP")
ROLE = Message(
    "Role",
    {
        "name": String(300),
        "title": String(100),
        "description": String(300),
        "includedPermissions": Repeated(String(200), max_items=3000),
        "stage": STAGE,
        "etag": ETAG,
        "deleted": Bool(),
    },
    output_only=frozenset({"deleted"}),
)
CREATE_ROLE = Message("CreateRoleRequest", {"parent": String(300), "roleId": String(100), "role": ROLE})
UNDELETE_ROLE = Message("UndeleteRoleRequest", {"name": String(300), "etag": ETAG})
