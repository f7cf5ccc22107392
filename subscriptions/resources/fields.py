"""The resources of the API, field by field, with their kinds in `pubsub.proto` (pubsub-spec.md, section 1.4)."""

from __future__ import annotations

from pushhub.common.protojson import (
    Bool,
    Duration,
    Enum,
    Integer,
    Message,
    Repeated,
    String,
    StringMap,
    Struct,
    Timestamp,
)

NAME = String(1024)
LABELS = StringMap(max_entries=64, max_key_bytes=256, max_value_bytes=256)
TAGS = StringMap(max_entries=64)
STATE = Enum("STATE_UNSPECIFIED", "ACTIVE", "RESOURCE_ERROR")
STATE_ONLY = frozenset({"state"})
#: A user-defined function may have 20 KB of code.
CODE = String(20_480)

MESSAGE_TRANSFORM = Message(
    "MessageTransform",
    {
        "javascriptUdf": Message("JavaScriptUDF", {"functionName": String(), "code": CODE}),
        "aiInference": Message(
            "AIInference",
            {
                "endpoint": String(),
                "serviceAccountEmail": String(320),
                "unstructuredInference": Message("UnstructuredInference", {"parameters": Struct()}),
            },
        ),
        "compression": Message(
            "Compression",
            {
                "compressionAlgorithm": Enum("COMPRESSION_ALGORITHM_UNSPECIFIED", "ZLIB", "ZSTD"),
                "compressionMode": Enum("COMPRESSION_MODE_UNSPECIFIED", "COMPRESS", "DECOMPRESS"),
            },
        ),
        "disabled": Bool(),
        "enabled": Bool(),
    },
    oneofs={"transform": ("javascriptUdf", "aiInference", "compression")},
)
MESSAGE_TRANSFORMS = Repeated(MESSAGE_TRANSFORM, max_items=5)

INGESTION = Message(
    "IngestionDataSourceSettings",
    {
        "awsKinesis": Message(
            "AwsKinesis",
            {
                "state": STATE,
                "streamArn": String(),
                "consumerArn": String(),
                "awsRoleArn": String(),
                "gcpServiceAccount": String(320),
            },
            output_only=STATE_ONLY,
        ),
        "cloudStorage": Message(
            "CloudStorage",
            {
                "state": STATE,
                "bucket": String(),
                "textFormat": Message("TextFormat", {"delimiter": String()}),
                "avroFormat": Message("AvroFormat", {}),
                "pubsubAvroFormat": Message("PubSubAvroFormat", {}),
                "minimumObjectCreateTime": Timestamp(),
                "matchGlob": String(),
            },
            output_only=STATE_ONLY,
            oneofs={"input_format": ("textFormat", "avroFormat", "pubsubAvroFormat")},
        ),
        "azureEventHubs": Message(
            "AzureEventHubs",
            {
                "state": STATE,
                "resourceGroup": String(),
                "namespace": String(),
                "eventHub": String(),
                "clientId": String(),
                "tenantId": String(),
                "subscriptionId": String(),
                "gcpServiceAccount": String(320),
            },
            output_only=STATE_ONLY,
        ),
        "awsMsk": Message(
            "AwsMsk",
            {
                "state": STATE,
                "clusterArn": String(),
                "topic": String(),
                "awsRoleArn": String(),
                "gcpServiceAccount": String(320),
            },
            output_only=STATE_ONLY,
        ),
        "confluentCloud": Message(
            "ConfluentCloud",
            {
                "state": STATE,
                "bootstrapServer": String(),
                "clusterId": String(),
                "topic": String(),
                "identityPoolId": String(),
                "gcpServiceAccount": String(320),
            },
            output_only=STATE_ONLY,
        ),
        "platformLogsSettings": Message(
            "PlatformLogsSettings",
            {"severity": Enum("SEVERITY_UNSPECIFIED", "DISABLED", "DEBUG", "INFO", "WARNING", "ERROR")},
        ),
    },
    oneofs={"source": ("awsKinesis", "cloudStorage", "azureEventHubs", "awsMsk", "confluentCloud")},
)

