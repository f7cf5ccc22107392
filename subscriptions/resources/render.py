"""Rows as resources of the API, in canonical JSON form: defaults and empty values are left out."""

from __future__ import annotations

import base64
from typing import Any

from pushhub.common.names import DELETED_TOPIC
from pushhub.common.protojson import format_timestamp
from subscriptions.models import ServiceAccount, Snapshot
from subscriptions.models.credentials import ServiceAccountKey
from subscriptions.models.schemas import SchemaRevision
from subscriptions.resources.table import drop_falsy


def snapshot_resource(snapshot: Snapshot) -> dict[str, Any]:
    return drop_falsy(
        {
            "name": snapshot.name,
            "topic": snapshot.topic.name if snapshot.topic else DELETED_TOPIC,
            "expireTime": format_timestamp(snapshot.expire_at),
            "labels": snapshot.labels,
        }
    )


def schema_resource(revision: SchemaRevision, *, full: bool = True) -> dict[str, Any]:
    """Return a schema at one of its revisions. Without `full`, the definition is left out."""
    return {
        "name": revision.schema.name,
        "type": revision.schema.type,
        **(_definition(revision) if full else {}),
        "revisionId": revision.revision_id,
        "revisionCreateTime": format_timestamp(revision.created_at),
    }


def _definition(revision: SchemaRevision) -> dict[str, Any]:
    if not revision.root_message:
        return {"definition": revision.definition}
    compiled = base64.b64encode(revision.compiled).decode()
    return {"compiledProtoSchema": {"rootMessage": revision.root_message, "compiledBytes": compiled}}


def service_account_resource(account: ServiceAccount) -> dict[str, Any]:
    return drop_falsy(
        {
            "name": account.name,
            "projectId": account.project.project_id,
            "uniqueId": account.unique_id,
            "email": account.email,
            "displayName": account.display_name,
            "description": account.description,
            "oauth2ClientId": account.unique_id,
            "disabled": account.is_disabled,
        }
    )


def service_account_key_resource(key: ServiceAccountKey) -> dict[str, Any]:
    """Return a key without its private half, which PushHub doesn't store."""
    return drop_falsy(
        {
            "name": key.name,
            "keyAlgorithm": "KEY_ALG_RSA_2048",
            "validAfterTime": format_timestamp(key.created_at),
            "validBeforeTime": format_timestamp(key.expires_at),
            "keyOrigin": "USER_PROVIDED" if key.uploaded else "GOOGLE_PROVIDED",
            "keyType": "USER_MANAGED",
            "disabled": key.disabled,
        }
    )
