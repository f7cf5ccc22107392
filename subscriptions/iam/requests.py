"""The messages of google.iam.v1 and of IAM v1's roles, field by field."""

from __future__ import annotations

from pushhub.common.protojson import Bool, Enum, Integer, Message, Repeated, String
from subscriptions.iam.policies import MAX_PRINCIPALS

ETAG = String(256)

CONDITION = Message("Expr", {"expression": String(), "title": String(), "description": String(), "location": String()})
BINDING = Message(
    "Binding",
    {
        "role": String(300),
        # One more than allowed may be read, so that the count has an error text of its own.
        "members": Repeated(String(400), max_items=10 * MAX_PRINCIPALS),
        "condition": CONDITION,
        "bindingId": String(),
    },
)
AUDIT_CONFIG = Message(
    "AuditConfig",
    {
        "service": String(),
        "auditLogConfigs": Repeated(
            Message(
                "AuditLogConfig",
                {
                    "logType": Enum("LOG_TYPE_UNSPECIFIED", "ADMIN_READ", "DATA_WRITE", "DATA_READ"),
                    "exemptedMembers": Repeated(String(400), max_items=MAX_PRINCIPALS),
                },
            )
        ),
    },
)
POLICY = Message(
    "Policy",
    {
        "version": Integer(32),
        "bindings": Repeated(BINDING, max_items=MAX_PRINCIPALS),
        "auditConfigs": Repeated(AUDIT_CONFIG),
        "etag": ETAG,
    },
)
OPTIONS = Message("GetPolicyOptions", {"requestedPolicyVersion": Integer(32)})
GET_IAM_POLICY = Message("GetIamPolicyRequest", {"resource": String(1024), "options": OPTIONS})
SET_IAM_POLICY = Message(
    "SetIamPolicyRequest", {"resource": String(1024), "policy": POLICY, "updateMask": String(1024)}
)
TEST_IAM_PERMISSIONS = Message(
    "TestIamPermissionsRequest", {"resource": String(1024), "permissions": Repeated(String(200), max_items=10_000)}
)
TEST_IAM_PERMISSIONS_RESPONSE = Message("TestIamPermissionsResponse", {"permissions": Repeated(String())})

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