ENCODING = Enum("ENCODING_UNSPECIFIED", "JSON", "BINARY")
TOPIC = Message(
    "Topic",
    {
        "name": NAME,
        "labels": LABELS,
        "messageStoragePolicy": Message(
            "MessageStoragePolicy",
            {"allowedPersistenceRegions": Repeated(String(64), max_items=100), "enforceInTransit": Bool()},
        ),
        "kmsKeyName": NAME,
        "schemaSettings": Message(
            "SchemaSettings",
            {
                "schema": NAME,
                "encoding": ENCODING,
                "firstRevisionId": String(64),
                "lastRevisionId": String(64),
            },
        ),
        "satisfiesPzs": Bool(),
        "messageRetentionDuration": Duration(),
        "state": Enum("STATE_UNSPECIFIED", "ACTIVE", "INGESTION_RESOURCE_ERROR"),
        "ingestionDataSourceSettings": INGESTION,
        "messageTransforms": MESSAGE_TRANSFORMS,
        "tags": TAGS,
    },
    output_only=frozenset({"satisfiesPzs", "state"}),
)

PUSH_CONFIG = Message(
    "PushConfig",
    {
        "pushEndpoint": String(),
        "attributes": StringMap(),
        "oidcToken": Message("OidcToken", {"serviceAccountEmail": String(320), "audience": String(2048)}),
        "pubsubWrapper": Message("PubsubWrapper", {}),
        "noWrapper": Message("NoWrapper", {"writeMetadata": Bool()}),
    },
    oneofs={"wrapper": ("pubsubWrapper", "noWrapper")},
)

EXPORTS = {
    "bigqueryConfig": Message(
        "BigQueryConfig",
        {
            "table": String(),
            "useTopicSchema": Bool(),
            "useTableSchema": Bool(),
            "writeMetadata": Bool(),
            "dropUnknownFields": Bool(),
            "serviceAccountEmail": String(320),
            "state": STATE,
        },
        output_only=STATE_ONLY,
    ),
    "cloudStorageConfig": Message(
        "CloudStorageConfig",
        {
            "bucket": String(),
            "filenamePrefix": String(),
            "filenameSuffix": String(),
            "filenameDatetimeFormat": String(),
            "textConfig": Message("TextConfig", {}),
            "avroConfig": Message("AvroConfig", {"writeMetadata": Bool(), "useTopicSchema": Bool()}),
            "maxDuration": Duration(),
            "maxBytes": Integer(64),
            "maxMessages": Integer(64),
            "serviceAccountEmail": String(320),
            "state": STATE,
        },
        output_only=STATE_ONLY,
        oneofs={"output_format": ("textConfig", "avroConfig")},
    ),
    "bigtableConfig": Message(
        "BigtableConfig",
        {
            "table": String(),
            "appProfileId": String(),
            "serviceAccountEmail": String(320),
            "writeMetadata": Bool(),
            "columnFamilyMapping": Message(
                "ColumnFamilyMapping",
                {
                    "delimitedKey": Message(
                        "DelimitedKey", {"delimiter": String(64), "keyFields": Repeated(String(256))}
                    ),
                    "rowKeySchema": Message("RowKeySchema", {}),
                },
                oneofs={"key_definition": ("delimitedKey", "rowKeySchema")},
            ),
            "state": STATE,
        },
        output_only=STATE_ONLY,
    ),
}

