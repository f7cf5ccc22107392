"""Every method of the official Python client's SchemaServiceClient, and a publish that is checked against a schema."""

from __future__ import annotations

from collections.abc import Iterator

import grpc
import pytest
from google.api_core import exceptions
from google.cloud import pubsub_v1
from google.pubsub_v1.services.schema_service.transports import SchemaServiceGrpcTransport
from google.pubsub_v1.types import Encoding, Schema, SchemaSettings, SchemaView

from tests.grpcservers import GrpcServer

PARENT = "projects/shop"
NAME = f"{PARENT}/schemas/order"
AVRO = '{"type":"record","name":"Order","fields":[{"name":"id","type":"long"}]}'
WIDER = AVRO.replace("]}", ',{"name":"note","type":"string","default":""}]}')


@pytest.fixture
def client(server: GrpcServer) -> Iterator[pubsub_v1.SchemaServiceClient]:
    with grpc.insecure_channel(server.address) as channel:
        yield pubsub_v1.SchemaServiceClient(transport=SchemaServiceGrpcTransport(channel=channel))


def schema(definition: str = AVRO) -> Schema:
    return Schema(name=NAME, type_=Schema.Type.AVRO, definition=definition)


def create(client: pubsub_v1.SchemaServiceClient) -> Schema:
    return client.create_schema(
        parent=PARENT, schema=Schema(type_=Schema.Type.AVRO, definition=AVRO), schema_id="order"
    )


def test_every_method_of_the_schema_client_works(client: pubsub_v1.SchemaServiceClient) -> None:
    first = create(client)
    assert (first.name, first.definition, first.type_) == (NAME, AVRO, Schema.Type.AVRO)
    with pytest.raises(exceptions.AlreadyExists):
        create(client)
    second = client.commit_schema(name=NAME, schema=schema(WIDER))
    third = client.rollback_schema(name=NAME, revision_id=first.revision_id)
    assert client.get_schema(name=NAME) == third
    assert client.get_schema(name=f"{NAME}@{second.revision_id}").definition == WIDER
    assert not client.get_schema(request={"name": NAME, "view": SchemaView.BASIC}).definition
    listed = list(client.list_schemas(request={"parent": PARENT, "view": SchemaView.FULL}))
    assert listed == [third]
    revisions = [
        revision.revision_id for revision in client.list_schema_revisions(request={"name": NAME, "page_size": 2})
    ]
    assert revisions == [first.revision_id, second.revision_id, third.revision_id]
    assert client.delete_schema_revision(request={"name": f"{NAME}@{third.revision_id}"}).definition == WIDER
    client.validate_schema(parent=PARENT, schema=schema())
    with pytest.raises(exceptions.InvalidArgument):
        client.validate_schema(parent=PARENT, schema=schema("{"))
    for spec in ({"name": NAME}, {"schema": schema(WIDER)}):
        request = {"parent": PARENT, "encoding": Encoding.JSON, **spec}
        client.validate_message(request={**request, "message": b'{"id":7,"note":""}'})
        with pytest.raises(exceptions.InvalidArgument, match="message.id must be"):
            client.validate_message(request={**request, "message": b'{"id":"seven","note":""}'})
    client.delete_schema(name=NAME)
    with pytest.raises(exceptions.NotFound):
        client.get_schema(name=NAME)


def test_a_publish_over_grpc_is_checked_against_the_schema(
    client: pubsub_v1.SchemaServiceClient, server: GrpcServer
) -> None:
    create(client)
    publisher = pubsub_v1.PublisherClient()
    topic = f"{PARENT}/topics/orders"
    settings = SchemaSettings(schema=NAME, encoding=Encoding.BINARY)
    publisher.create_topic(request={"name": topic, "schema_settings": settings})
    assert publisher.publish(topic, b"\x0e").result(timeout=30)
    with pytest.raises(exceptions.InvalidArgument, match="failed schema validation"):
        publisher.publish(topic, b"\x0e\x00").result(timeout=30)
