"""Topics over REST (docs/spec-messages.md#topics, docs/spec.md#protocols, docs/spec.md#names)."""

from __future__ import annotations

import gzip
import io
import re
from typing import Any

import orjson
import pytest

from pushhub.common.errors import InvalidArgument
from subscriptions import paging
from subscriptions.api.parsers import read_body
from subscriptions.models import Project, Subscription, Topic
from tests.restapi import Api

BAD_NAME = (
    "Invalid resource name given (name={name}). "
    "Refer to https://cloud.google.com/pubsub/docs/pubsub-basics#resource_names for more information."
)
#: Every field of a topic that a caller can set and that is acted upon, but for schemaSettings, which needs a schema.
FULL = {
    "labels": {"team": "shop"},
    "messageStoragePolicy": {"allowedPersistenceRegions": ["europe-west1"], "enforceInTransit": True},
    "messageRetentionDuration": "86400.500s",
    "messageTransforms": [
        {"javascriptUdf": {"functionName": "f", "code": "function f(m) { return m; }"}},
        {"javascriptUdf": {"functionName": "g", "code": "const g = () => null;"}, "disabled": True},
    ],
}
UNSUPPORTED: dict[str, Any] = {
    "ingestionDataSourceSettings": {
        "cloudStorage": {"bucket": "b", "avroFormat": {}, "minimumObjectCreateTime": "2026-01-02T03:04:05Z"},
        "platformLogsSettings": {"severity": "WARNING"},
    },
    "kmsKeyName": "projects/p/locations/l/keyRings/r/cryptoKeys/k",
    "messageTransforms": [{"aiInference": {"endpoint": "projects/p/locations/l/endpoints/e"}}],
}


@pytest.mark.parametrize("field", sorted(UNSUPPORTED))
def test_unsupported_fields_are_refused_by_name(api: Api, field: str) -> None:
    answer = api.put("topics/orders", {field: UNSUPPORTED[field]})
    assert (answer.status, answer.error["status"]) == (501, "UNIMPLEMENTED")
    assert field in answer.error["message"]
    assert api.get("topics/orders").status == 404


def test_every_field_comes_back(api: Api) -> None:
    topic = api.create("topics/orders", FULL)

    assert topic == {"name": "projects/shop/topics/orders", **FULL, "state": "ACTIVE"}
    assert api.get("topics/orders").body == topic


@pytest.mark.parametrize("field", sorted(FULL))
def test_a_patch_changes_the_field_it_names_and_no_other(api: Api, field: str) -> None:
    api.create("topics/bare")
    api.create("topics/full", FULL)

    changed = api.patch("topics/bare", {"topic": FULL, "updateMask": field}).body
    cleared = api.patch("topics/full", {"topic": {}, "updateMask": field}).body

    assert changed == {"name": "projects/shop/topics/bare", field: FULL[field], "state": "ACTIVE"}
    others = {name: value for name, value in FULL.items() if name != field}
    assert cleared == {"name": "projects/shop/topics/full", **others, "state": "ACTIVE"}
    assert api.get("topics/full").body == cleared


@pytest.mark.parametrize("name", ["updateMask", "update_mask"])
def test_the_mask_of_an_update_may_be_in_the_query(api: Api, name: str) -> None:
    """Terraform's provider for Google sends it there."""
    api.create("topics/orders", FULL)

    query = {name: "labels,messageRetentionDuration"}
    patched = api.call("PATCH", "topics/orders", {"topic": {"labels": {"team": "shop-2"}}}, query=query)

    rest = {field: value for field, value in FULL.items() if field != "messageRetentionDuration"}
    expected = {"name": "projects/shop/topics/orders", **rest, "labels": {"team": "shop-2"}, "state": "ACTIVE"}
    assert (patched.status, patched.body) == (200, expected)
    both = {"topic": {"labels": {}}, "updateMask": "labels"}
    assert "labels" not in api.call("PATCH", "topics/orders", both, query={name: "messageStoragePolicy"}).body
    assert "messageStoragePolicy" in api.get("topics/orders").body


