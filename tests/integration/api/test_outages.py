"""Whatever call to the database or Redis fails, each method of REST answers UNAVAILABLE, or as if nothing had failed.

The calls are discovered: a first request of each method counts them, and each further one fails in one of them.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import orjson
import psycopg.errors
import pytest
import redis
from django.urls import resolve
from redis.exceptions import NoScriptError

from pushhub.common.outages import outage_of
from subscriptions.api.base import ApiView
from subscriptions.iam import access
from subscriptions.identity.recent import recent_callers
from subscriptions.services import hierarchy
from tests.drivererrors import as_django_raises, postgresql_errors, redis_errors, sqlite_errors
from tests.faults import Faults, outage_errors
from tests.integration.iam.test_access_table import HTTP_METHODS, OTHER_ADDRESSES, routes
from tests.restapi import Answer, Api

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.any_database]

ORDERS = "projects/shop/topics/orders"
PULLED = "subscriptions/pulled"
PUSH = {"topic": ORDERS, "pushConfig": {"pushEndpoint": "https://127.0.0.1/push"}}
MESSAGES = {"messages": [{"data": "eA=="}]}
ACCOUNT = "serviceAccounts/pusher@shop.iam.gserviceaccount.com"
NEW_ACCOUNT = "serviceAccounts/new{n}-account@shop.iam.gserviceaccount.com"
SCHEMA = "schemas/goods"
AVRO = {"type": "AVRO", "definition": '{"type": "record", "name": "R", "fields": []}'}
TRANSFORM = {"javascriptUdf": {"functionName": "f", "code": "function f(message) { return message; }"}}
POLICY = {"policy": {"bindings": [{"role": "roles/viewer", "members": ["user:ada@example.com"]}]}}
TESTED = {"permissions": ["resourcemanager.projects.get"]}
ROLE = {"roleId": "role{n}", "role": {"includedPermissions": ["pubsub.topics.get"]}}
ASSERTION = b"grant_type=urn%3Aietf%3Aparams%3Aoauth%3Agrant-type%3Ajwt-bearer&assertion=a.b.c"
METRIC = "pubsub.googleapis.com/subscription/push_request_count"
SERIES = {
    "filter": f'metric.type = "{METRIC}"',
    "interval.startTime": "2026-11-22T05:00:00Z",
    "interval.endTime": "2026-11-22T06:00:00Z",
}
WITH_POLICY = [
    *("topics/orders", PULLED, "snapshots/kept", SCHEMA, ACCOUNT),
    *(f"/{version}/projects/shop" for version in ("v1", "v3")),
    *(f"/{version}/organizations/ORGANIZATION" for version in ("v1", "v3")),
    *(f"/{version}/folders/FOLDER" for version in ("v1", "v2", "v3")),
]

#: A method, an address and a body. `{n}` is another number in each request. A word in capitals stands for the last
#: value of that kind in an answer.
Request = tuple[str, str, Any]
#: What a request needs, by a part of its address: made before each, without faults.
NEEDS: dict[str, list[Request]] = {
    "topics/new{n}": [("PUT", "topics/new{n}", {})],
    "subscriptions/new{n}": [("PUT", "subscriptions/new{n}", PUSH)],
    ":resume": [("POST", "subscriptions/new{n}:pause", {})],
    "snapshots/new{n}": [("PUT", "snapshots/new{n}", {"subscription": f"projects/shop/{PULLED}"})],
    "schemas/new{n}": [("POST", "schemas?schemaId=new{n}", AVRO)],
    "/v1/projects/new-{n}-project": [("POST", "/v1/projects", {"projectId": "new-{n}-project"})],
    "roles/role{n}": [("POST", "roles", ROLE)],
    "serviceAccounts/new{n}-": [("POST", "serviceAccounts", {"accountId": "new{n}-account"})],
    "REVISION": [("POST", "schemas/new{n}:commit", {"schema": AVRO})],
    "/keys/KEY": [("POST", f"{NEW_ACCOUNT}/keys", {})],
    "ACKID": [("POST", "topics/orders:publish", MESSAGES), ("POST", f"{PULLED}:pull", {"maxMessages": 1})],
    ":pull": [("POST", "topics/orders:publish", MESSAGES)],
}
REQUESTS: list[Request] = [
    ("POST", "topics/orders:publish", MESSAGES),
    ("POST", f"{PULLED}:pull", {"maxMessages": 1}),
    ("POST", f"{PULLED}:acknowledge", {"ackIds": ["ACKID"]}),
    ("POST", f"{PULLED}:modifyAckDeadline", {"ackIds": ["ACKID"], "ackDeadlineSeconds": 30}),
    ("POST", f"{PULLED}:modifyAckDeadline", {"ackIds": ["ACKID"], "ackDeadlineSeconds": 0}),
    ("POST", f"{PULLED}:seek", {"time": "2026-01-01T00:00:00Z"}),
    ("GET", f"{PULLED}/deadLetters", None),
    ("POST", f"{PULLED}:redriveDeadLetters", {"messageIds": ["1"]}),
    ("POST", f"{PULLED}:discardDeadLetters", {"all": True}),
    ("POST", f"{PULLED}:skipMessages", {"messageIds": ["1"]}),
    ("POST", f"{PULLED}:deadLetterMessages", {"messageIds": ["1"]}),
    ("POST", "subscriptions/pushed:diagnose", {}),
    ("GET", "messages/1", None),
    ("GET", "/v3/projects/shop/timeSeries?" + "&".join(f"{key}={quote(text)}" for key, text in SERIES.items()), None),
    ("GET", "/v3/projects/shop/metricDescriptors", None),
    ("GET", f"/v3/projects/shop/metricDescriptors/{METRIC}", None),
    ("GET", "topics", None),
    ("GET", "topics/orders", None),
    ("PUT", "topics/made{n}", {}),
    ("PATCH", "topics/orders", {"topic": {"labels": {"n": "{n}"}}, "updateMask": "labels"}),
    ("DELETE", "topics/new{n}", None),
    ("GET", "topics/orders/subscriptions", None),
    ("GET", "topics/orders/snapshots", None),
    ("GET", "subscriptions", None),
    ("GET", "subscriptions/pushed", None),
    ("PUT", "subscriptions/made{n}", PUSH),
    ("PATCH", "subscriptions/pushed", {"subscription": {"labels": {"n": "{n}"}}, "updateMask": "labels"}),
    ("POST", "subscriptions/pushed:modifyPushConfig", {"pushConfig": PUSH["pushConfig"]}),
    ("POST", "subscriptions/new{n}:pause", {}),
    ("POST", "subscriptions/new{n}:resume", {}),
    ("POST", "subscriptions/new{n}:detach", {}),
    ("DELETE", "subscriptions/new{n}", None),
    ("GET", "snapshots", None),
    ("GET", "snapshots/kept", None),
    ("PUT", "snapshots/made{n}", {"subscription": f"projects/shop/{PULLED}"}),
    ("PATCH", "snapshots/kept", {"snapshot": {"labels": {"n": "{n}"}}, "updateMask": "labels"}),
    ("DELETE", "snapshots/new{n}", None),
    ("GET", "schemas", None),
    ("POST", "schemas?schemaId=made{n}", AVRO),
    ("GET", SCHEMA, None),
    ("GET", f"{SCHEMA}:listRevisions", None),
    ("POST", f"{SCHEMA}:commit", {"schema": AVRO}),
    ("POST", "schemas/new{n}:rollback", {"revisionId": "REVISION"}),
    ("DELETE", "schemas/new{n}@REVISION:deleteRevision", None),
    ("DELETE", "schemas/new{n}", None),
    ("POST", "schemas:validate", {"schema": AVRO}),
    ("POST", "schemas:validateMessage", {"name": f"projects/shop/{SCHEMA}", "message": "e30=", "encoding": "JSON"}),
    ("POST", "/v1/projects/shop:validateMessageTransform", {"messageTransform": TRANSFORM}),
    ("POST", "/v1/projects/shop:testMessageTransforms", {"message": {"data": "eA=="}, "topic": ORDERS}),
    ("GET", "/$discovery/rest?version=v1", None),
    ("GET", "/v1/projects", None),
    ("GET", "/v1/projects/shop", None),
    ("POST", "/v1/projects", {"projectId": "made-{n}-project"}),
    ("PUT", "/v1/projects/new-{n}-project", {"name": "New"}),
    ("POST", "/v1/projects/shop:getAncestry", {}),
    ("DELETE", "/v1/projects/new-{n}-project", None),
    ("POST", "/v1/projects/new-{n}-project:undelete", {}),
    ("GET", "/v1/roles", None),
    ("GET", "/v1/roles/viewer", None),
    *(
        request
        for owner in ("", "/v1/organizations/ORGANIZATION/")
        for request in [
            ("GET", f"{owner}roles", None),
            ("POST", f"{owner}roles", {**ROLE, "roleId": "made{n}"}),
            ("GET", f"{owner}roles/role{{n}}", None),
            ("PATCH", f"{owner}roles/role{{n}}", {"title": "{n}"}),
            ("DELETE", f"{owner}roles/role{{n}}", None),
            ("POST", f"{owner}roles/role{{n}}:undelete", {}),
        ]
    ),
    ("GET", "serviceAccounts", None),
    ("POST", "serviceAccounts", {"accountId": "made{n}-account"}),
    ("GET", ACCOUNT, None),
    ("PATCH", ACCOUNT, {"serviceAccount": {"displayName": "{n}"}, "updateMask": "displayName"}),
    ("PUT", ACCOUNT, {"displayName": "{n}"}),
    ("DELETE", NEW_ACCOUNT, None),
    ("POST", f"{ACCOUNT}:disable", {}),
    ("POST", f"{ACCOUNT}:enable", {}),
    ("POST", f"{ACCOUNT}:undelete", {}),
    ("POST", f"{ACCOUNT}:generateAccessToken", {"scope": ["https://www.googleapis.com/auth/pubsub"]}),
    ("POST", f"{ACCOUNT}:generateIdToken", {"audience": "https://example.com"}),
    ("GET", f"{ACCOUNT}/keys", None),
    ("POST", f"{ACCOUNT}/keys", {}),
    ("POST", f"{ACCOUNT}/keys:upload", {"publicKeyData": "eA=="}),
    ("GET", f"{NEW_ACCOUNT}/keys/KEY", None),
    ("POST", f"{NEW_ACCOUNT}/keys/KEY:disable", {}),
    ("POST", f"{NEW_ACCOUNT}/keys/KEY:enable", {}),
    ("DELETE", f"{NEW_ACCOUNT}/keys/KEY", None),
    ("POST", "/token", ASSERTION),
    ("POST", "/revoke", b"token=a"),
    ("GET", "/oauth2/v1/certs", None),
    ("GET", "/oauth2/v3/certs", None),
    ("GET", "/tokeninfo?access_token=a", None),
    ("GET", "/.well-known/openid-configuration", None),
    ("GET", "/robot/v1/metadata/x509/pusher@shop.iam.gserviceaccount.com", None),
    *(
        ("GET" if verb == "getIamPolicy" and is_read else "POST", f"{name}:{verb}", None if is_read else body)
        for number, name in enumerate(WITH_POLICY)
        for verb, body in (("getIamPolicy", {}), ("setIamPolicy", POLICY), ("testIamPermissions", TESTED))
        for is_read in [number < 4 and verb == "getIamPolicy"]
    ),
]
#: Answers have these values in these places.
VALUES = {
    "ACKID": re.compile(rb'"ackId": ?"([^"]+)"'),
    "REVISION": re.compile(rb'"revisionId": ?"([^"]+)"'),
    "KEY": re.compile(rb'/keys/([0-9a-f]{40})"'),
}


class Caller:
    """Sends the requests, with the numbers and the values filled in."""

    def __init__(self) -> None:
        self.api = Api()
        self.values: dict[str, str] = {}
        self._number = 0

    def prepare(self, address: str, body: Any) -> None:
        """Make what the next request needs."""
        self._number += 1
        access.forget_decisions()
        recent_callers.clear()
        for part, requests in NEEDS.items():
            if part in address or (part.isupper() and part in str(body)):
                for request in requests:
                    answer = self.send(*request)
                    assert answer.status < 300, (request, answer)

    def send(self, verb: str, address: str, body: Any) -> Answer:
        text = body if isinstance(body, bytes) else self._filled(orjson.dumps(body).decode()).encode()
        answer = self.api.call(verb, self._filled(address), text if body is not None else None)
        content = orjson.dumps(answer.body)
        for word, pattern in VALUES.items():
            if found := pattern.search(content):
                self.values[word] = found[1].decode()
        return answer

    def _filled(self, text: str) -> str:
        for word, value in self.values.items():
            text = text.replace(word, value)
        return text.replace("{n}", str(self._number))


@pytest.fixture
def caller(redis_url: str) -> Caller:
    caller = Caller()
    for request in [
        ("PUT", "topics/orders", {}),
        ("PUT", PULLED, {"topic": ORDERS}),
        ("PUT", "subscriptions/pushed", PUSH),
        ("PUT", "snapshots/kept", {"subscription": f"projects/shop/{PULLED}"}),
        ("POST", "schemas?schemaId=goods", AVRO),
        ("POST", "serviceAccounts", {"accountId": "pusher"}),
    ]:
        assert caller.send(*request).status == 200, request
    organization = hierarchy.create_organization(display_name="Everything")
    folder = hierarchy.create_folder(display_name="Some", parent=organization)
    caller.values |= {"ORGANIZATION": str(organization.number), "FOLDER": str(folder.number)}
    return caller


def is_unavailable(answer: Answer) -> bool:
    if answer.status != 503:
        return False
    if "error_description" in answer.body:  # RFC 6749
        return bool(answer.body["error_description"])
    return answer.error["status"] == "UNAVAILABLE" and bool(answer.error["message"])


def only_outages(caplog: pytest.LogCaptureFixture) -> bool:
    """Return whether no record has a traceback that the log would show, and forget the records."""
    errors = [record.exc_info[1] for record in caplog.records if record.exc_info]
    caplog.clear()
    return all(map(outage_of, errors))


def discover(caller: Caller, faults: Faults, request: Request) -> tuple[Answer, list[str]]:
    """Return the answer to a request without a fault, and its calls: those of a second request, as some are cached."""
    for _ in range(2):
        caller.prepare(*request[1:])
        with faults.at():
            answer = caller.send(*request)
        assert answer.status < 500, answer
    return answer, list(faults.owners)


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda request: f"{request[0]} {request[1].partition('?')[0]}")
def test_a_call_that_fails_makes_the_method_unavailable_at_most(
    caller: Caller, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, request_: Request
) -> None:
    _, address, body = request_
    faults = Faults(monkeypatch)
    answer, calls = discover(caller, faults, request_)
    caplog.clear()
    for number in range(len(calls)):
        caller.prepare(address, body)
        with faults.at(number, **outage_errors(number)):
            faulty = caller.send(*request_)
        assert is_unavailable(faulty) or faulty.status == answer.status, (number, faults.owners, faulty)
        assert only_outages(caplog)
    caller.prepare(address, body)
    assert caller.send(*request_).status == answer.status


def test_each_route_and_method_is_tried() -> None:
    tried: dict[Any, set[str]] = {}
    for verb, address, _ in REQUESTS:
        path = (address if address.startswith("/") else f"/v1/projects/shop/{address}").partition("?")[0]
        tried.setdefault(resolve(path.replace("{n}", "1")).route.lstrip("^"), set()).add(verb.lower())
    for address, route in routes():
        view = getattr(route.callback, "view_class", None) or getattr(route.callback, "cls", None)
        if address.startswith(("admin/", "i18n/")) or address in OTHER_ADDRESSES or address == "^v1/":
            continue
        assert view is not None and issubclass(view, ApiView)
        offered = {verb for verb in HTTP_METHODS if hasattr(view, verb)}
        assert tried.get(address.lstrip("^"), set()) >= offered, address


#: Requests that fail in the first call to each of the two.
KINDS_OF_REQUESTS = REQUESTS[:2]


def every_error() -> Iterator[tuple[str, BaseException]]:
    for error in (*postgresql_errors(), *sqlite_errors()):
        yield "database", as_django_raises(error)
    for redis_error in redis_errors():
        if not isinstance(redis_error, NoScriptError):  # then the script is sent again
            yield "Redis", redis_error
    yield "Redis", redis.ResponseError("MISCONF Redis is configured to save RDB snapshots, but cannot")
    yield "Redis", redis.ResponseError("WRONGTYPE Operation against a key holding the wrong kind of value")


@pytest.mark.parametrize("request_", KINDS_OF_REQUESTS, ids=lambda request: f"{request[0]} {request[1]}")
def test_every_class_of_error_is_either_an_outage_or_internal_with_a_traceback(
    caller: Caller, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, request_: Request
) -> None:
    _, address, body = request_
    faults = Faults(monkeypatch)
    answer, calls = discover(caller, faults, request_)
    first = {owner: calls.index(owner) for owner in set(calls)}
    for owner, error in every_error():
        if owner not in first:
            continue
        caller.prepare(address, body)
        caplog.clear()
        with faults.at(first[owner], **{owner: error}):
            faulty = caller.send(*request_)
        assert faults.was_raised
        # A publish succeeds without Redis, and a topic that is made at the same time is no error.
        is_survived = faulty.status == answer.status
        if outage_of(error):
            assert is_survived or is_unavailable(faulty), (error, faulty)
            assert only_outages(caplog), error
        else:
            assert is_survived or faulty.status in (409, 500), (error, faulty)
            assert faulty.status == 409 or any(record.exc_info for record in caplog.records), error


def test_an_outage_before_the_view_is_unavailable_too(
    caller: Caller, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The middleware reads the session of a browser."""
    caller.api.sign_in("ada@example.com", is_superuser=True)
    faults = Faults(monkeypatch)
    error = as_django_raises(psycopg.errors.AdminShutdown("the password is 42"))

    with faults.at(0, database=error):
        answer = caller.send("GET", "topics", None)

    assert is_unavailable(answer)
    assert "42" not in str(answer)
    lines = [record.levelno for record in caplog.records if record.name == "subscriptions.api.errors"]
    assert lines == [logging.WARNING]
