"""What is derived from Google's protocol buffers, and the tables that store and show each field."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from google.protobuf.descriptor import Descriptor
from google.pubsub_v1.types import pubsub, schema

from pushhub.common.errors import Unimplemented
from pushhub.common.protojson import Duration, Enum, Integer, Message, Repeated, String, StringMap, Timestamp
from subscriptions.models import Subscription, Topic
from subscriptions.resources import fields, subscriptions, topics
from subscriptions.resources.table import Table, Values


def positions(descriptor: Descriptor) -> Iterator[str]:
    """Return every `Message.field` of a message and of the messages inside it."""
    name = descriptor.full_name.removeprefix("google.pubsub.v1.")
    for field in descriptor.fields:
        yield f"{name}.{field.json_name}"
        if field.message_type is not None and field.message_type.full_name.startswith("google.pubsub.v1."):
            yield from positions(field.message_type)


def test_every_bound_and_mark_belongs_to_an_existing_field() -> None:
    files = {pubsub.Topic.pb().DESCRIPTOR.file, schema.Schema.pb().DESCRIPTOR.file}
    messages = [message for file in files for message in file.message_types_by_name.values()]
    existing = {position for message in messages for position in positions(message)}
    existing |= {position.rpartition(".")[2] for position in existing}

    assert fields.KINDS.keys() - existing == set()
    assert fields.OUTPUT_ONLY - existing == set()


def test_names_and_types_come_from_the_descriptor() -> None:
    types = {name: type(kind) for name, kind in fields.SNAPSHOT.fields.items()}

    assert types == {"name": String, "topic": String, "expireTime": Timestamp, "labels": StringMap}
    assert isinstance(fields.SUBSCRIPTION.fields["messageRetentionDuration"], Duration)
    assert isinstance(fields.SUBSCRIPTION.fields["ackDeadlineSeconds"], Integer)
    assert fields.SEEK.oneofs == {"target": ("time", "snapshot")}


def test_an_enum_is_read_by_the_number_that_the_descriptor_has() -> None:
    transforms = fields.TOPIC.fields["messageTransforms"]
    assert isinstance(transforms, Repeated)
    assert isinstance(transforms.kind, Message)
    compression = transforms.kind.fields["compression"]
    assert isinstance(compression, Message)
    algorithm = compression.fields["compressionAlgorithm"]
    assert isinstance(algorithm, Enum)
    numbers = {value.name: value.value for value in pubsub.Compression.CompressionAlgorithm}

    for name, number in numbers.items():
        assert algorithm.read(number, "x") == algorithm.read(name, "x")


@pytest.mark.parametrize(
    "values",
    [
        {"enableExactlyOnceDelivery": True},
        {"expirationPolicy": {"ttl": "86400s"}},
        {"expirationPolicy": {}, "enableExactlyOnceDelivery": True, "labels": {"a": "b"}},
        {"pushConfig": {"pushEndpoint": "https://shop.example/push"}, "retryPolicy": {}},
    ],
)
def test_the_order_of_the_fields_does_not_matter(values: Values) -> None:
    backwards: Table[Subscription] = Table(
        fields.SUBSCRIPTION,
        [*reversed(subscriptions.FIELDS.fields.values())],
        fixed=frozenset({"name", "topic", "tags"}),
    )
    first, second = Subscription(), Subscription()

    subscriptions.FIELDS.store(first, values)
    backwards.store(second, values)

    assert subscriptions.FIELDS.show(first) == backwards.show(second)


def test_a_field_without_a_row_in_the_table_is_refused_by_name() -> None:
    with pytest.raises(Unimplemented) as caught:
        subscriptions.FIELDS.store(Subscription(), {"bigqueryConfig": {}})

    assert caught.value.field == "bigqueryConfig"


def test_empty_ingestion_settings_clear_and_others_are_refused() -> None:
    topics.FIELDS.store(Topic(), {"ingestionDataSourceSettings": {}})

    with pytest.raises(Unimplemented) as caught:
        topics.FIELDS.store(Topic(), {"ingestionDataSourceSettings": {"awsKinesis": {}}})

    assert caught.value.field == "ingestionDataSourceSettings"
