"""The messages of the API (docs/spec.md#json-form): what each field holds, its size, and which ones callers can't set.

Names and types of Pub/Sub's own messages come from Google's protocol buffers (docs/spec.md#json-form). Those of IAM v1
and Resource Manager v1 are written out, because no library that PushHub needs anyway has their descriptors.
"""

from __future__ import annotations

from typing import Any

from pushhub.common.protojson import Bool, Duration, Enum, Message, Repeated, String, StringMap, Struct, Timestamp
from pushhub.common.pubsubtypes import pubsub
from subscriptions.resources import bounds
from subscriptions.resources.descriptors import message_of

NAME = String(1024)
LABELS = StringMap(max_entries=64, max_key_bytes=256, max_value_bytes=256)
TAGS = StringMap(max_entries=64)
EMAIL = String(320)
REVISION_ID = String(64)

TRANSFORM = message_of(
    pubsub.MessageTransform.DESCRIPTOR,
    kinds={"AIInference.serviceAccountEmail": EMAIL, "JavaScriptUDF.code": String(bounds.FUNCTION_CODE_BYTES)},
)
TRANSFORMS = Repeated(TRANSFORM, max_items=5)

#: The bounds of values: of all fields of a name that hold texts, and of fields of one message.
KINDS = {
    **dict.fromkeys(("name", "parent", "topic", "deadLetterTopic", "subscription", "snapshot", "schema"), NAME),
    **dict.fromkeys(("serviceAccountEmail", "gcpServiceAccount"), EMAIL),
    **dict.fromkeys(("revisionId", "firstRevisionId", "lastRevisionId"), REVISION_ID),
    "labels": LABELS,
    "tags": TAGS,
    "BigtableConfig.ColumnFamilyMapping.DelimitedKey.delimiter": String(64),
    "BigtableConfig.ColumnFamilyMapping.DelimitedKey.keyFields": Repeated(String(256)),
    # schemarules sets the real bound, 300 KB before base64.
    "CompiledProtoSchema.compiledBytes": String(1_000_000),
    "CompiledProtoSchema.rootMessage": String(1024),
    "MessageStoragePolicy.allowedPersistenceRegions": Repeated(String(64)),
    "PubsubMessage.attributes": StringMap(max_entries=100, max_key_bytes=256, max_value_bytes=1024),
    # 10 MB in base64.
    "PubsubMessage.data": String(14_000_000),
    "PubsubMessage.orderingKey": String(1024),
    "PushConfig.OidcToken.audience": String(2048),
    # schemarules sets the real bound, because the text of its error is production's.
    "Schema.definition": String(1_000_000),
    "Subscription.filter": String(256),
    "Subscription.messageTransforms": TRANSFORMS,
    "Topic.kmsKeyName": NAME,
    "Topic.messageTransforms": TRANSFORMS,
    # 10 MB in base64.
    "ValidateMessageRequest.message": String(14_000_000),
}
#: Fields that only PushHub sets. Callers may send them, as they do when they send back what they read.
OUTPUT_ONLY = frozenset(
    {
        "state",
        "Schema.revisionCreateTime",
        "Schema.revisionId",
        "PubsubMessage.messageId",
        "PubsubMessage.publishTime",
        "Snapshot.expireTime",
        "Snapshot.topic",
        "Subscription.analyticsHubSubscriptionInfo",
        "Subscription.detached",
        "Subscription.topicMessageRetentionDuration",
        "Topic.satisfiesPzs",
    }
)


def _message(proto: Any, **of_pushhub: Message) -> Message:
    """The field table of a message class. `of_pushhub` has tables of its fields."""
    descriptor = proto.DESCRIPTOR
    kinds = {f"{descriptor.name}.{field}": message for field, message in of_pushhub.items()}
    return message_of(descriptor, kinds={**KINDS, **kinds}, output_only=OUTPUT_ONLY)


TOPIC = _message(pubsub.Topic)
UPDATE_TOPIC = _message(pubsub.UpdateTopicRequest)
SUBSCRIPTION = _message(pubsub.Subscription).with_output(paused=Message("Pause", {"by": EMAIL, "since": Timestamp()}))
UPDATE_SUBSCRIPTION = _message(pubsub.UpdateSubscriptionRequest, subscription=SUBSCRIPTION)
MODIFY_PUSH_CONFIG = _message(pubsub.ModifyPushConfigRequest)
DETACH_SUBSCRIPTION = _message(pubsub.DetachSubscriptionRequest)
SEEK = _message(pubsub.SeekRequest)
SNAPSHOT = _message(pubsub.Snapshot)
CREATE_SNAPSHOT = _message(pubsub.CreateSnapshotRequest)
UPDATE_SNAPSHOT = _message(pubsub.UpdateSnapshotRequest)
SCHEMA = _message(pubsub.Schema)
COMMIT_SCHEMA = _message(pubsub.CommitSchemaRequest)
ROLLBACK_SCHEMA = _message(pubsub.RollbackSchemaRequest)
VALIDATE_SCHEMA = _message(pubsub.ValidateSchemaRequest)
VALIDATE_MESSAGE = _message(pubsub.ValidateMessageRequest)