SUBSCRIPTION = Message(
    "Subscription",
    {
        "name": NAME,
        "topic": NAME,
        "pushConfig": PUSH_CONFIG,
        "ackDeadlineSeconds": Integer(32),
        "retainAckedMessages": Bool(),
        "messageRetentionDuration": Duration(),
        "labels": LABELS,
        "enableMessageOrdering": Bool(),
        "expirationPolicy": Message("ExpirationPolicy", {"ttl": Duration()}),
        "filter": String(256),
        "deadLetterPolicy": Message("DeadLetterPolicy", {"deadLetterTopic": NAME, "maxDeliveryAttempts": Integer(32)}),
        "retryPolicy": Message("RetryPolicy", {"minimumBackoff": Duration(), "maximumBackoff": Duration()}),
        "detached": Bool(),
        "enableExactlyOnceDelivery": Bool(),
        "topicMessageRetentionDuration": Duration(),
        **EXPORTS,
        "state": STATE,
        "analyticsHubSubscriptionInfo": Message(
            "AnalyticsHubSubscriptionInfo", {"listing": String(), "subscription": String()}
        ),
        "messageTransforms": MESSAGE_TRANSFORMS,
        "tags": TAGS,
    },
    output_only=frozenset({"detached", "topicMessageRetentionDuration", "state", "analyticsHubSubscriptionInfo"}),
)

SNAPSHOT = Message(
    "Snapshot",
    {"name": NAME, "topic": NAME, "expireTime": Timestamp(), "labels": LABELS},
    output_only=frozenset({"topic", "expireTime"}),
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

SCHEMA_TYPE = Enum("TYPE_UNSPECIFIED", "PROTOCOL_BUFFER", "AVRO")
SCHEMA = Message(
    "Schema",
    {
        "name": NAME,
        "type": SCHEMA_TYPE,
        # Bounded for good by schemarules, whose error has production's form.
        "definition": String(1_000_000),
        "compiledProtoSchema": Message("CompiledProtoSchema", {"rootMessage": String(), "compiledBytes": String()}),
        "revisionId": String(64),
        "revisionCreateTime": Timestamp(),
    },
    output_only=frozenset({"revisionId", "revisionCreateTime"}),
)
COMMIT_SCHEMA = Message("CommitSchemaRequest", {"name": NAME, "schema": SCHEMA})
ROLLBACK_SCHEMA = Message("RollbackSchemaRequest", {"name": NAME, "revisionId": String(64)})
VALIDATE_SCHEMA = Message("ValidateSchemaRequest", {"parent": NAME, "schema": SCHEMA})
VALIDATE_MESSAGE = Message(
    "ValidateMessageRequest",
    # 10 MB in base64.
    {"parent": NAME, "name": NAME, "schema": SCHEMA, "message": String(14_000_000), "encoding": ENCODING},
)

UPDATE_TOPIC = Message("UpdateTopicRequest", {"topic": TOPIC, "updateMask": String(4096)})
UPDATE_SUBSCRIPTION = Message("UpdateSubscriptionRequest", {"subscription": SUBSCRIPTION, "updateMask": String(4096)})
MODIFY_PUSH_CONFIG = Message("ModifyPushConfigRequest", {"subscription": NAME, "pushConfig": PUSH_CONFIG})
DETACH_SUBSCRIPTION = Message("DetachSubscriptionRequest", {"subscription": NAME})
CREATE_SNAPSHOT = Message("CreateSnapshotRequest", {"name": NAME, "subscription": NAME, "labels": LABELS, "tags": TAGS})
UPDATE_SNAPSHOT = Message("UpdateSnapshotRequest", {"snapshot": SNAPSHOT, "updateMask": String(4096)})
SEEK = Message(
    "SeekRequest",
    {"subscription": NAME, "time": Timestamp(), "snapshot": NAME},
    oneofs={"target": ("time", "snapshot")},
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
GENERATE_ACCESS_TOKEN_RESPONSE = Message(
    "GenerateAccessTokenResponse", {"accessToken": String(), "expireTime": Timestamp()}
)
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
GENERATE_ID_TOKEN_RESPONSE = Message("GenerateIdTokenResponse", {"token": String()})
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