def test_snake_case_names_are_accepted(api: Api) -> None:
    topic = api.create("topics/orders", {"message_retention_duration": "600s"})
    patched = api.patch(
        "topics/orders",
        {"topic": {"message_retention_duration": "700.000s"}, "update_mask": "message_retention_duration"},
    )

    assert topic["messageRetentionDuration"] == "600s"
    assert patched.body["messageRetentionDuration"] == "700s"


def test_a_name_that_exists_is_a_conflict_even_for_the_same_topic(api: Api) -> None:
    api.create("topics/orders")

    answer = api.put("topics/orders")

    assert answer.status == 409
    assert answer.body == {
        "error": {
            "code": 409,
            "message": "Resource already exists in the project (resource=orders).",
            "status": "ALREADY_EXISTS",
        }
    }


@pytest.mark.parametrize("method", ["GET", "PATCH", "DELETE"])
def test_an_unknown_topic_is_not_found(api: Api, method: str) -> None:
    answer = api.call(method, "topics/nothing", {"topic": {}, "updateMask": "labels"} if method == "PATCH" else None)

    assert answer.status == 404
    assert answer.error == {"code": 404, "message": "Resource not found (resource=nothing).", "status": "NOT_FOUND"}


@pytest.mark.any_database
@pytest.mark.parametrize("topic_id", ["ab", "1abc", "googly", "GOOGabc", "a" * 256, "has:colon"])
@pytest.mark.parametrize("method", ["PUT", "GET", "DELETE"])
def test_a_bad_name_is_an_invalid_argument(api: Api, topic_id: str, method: str) -> None:
    answer = api.call(method, f"topics/{topic_id}", {} if method == "PUT" else None)

    message = BAD_NAME.format(name=f"projects/shop/topics/{topic_id}")
    assert (answer.status, answer.error["status"], answer.error["message"]) == (400, "INVALID_ARGUMENT", message)
    assert answer.error["details"] == [
        {
            "@type": "type.googleapis.com/google.rpc.BadRequest",
            "fieldViolations": [{"field": "name", "description": message}],
        }
    ]
    assert not Project.objects.exists()


def test_percent_in_a_path_is_decoded_once(api: Api) -> None:
    assert api.create("topics/a%2Bb%25c")["name"] == "projects/shop/topics/a+b%c"
    assert api.get("topics/a+b%25c").status == 200


def test_seconds_that_the_previous_release_wrote_count(api: Api) -> None:
    """Given a fraction that this release stored, when the previous one changes the seconds, then those are shown."""
    api.create("topics/orders", {"messageRetentionDuration": "600.5s"})
    assert Topic.objects.get().message_retention_seconds == 601
    for seconds, text in ((601, "600.500s"), (700, "700s")):
        Topic.objects.update(message_retention_seconds=seconds)
        assert api.get("topics/orders").body["messageRetentionDuration"] == text


@pytest.mark.any_database
@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"labels": {"Upper": "x"}}, "labels.Upper"),
        ({"labels": {f"k{n}": "" for n in range(65)}}, "labels"),
        ({"labels": ["a"]}, "labels"),
        ({"labels": {"a": 1}}, "labels.a"),
        ({"messageRetentionDuration": "599s"}, "messageRetentionDuration"),
        ({"messageRetentionDuration": "2678401s"}, "messageRetentionDuration"),
        ({"messageRetentionDuration": "600.0005s"}, "messageRetentionDuration"),
        ({"messageRetentionDuration": 600}, "messageRetentionDuration"),
        ({"messageRetentionDuration": "ten minutes"}, "messageRetentionDuration"),
        ({"messageStoragePolicy": {}}, "messageStoragePolicy.allowedPersistenceRegions"),
        ({"colour": "red"}, "colour"),
        ({"labels": {}, "Labels": {}}, "Labels"),
        ({"name": "projects/shop/topics/other"}, "name"),
        ({"ingestionDataSourceSettings": {"awsMsk": {}, "awsKinesis": {}}}, "ingestionDataSourceSettings.awsMsk"),
        ({"messageTransforms": [{}] * 6}, "messageTransforms"),
        (
            {"messageTransforms": [{"compression": {"compressionMode": "SQUEEZE"}}]},
            "messageTransforms[0].compression.compressionMode",
        ),
    ],
)
def test_a_bad_field_is_refused_by_name_and_nothing_is_stored(api: Api, body: Any, field: str) -> None:
    answer = api.put("topics/orders", body)

    assert (answer.status, answer.error["status"]) == (400, "INVALID_ARGUMENT")
    assert answer.fields == [field]
    assert not Topic.objects.exists()
    assert not Project.objects.exists()