PUBSUB_MESSAGE = _message(pubsub.PubsubMessage)
VALIDATE_MESSAGE_TRANSFORM = Message("ValidateMessageTransformRequest", {"messageTransform": TRANSFORM})
TEST_TRANSFORMS = Message(
    "TestMessageTransformsRequest",
    {
        "message": PUBSUB_MESSAGE,
        "messageTransforms": Message("MessageTransforms", {"messageTransforms": TRANSFORMS}),
        "topic": NAME,
        "subscription": NAME,
    },
)
TEST_RESPONSE = Message(
    "TestMessageTransformsResponse",
    {
        "transformedMessages": Repeated(
            Message(
                "TransformedMessage",
                {
                    "transformedMessage": PUBSUB_MESSAGE,
                    "messageFiltered": Message("MessageFiltered", {}),
                    "messageTransformFailure": Message("MessageTransformFailure", {"description": String()}),
                },
            )
        )
    },
)

SERVICE_ACCOUNT = Message(
    "ServiceAccount",
    {
        "name": NAME,
        "projectId": String(),
        "uniqueId": String(),
        "email": String(),
        "displayName": String(100),
        "etag": String(),
        "description": String(256),
        "oauth2ClientId": String(),
        "disabled": Bool(),
    },
    output_only=frozenset({"projectId", "uniqueId", "email", "oauth2ClientId", "disabled", "etag"}),
)

CREATE_SERVICE_ACCOUNT = Message(
    "CreateServiceAccountRequest", {"accountId": String(100), "serviceAccount": SERVICE_ACCOUNT}
)
PATCH_SERVICE_ACCOUNT = Message(
    "PatchServiceAccountRequest", {"serviceAccount": SERVICE_ACCOUNT, "updateMask": String(4096)}
)
CREATE_SERVICE_ACCOUNT_KEY = Message(
    "CreateServiceAccountKeyRequest",
    {
        "privateKeyType": Enum("TYPE_UNSPECIFIED", "TYPE_PKCS12_FILE", "TYPE_GOOGLE_CREDENTIALS_FILE"),
        "keyAlgorithm": Enum("KEY_ALG_UNSPECIFIED", "KEY_ALG_RSA_1024", "KEY_ALG_RSA_2048"),
    },
)
UPLOAD_SERVICE_ACCOUNT_KEY = Message("UploadServiceAccountKeyRequest", {"publicKeyData": String(32_768)})
SERVICE_ACCOUNT_KEY = Message(
    "ServiceAccountKey",
    {
        "name": NAME,
        "keyAlgorithm": String(),
        "keyOrigin": String(),
        "keyType": String(),
        "validAfterTime": Timestamp(),
        "validBeforeTime": Timestamp(),
        "disabled": Bool(),
        "privateKeyType": String(),
        "privateKeyData": String(),
        "publicKeyData": String(),
    },
)
DISABLE_KEY = Message(
    "DisableServiceAccountKeyRequest",
    {"serviceAccountKeyDisableReason": String(100), "extendedStatusMessage": String(1000)},
)
UNDELETE_SERVICE_ACCOUNT = Message("UndeleteServiceAccountResponse", {"restoredAccount": SERVICE_ACCOUNT})
DELEGATES = Repeated(NAME, max_items=10)
GENERATE_ACCESS_TOKEN = Message(
    "GenerateAccessTokenRequest",
    {"delegates": DELEGATES, "scope": Repeated(String(200), max_items=50), "lifetime": Duration()},
)
ACCESS_TOKEN = Message("GenerateAccessTokenResponse", {"accessToken": String(), "expireTime": Timestamp()})
GENERATE_ID_TOKEN = Message(
    "GenerateIdTokenRequest",
    {
        "delegates": DELEGATES,
        "audience": String(2048),
        "includeEmail": Bool(),
        "useEmailAzp": Bool(),
        "organizationNumberIncluded": Bool(),
    },
)
ID_TOKEN = Message("GenerateIdTokenResponse", {"token": String()})
RESOURCE_ID = Message("ResourceId", {"type": String(), "id": String()})
PROJECT = Message(
    "Project",
    {
        "projectNumber": String(),
        "projectId": String(100),
        "lifecycleState": String(),
        "name": String(100),
        "createTime": Timestamp(),
        "labels": LABELS,
        "parent": RESOURCE_ID,
        "tags": TAGS,
    },
    output_only=frozenset({"projectNumber", "lifecycleState", "createTime"}),
)
ANCESTRY = Message("GetAncestryResponse", {"ancestor": Repeated(Message("Ancestor", {"resourceId": RESOURCE_ID}))})
OPERATION = Message("Operation", {"name": String(), "done": Bool(), "metadata": Struct(), "response": Struct()})
EMPTY = Message("Empty", {})
