"""The form of a topic sets its schema and its storage policy, and leaves alone what nobody changes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.test import Client

from subscriptions.models import Topic
from subscriptions.models.schemas import Schema
from tests.integration.admin.test_transform_fields import Fields
from tests.restapi import Api, root_client

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.any_database]

RECORD = {"type": "record", "name": "Order", "fields": [{"name": "number", "type": "string"}]}
AVRO = {"type": "AVRO", "definition": json.dumps(RECORD)}


@pytest.fixture
def admin(api: Api, redis_url: str) -> Client:
    api.create("topics/orders")
    assert api.post("schemas?schemaId=order", AVRO).status == 200
    return root_client()


def page() -> str:
    return f"/admin/subscriptions/topic/{Topic.objects.get().pk}/change/"


def save(admin: Client, **fields: Any) -> Any:
    """Open the page of the topic as a browser does, change these fields, and save."""
    sent = Fields(admin.get(page()).content.decode()).values
    return admin.post(page(), {**sent, **{name: str(value) for name, value in fields.items()}})


def test_a_schema_and_a_storage_policy_are_set_kept_and_cleared(admin: Client, api: Api) -> None:
    revision = api.get("schemas/order").body["revisionId"]
    schema = Schema.objects.get().pk
    regions = "eu-1, eu-2"
    fields = {"schema": schema, "encoding": "BINARY", "first_revision": revision, "enforce_in_transit": "on"}
    assert save(admin, **fields, regions=regions).status_code == 302
    settings = {"schema": "projects/shop/schemas/order", "encoding": "BINARY", "firstRevisionId": revision}
    policy = {"allowedPersistenceRegions": ["eu-1", "eu-2"], "enforceInTransit": True}
    assert save(admin, labels='{"team": "a"}').status_code == 302
    topic = api.get("topics/orders").body
    assert (topic["schemaSettings"], topic["messageStoragePolicy"]) == (settings, policy)
    assert topic["labels"] == {"team": "a"}
    assert save(admin, schema="", regions="").status_code == 200, "only regions can be enforced"
    assert api.get("topics/orders").body == topic
    sent = Fields(admin.get(page()).content.decode()).values | {"schema": "", "regions": ""}
    del sent["enforce_in_transit"]
    assert admin.post(page(), sent).status_code == 302
    assert not {"schemaSettings", "messageStoragePolicy"} & api.get("topics/orders").body.keys()


def test_a_topic_whose_schema_was_deleted_can_be_saved_and_goes_on_refusing_messages(admin: Client, api: Api) -> None:
    assert save(admin, schema=Schema.objects.get().pk).status_code == 302
    api.delete("schemas/order")
    assert save(admin, message_retention="1d").status_code == 302
    topic = api.get("topics/orders").body
    assert topic["messageRetentionDuration"] == "86400s"
    assert topic["schemaSettings"]["schema"] == "_deleted-schema_"


def test_a_revision_that_is_not_there_is_an_error_at_its_field(admin: Client) -> None:
    response = save(admin, schema=Schema.objects.get().pk, last_revision="00000000")
    assert list(response.context["adminform"].form.errors) == ["last_revision"]


def test_all_errors_are_shown_at_once_each_at_its_field(admin: Client) -> None:
    schema = Schema.objects.get()
    sent = {
        "project": schema.project.pk,
        "topic_id": "orders",
        "labels": '{"Big": "x"}',
        "message_retention": "1s",
        "schema": schema.pk,
        "encoding": "JSON",
        "first_revision": "00000000",
        "enforce_in_transit": "on",
        "transform_2_name": "f",
        "transform_2_code": "function f( {",
    }
    errors = admin.post("/admin/subscriptions/topic/add/", sent).context["adminform"].form.errors
    places = {"topic_id", "labels", "message_retention", "first_revision", "regions", "transform_2"}
    assert errors.keys() == places
    assert all(len(texts) == 1 for texts in errors.values()), errors
    assert Topic.objects.count() == 1


@pytest.mark.parametrize(
    "labels",
    ["[1]", '{"a": 1}', '"a"', "NaN", '{"a": ' + "9" * 5000 + "}", "[" * 5000 + "]" * 5000, r'{"a": "\ud800"}'],
)
def test_labels_that_are_no_texts_by_name_are_an_error_at_their_field(admin: Client, labels: str) -> None:
    response = save(admin, labels=labels)
    assert response.context["adminform"].form.errors == {"labels": ['Enter texts by name, such as {"team": "web"}.']}
    assert save(admin, labels="").status_code == 302