def test_an_unknown_field_is_refused_in_productions_words(api: Api) -> None:
    answer = api.put("topics/orders", {"colour": "red"})

    assert answer.error["message"] == 'Invalid JSON payload received. Unknown name "colour": Cannot find field.'


def test_a_schema_that_does_not_exist_is_not_found(api: Api) -> None:
    answer = api.put("topics/orders", {"schemaSettings": {"schema": "projects/shop/schemas/order", "encoding": "JSON"}})

    assert (answer.status, answer.error["message"]) == (404, "Resource not found (resource=order).")
    assert not Topic.objects.exists()


def test_output_only_fields_are_ignored(api: Api) -> None:
    topic = api.create(
        "topics/orders", {"state": "INGESTION_RESOURCE_ERROR", "satisfiesPzs": True, "tags": {"1/a": "b"}}
    )

    assert topic == {"name": "projects/shop/topics/orders", "state": "ACTIVE"}
    assert Topic.objects.get().tags == {"1/a": "b"}


@pytest.mark.any_database
@pytest.mark.parametrize(
    ("request_body", "text"),
    [
        ({"topic": {}}, "The update_mask in the UpdateTopicRequest must be set"),
        ({"topic": {}, "updateMask": ""}, "The update_mask in the UpdateTopicRequest must be set"),
        ({"topic": {}, "updateMask": "name"}, "the 'name' field in the Topic is not mutable."),
        ({"topic": {}, "updateMask": "tags"}, "the 'tags' field in the Topic is not mutable."),
        ({"topic": {}, "updateMask": "labels,colour"}, "'colour' is not a known Topic field."),
        ({"topic": {"name": "projects/shop/topics/other"}, "updateMask": "labels"}, "must agree"),
        ({"topic": {"labels": {"A": ""}}, "updateMask": "labels"}, "does not conform"),
        ({"labels": {}, "updateMask": "labels"}, 'Unknown name "labels"'),
    ],
)
def test_a_bad_patch_is_refused_and_changes_nothing(api: Api, request_body: Any, text: str) -> None:
    before = api.create("topics/orders", {"labels": {"a": "1"}})

    answer = api.patch("topics/orders", request_body)

    assert answer.status == 400
    assert text in answer.error["message"]
    assert api.get("topics/orders").body == before


def test_a_patch_is_all_or_nothing(api: Api) -> None:
    before = api.create("topics/orders", {"labels": {"a": "1"}})

    answer = api.patch(
        "topics/orders",
        {
            "topic": {"labels": {"b": "2"}, "messageRetentionDuration": "1s"},
            "updateMask": "labels,messageRetentionDuration",
        },
    )

    assert answer.status == 400
    assert api.get("topics/orders").body == before


def test_a_patch_updates_the_time_of_change(api: Api) -> None:
    api.create("topics/orders")
    before = Topic.objects.get().updated_at

    api.patch("topics/orders", {"topic": {"labels": {"b": "2"}}, "updateMask": "labels"})

    assert Topic.objects.get().updated_at > before


