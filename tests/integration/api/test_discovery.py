"""The discovery document: Google's client makes its methods from it, and they are those of Google's own document."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import googleapiclient
import httplib2
import pytest
from django.urls import resolve
from googleapiclient.discovery import build
from pytest_django.live_server_helper import LiveServer

from tests.restapi import Api

pytestmark = pytest.mark.any_database

Fields = dict[str, Any]
TOPIC = "projects/shop/topics/orders"
SUBSCRIPTION = "projects/shop/subscriptions/billing"


def methods_of(resource: Fields) -> Iterator[Fields]:
    yield from resource.get("methods", {}).values()
    for inner in resource.get("resources", {}).values():
        yield from methods_of(inner)


def methods(document: Fields) -> dict[str, Fields]:
    return {method["id"]: method for method in methods_of(document)}


def is_own(method: Fields) -> bool:
    """Return whether Google doesn't have a method, by the service of its RPC."""
    view: Any = resolve("/" + re.sub(r"\{\w+\}", "x", method["flatPath"])).func
    rpc: str = view.cls.methods[method["httpMethod"]]
    return rpc.startswith("pushhub.")


@pytest.fixture
def document(api: Api) -> Fields:
    answer = api.get("/$discovery/rest?version=v1")
    assert answer.status == 200
    fields: Fields = answer.body
    return fields


@pytest.fixture(scope="module")
def googles() -> Fields:
    [package] = googleapiclient.__path__
    path = Path(package, "discovery_cache", "documents", "pubsub.v1.json")
    document: Fields = json.loads(path.read_text(encoding="utf-8"))
    return document


def test_googles_client_is_made_from_it(transactional_db: None, redis_url: str, live_server: LiveServer) -> None:
    http = httplib2.Http()
    url = live_server.url + "/$discovery/rest?version={apiVersion}"
    with build("pubsub", "v1", discoveryServiceUrl=url, static_discovery=False, http=http) as client:
        topics, subscriptions = client.projects().topics(), client.projects().subscriptions()
        assert topics.create(name=TOPIC, body={}).execute()["name"] == TOPIC
        subscriptions.create(name=SUBSCRIPTION, body={"topic": TOPIC}).execute()

        data = base64.b64encode(b"hello").decode()
        answer = topics.publish(topic=TOPIC, body={"messages": [{"data": data, "attributes": {"a": "b"}}]}).execute()
        [received] = subscriptions.pull(subscription=SUBSCRIPTION, body={"maxMessages": 10}).execute()[
            "receivedMessages"
        ]
        body = {"ackIds": [received["ackId"]]}
        assert subscriptions.acknowledge(subscription=SUBSCRIPTION, body=body).execute() == {}

        message = received["message"]
        assert (message["messageId"], message["data"], message["attributes"]) == (
            *answer["messageIds"],
            data,
            {"a": "b"},
        )
        assert [row["name"] for row in topics.list(project="projects/shop", pageSize=5).execute()["topics"]] == [TOPIC]
        assert "etag" in topics.getIamPolicy(resource=TOPIC).execute()
        with pytest.raises(TypeError, match="does not match the pattern"):
            topics.get(topic="orders")
    http.close()


def test_it_has_googles_methods_with_their_paths_and_parameters(document: Fields, googles: Fields) -> None:
    ours, theirs = methods(document), methods(googles)

    assert all(map(is_own, (ours[name] for name in ours.keys() - theirs.keys())))
    assert theirs.keys() - ours.keys() == set()
    for name in theirs:
        for part in ("httpMethod", "path", "flatPath", "parameterOrder"):
            assert ours[name][part] == theirs[name][part], (name, part)
        for parameter, description in theirs[name]["parameters"].items():
            for part in ("location", "type", "pattern"):
                assert ours[name]["parameters"][parameter].get(part) == description.get(part), (name, parameter)


def test_its_schemas_have_googles_fields(document: Fields, googles: Fields) -> None:
    for name, schema in document["schemas"].items():
        for field, theirs in googles["schemas"].get(name, {}).get("properties", {}).items():
            ours = schema["properties"][field]
            for part in ("type", "$ref"):
                assert ours.get(part) == theirs.get(part), (name, field)
            assert set(theirs.get("enum", [])) <= set(ours.get("enum", [])), (name, field)


def test_every_reference_leads_to_a_schema(document: Fields) -> None:
    references = set()

    def collect(value: Any) -> None:
        if isinstance(value, dict):
            references.update([value["$ref"]] if "$ref" in value else [])
            for inner in value.values():
                collect(inner)

    collect(document)
    assert references == set(document["schemas"])


def test_it_names_the_address_that_the_client_used(api: Api) -> None:
    assert api.get("/$discovery/rest", Host="localhost:8085").body["rootUrl"] == "http://localhost:8085/"


def test_other_versions_are_missing(api: Api) -> None:
    answer = api.get("/$discovery/rest?version=v1beta2")

    assert (answer.status, answer.error["status"]) == (404, "NOT_FOUND")


def test_it_needs_no_credentials(api: Api, settings: Any) -> None:
    settings.ANONYMOUS, settings.DEVELOPMENT = "", False

    assert api.get("/$discovery/rest").status == 200
