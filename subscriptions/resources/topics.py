"""Topics: from the values of a request to the columns of a row, and back."""

from __future__ import annotations

from typing import Any

from pushhub.common import names
from pushhub.common.errors import InvalidArgument
from subscriptions import selectors
from subscriptions.models import Topic
from subscriptions.resources import bounds
from subscriptions.resources.fields import TOPIC
from subscriptions.resources.table import (
    Field,
    Table,
    Values,
    column,
    duration_ms,
    show_duration,
    store_duration,
    unsupported,
)
from subscriptions.resources.transforms import transforms_stored


def topic_resource(topic: Topic) -> dict[str, Any]:
    return {"name": topic.name, **FIELDS.show(topic), "state": "ACTIVE"}


def _store_storage_policy(topic: Topic, values: Values) -> None:
    policy = values.get("messageStoragePolicy")
    if policy is not None and not policy.get("allowedPersistenceRegions"):
        raise InvalidArgument(
            "The message storage policy must allow at least one region.",
            field="messageStoragePolicy.allowedPersistenceRegions",
        )
    topic.message_storage_policy = policy


def _store_schema_settings(topic: Topic, values: Values) -> None:
    """Keep the schema's canonical name, so that deleting the schema finds the topic.

    Settings that don't change are not checked, because their schema may have been deleted.
    """
    schema_settings = values.get("schemaSettings")
    if schema_settings is None or schema_settings == topic.schema_settings:
        topic.schema_settings = schema_settings
        return
    field = "schemaSettings.schema"
    name = schema_settings.get("schema", "")
    if names.parse_schema(name, field=field)[2]:
        raise names.invalid_name(name, field=field)
    if not schema_settings.get("encoding"):
        raise InvalidArgument("The encoding must be JSON or BINARY.", field="schemaSettings.encoding")
    schema = selectors.get_schema(name=name, field=field, lock=True)
    ends = [
        selectors.get_schema_revision(schema=schema, revision_id=schema_settings[end], field=f"schemaSettings.{end}").pk
        for end in ("firstRevisionId", "lastRevisionId")
        if end in schema_settings
    ]
    if ends != sorted(ends):
        raise InvalidArgument(
            "The first revision must not be newer than the last.", field="schemaSettings.firstRevisionId"
        )
    topic.schema_settings = {**schema_settings, "schema": schema.name}


def _store_retention(topic: Topic, values: Values) -> None:
    milliseconds = duration_ms(values.get("messageRetentionDuration"), "messageRetentionDuration")
    store_duration(topic, "message_retention", None if milliseconds is None else bounds.retention(milliseconds))


def _refuse_ingestion(topic: Topic, values: Values) -> None:
    """Accept only empty settings, which clear those of the topic."""
    if values.get("ingestionDataSourceSettings"):
        raise unsupported("ingestionDataSourceSettings")


FIELDS: Table[Topic] = Table(
    TOPIC,
    [
        column("labels", "labels", bounds.labels),
        Field("messageStoragePolicy", _store_storage_policy, lambda topic: topic.message_storage_policy),
        Field("schemaSettings", _store_schema_settings, lambda topic: topic.schema_settings),
        Field("messageRetentionDuration", _store_retention, lambda topic: show_duration(topic, "message_retention")),
        column("messageTransforms", "message_transforms", transforms_stored),
        Field("ingestionDataSourceSettings", _refuse_ingestion, lambda topic: None),
    ],
    fixed=frozenset({"name", "tags"}),
)