def test_a_list_comes_in_pages_by_name(api: Api) -> None:
    for topic_id in ("ccc", "aaa", "bbb"):
        api.create(f"topics/{topic_id}")

    first = api.get("topics?pageSize=2").body
    second = api.get(f"topics?pageSize=2&pageToken={first['nextPageToken']}").body

    assert [topic["name"][-3:] for topic in first["topics"]] == ["aaa", "bbb"]
    assert [topic["name"][-3:] for topic in second["topics"]] == ["ccc"]
    assert "nextPageToken" not in second
    assert len(api.get("topics?page_size=0").body["topics"]) == 3


@pytest.mark.parametrize("collection", ["topics", "subscriptions"])
def test_a_page_ends_early_if_its_functions_are_large(
    api: Api, collection: str, monkeypatch: pytest.MonkeyPatch, django_assert_max_num_queries: Any
) -> None:
    """A thousand of the largest would take a gigabyte of the process."""
    code = "function f(m) { return m; } //" + "x" * 2000
    transforms = [{"javascriptUdf": {"functionName": "f", "code": code}}]
    body: dict[str, Any] = {}
    if collection == "subscriptions":
        body = {
            "topic": "projects/shop/topics/topic",
            "deadLetterPolicy": {"deadLetterTopic": "projects/shop/topics/topic"},
        }
        api.create("topics/topic", {"messageTransforms": transforms})
    api.create(f"{collection}/a-topic", body)
    for name in ("b-topic", "c-topic", "d-topic"):
        api.create(f"{collection}/{name}", {"messageTransforms": transforms, **body})
    monkeypatch.setattr(paging, "LARGE_CHARACTERS", 5000)

    with django_assert_max_num_queries(5) as queries:
        first = api.get(collection).body
    read = {
        of for query in queries.captured_queries for of in re.findall(r'(\w+)"?\."message_transforms"', query["sql"])
    }
    assert read == {f"subscriptions_{collection.removesuffix('s')}"}, "and not those of each subscription's topics"
    rest = api.get(f"{collection}?pageToken={first['nextPageToken']}").body
    monkeypatch.setattr(paging, "LARGE_CHARACTERS", 1)
    single = api.get(f"{collection}?pageToken={first['nextPageToken']}").body

    pages = [[row["name"].rpartition("/")[2] for row in page[collection]] for page in (first, rest, single)]
    assert pages == [["a-topic", "b-topic", "c-topic"], ["d-topic"], ["d-topic"]]
    assert [row.get("messageTransforms") for row in first[collection]] == [None, transforms, transforms]
    assert "nextPageToken" not in rest | single


def test_pages_neither_repeat_nor_skip_when_the_list_changes_meanwhile(api: Api) -> None:
    for topic_id in ("bbb", "ccc", "ddd"):
        api.create(f"topics/{topic_id}")
    token = api.get("topics?pageSize=2").body["nextPageToken"]

    api.create("topics/aaa")
    api.delete("topics/ccc")

    assert [topic["name"][-3:] for topic in api.get(f"topics?pageToken={token}").body["topics"]] == ["ddd"]


def test_an_empty_list_is_an_empty_object(api: Api) -> None:
    assert api.get("topics").body == {}


@pytest.mark.any_database
@pytest.mark.parametrize("token", ["x", "!!!", "é", "a" * 5000, "WyJhYWEiXQ"])
def test_a_bad_page_token_is_refused(api: Api, token: str) -> None:
    answer = api.get(f"topics?pageToken={token}")

    assert (answer.status, answer.fields) == (400, ["pageToken"])


def test_the_token_of_another_list_is_refused(api: Api) -> None:
    for topic_id in ("aaa", "bbb"):
        api.create(f"topics/{topic_id}")
        api.create(f"subscriptions/{topic_id}", {"topic": f"projects/shop/topics/{topic_id}"})
    token = api.get("topics?pageSize=1").body["nextPageToken"]

    assert api.get(f"subscriptions?pageToken={token}").status == 400


