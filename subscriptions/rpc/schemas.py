"""google.pubsub.v1.SchemaService."""

from __future__ import annotations

from pushhub.common.pubsubtypes import schema
from subscriptions.api import schemas
from subscriptions.rpc.calls import LARGE_REQUEST_BYTES, Method
from subscriptions.rpc.unary import answered_by, part

Schema = schema.Schema.pb()

METHODS: dict[str, Method] = dict(
    [
        answered_by(schemas.create_schema, answer=Schema, body=part("schema")),
        answered_by(schemas.get_schema, answer=Schema),
        answered_by(schemas.list_schemas),
        answered_by(schemas.list_schema_revisions),
        answered_by(schemas.commit_schema, answer=Schema),
        answered_by(schemas.rollback_schema, answer=Schema),
        answered_by(schemas.delete_schema_revision, answer=Schema),
        answered_by(schemas.delete_schema),
        answered_by(schemas.validate_schema),
        answered_by(schemas.validate_message, most_bytes=LARGE_REQUEST_BYTES),
    ]
)