@pytest.mark.parametrize("size", ["-1", "two", "1.5", "99999999999999999999"])
def test_a_bad_page_size_is_refused(api: Api, size: str) -> None:
    assert api.get(f"topics?pageSize={size}").fields == ["pageSize"]


def test_a_topic_lists_the_names_of_its_subscriptions_in_all_projects(api: Api) -> None:
    api.create("topics/orders")
    topic = {"topic": "projects/shop/topics/orders"}
    names = ["projects/any/subscriptions/zzz", "projects/shop/subscriptions/one", "projects/shop/subscriptions/two"]
    for name in reversed(names):
        api.create(f"/v1/{name}", topic)

    token = ""
    for name in names:
        page = api.get(f"topics/orders/subscriptions?pageSize=1&pageToken={token}").body
        assert page["subscriptions"] == [name]
        token = page.get("nextPageToken", "")

    assert token == ""
    assert api.get("topics/nothing/subscriptions").status == 404


def test_a_deleted_topic_leaves_its_subscriptions_behind(api: Api) -> None:
    api.create("topics/orders")
    api.create("topics/dead")
    topic = "projects/shop/topics/orders"
    api.create(
        "subscriptions/push", {"topic": topic, "deadLetterPolicy": {"deadLetterTopic": "projects/shop/topics/dead"}}
    )

    assert api.delete("topics/orders").body == {}
    assert api.delete("topics/dead").body == {}

    assert api.get("topics/orders").status == 404
    subscription = api.get("subscriptions/push").body
    assert subscription["topic"] == "_deleted-topic_"
    assert subscription["deadLetterPolicy"]["deadLetterTopic"] == "_deleted-topic_"


def test_deleting_a_topic_updates_the_time_of_change_of_its_subscriptions(api: Api) -> None:
    api.create("topics/orders")
    api.create("subscriptions/push", {"topic": "projects/shop/topics/orders"})
    before = Subscription.objects.get().updated_at

    api.delete("topics/orders")

    assert Subscription.objects.get().updated_at > before


def test_a_topic_of_the_same_name_does_not_get_the_old_ones_subscriptions(api: Api) -> None:
    api.create("topics/orders")
    api.create("subscriptions/push", {"topic": "projects/shop/topics/orders"})
    api.delete("topics/orders")

    api.create("topics/orders")

    assert api.get("topics/orders/subscriptions").body == {}


def test_a_project_can_be_named_by_its_number(api: Api) -> None:
    api.create("topics/orders")
    number = Project.objects.get().number

    assert api.get(f"/v1/projects/{number}/topics/orders").body["name"] == "projects/shop/topics/orders"


def test_an_unknown_project_is_not_found_outside_of_development(api: Api, settings: Any) -> None:
    settings.DEVELOPMENT = False
    api.sign_in("root@example.com", is_superuser=True)

    for answer in (api.put("topics/orders"), api.get("topics")):
        assert (answer.status, answer.error["message"]) == (404, "Resource not found (resource=shop).")
    assert not Project.objects.exists()


def test_a_refused_project_name_is_named(api: Api) -> None:
    assert api.get("/v1/projects/a%20b/topics").status == 400


@pytest.mark.parametrize(
    "query",
    ["alt=json", "%24alt=json%3Benum-encoding%3Dint", "prettyPrint=false&key=x&quotaUser=y&fields=name&callback=f"],
)
def test_the_parameters_of_every_call_are_tolerated(api: Api, query: str) -> None:
    assert api.put(f"topics/orders?{query}").status == 200


@pytest.mark.any_database
@pytest.mark.parametrize("body", [b"{", b"[1,", b"\xff\xfe", b'{"a":NaN}', b"[" * 100_000, b"{}{}"])
def test_malformed_json_is_refused(api: Api, body: bytes) -> None:
    answer = api.put("topics/orders", body)

    assert (answer.status, answer.error["status"]) == (400, "INVALID_ARGUMENT")
    assert answer.error["message"].startswith("Invalid JSON payload received.")
    assert not Topic.objects.exists()


@pytest.mark.parametrize("body", [b"[]", b'"text"', b"1", b"null"])
def test_a_body_that_is_not_an_object_is_refused(api: Api, body: bytes) -> None:
    assert api.put("topics/orders", body).status == 400


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
def test_the_declared_type_of_a_body_does_not_matter(api: Api, content_type: str) -> None:
    response = api.client.generic(
        "PUT", "/v1/projects/shop/topics/orders", b'{"labels":{"a":"b"}}', content_type=content_type
    )

    assert response.status_code == 200
    assert Topic.objects.get().labels == {"a": "b"}


def test_every_answer_is_json_whatever_the_client_accepts(api: Api) -> None:
    response = api.client.get("/v1/projects/shop/topics/nothing", headers={"Accept": "text/html"})

    assert response.status_code == 404
    assert response.headers["Content-Type"] == "application/json; charset=UTF-8"


def test_a_body_may_be_gzipped(api: Api) -> None:
    body = gzip.compress(orjson.dumps({"labels": {"a": "b"}}))

    answer = api.put("topics/orders", body, **{"Content-Encoding": "gzip"})

    assert answer.body["labels"] == {"a": "b"}


def test_a_body_over_the_limit_is_refused_even_if_only_its_inflated_size_is(api: Api, settings: Any) -> None:
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 1000
    too_large = b'{"labels":{}, "name": "' + b" " * 2000 + b'"}'

    plain = api.put("topics/orders", too_large)
    zipped = api.put("topics/orders", gzip.compress(too_large), **{"Content-Encoding": "gzip"})

    for answer in (plain, zipped):
        assert answer.status == 400
        assert answer.error["message"] == "Request payload size exceeds the limit: 1000 bytes."


def test_a_body_whose_stated_length_is_over_the_limit_is_refused_unread(settings: Any) -> None:
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 1000
    stream = io.BytesIO(b"x" * 1001)

    with pytest.raises(InvalidArgument, match="exceeds the limit: 1000 bytes"):
        read_body(stream, {"CONTENT_LENGTH": "1001"})

    assert stream.tell() == 0


#: Compressed without the time, so that every process of a test run sees the same test names.
ZIPPED = gzip.compress(b"{}", mtime=0)


@pytest.mark.parametrize(
    ("encoding", "body"),
    [("gzip", b"not gzip"), ("gzip", ZIPPED[:-4]), ("gzip", ZIPPED + b"x"), ("br", b"{}")],
)
def test_a_body_in_a_broken_or_unknown_encoding_is_refused(api: Api, encoding: str, body: bytes) -> None:
    assert api.put("topics/orders", body, **{"Content-Encoding": encoding}).fields == ["body"]


def test_a_body_without_a_length_is_refused_and_not_read_as_empty(api: Api) -> None:
    answer = api.put("topics/orders", b"", **{"Transfer-Encoding": "chunked"})

    assert (answer.status, answer.fields) == (400, ["body"])


@pytest.mark.any_database
@pytest.mark.parametrize(
    "path", ["nothing", "topics/orders/more/of/it", "/v1/", "/v1/projects/shop", "/v3/projects/shop/topics"]
)
def test_unknown_urls_are_not_found_in_json(api: Api, path: str) -> None:
    answer = api.get(path)

    assert (answer.status, answer.error["status"]) == (404, "NOT_FOUND")
    assert api.post("topics/orders:frobnicate").status == 404


def test_an_unexpected_exception_is_an_internal_error_without_details(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(**_: object) -> None:
        raise RuntimeError("the secret is 42")

    monkeypatch.setattr("subscriptions.selectors.get_topic", broken)

    answer = api.get("topics/orders")

    assert answer.status == 500
    assert answer.error == {"code": 500, "message": "Internal error encountered.", "status": "INTERNAL"}
