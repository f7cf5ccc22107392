"""Who may call the API, and the pages for people."""

from __future__ import annotations

import logging
import re
from contextlib import closing
from typing import Any

import jsonschema
import pytest
from django.contrib.auth.models import User
from django.contrib.staticfiles import finders
from django.db import OperationalError, connection
from django.test import Client

from subscriptions.models import Topic
from tests.restapi import Answer, Api, root_client

TOPIC = "/v1/projects/shop/topics/orders"


def test_without_credentials_and_without_the_setting_calls_are_refused(api: Api, settings: Any) -> None:
    settings.ANONYMOUS = ""

    answer = api.put("topics/orders")

    assert (answer.status, answer.error["status"]) == (401, "UNAUTHENTICATED")
    assert answer.error["message"].startswith("Request is missing required authentication credential.")
    assert not Topic.objects.exists()


def test_a_refused_caller_is_told_how_to_authenticate(api: Api, settings: Any) -> None:
    settings.ANONYMOUS = ""

    assert api.client.get(TOPIC).headers["WWW-Authenticate"].startswith("Bearer")


@pytest.mark.parametrize("header", ["Bearer abc.def.ghi", "Basic YTpi", "nonsense"])
def test_bad_credentials_never_fall_back_to_the_anonymous_caller(api: Api, header: str) -> None:
    answer = api.put("topics/orders", Authorization=header)

    assert (answer.status, answer.error["status"]) == (401, "UNAUTHENTICATED")


@pytest.mark.parametrize(
    "headers",
    [{"Origin": "https://evil.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"}],
)
def test_a_page_of_another_site_cannot_act_as_the_anonymous_caller(api: Api, headers: dict[str, str]) -> None:
    answer = api.put("topics/orders", **headers)

    assert (answer.status, answer.error["status"]) == (403, "PERMISSION_DENIED")
    assert not Topic.objects.exists()


def test_a_page_of_pushhub_can_act_as_the_anonymous_caller(api: Api) -> None:
    headers = {"Origin": "http://testserver", "Sec-Fetch-Site": "same-origin"}

    assert api.put("topics/orders", **headers).status == 200


@pytest.fixture
def session(db: None, settings: Any) -> Client:
    """Return a client that is signed in to the admin; there is no anonymous access."""
    settings.ANONYMOUS = ""
    return root_client(enforce_csrf_checks=True)


def test_an_admin_session_may_read(session: Client) -> None:
    assert session.get("/v1/projects/shop/topics").status_code == 200


def test_an_admin_session_may_write_with_the_csrf_token_only(session: Client) -> None:
    refused = session.put(TOPIC)
    session.get("/admin/")
    token = session.get("/admin/password_change/").context["csrf_token"]
    accepted = session.put(TOPIC, headers={"X-CSRFToken": str(token)})

    assert refused.status_code == 403
    assert refused.json()["error"]["status"] == "PERMISSION_DENIED"
    assert accepted.status_code == 200


@pytest.mark.parametrize("flags", [{"is_staff": False}, {"is_staff": True, "is_active": False}])
def test_a_session_without_staff_status_is_refused(db: None, settings: Any, flags: dict[str, bool]) -> None:
    settings.ANONYMOUS = ""
    client = Client()
    client.force_login(User.objects.create_user("bob", **flags))

    assert client.get("/v1/projects/shop/topics").status_code == 401


def test_a_database_that_cannot_be_used_is_unavailable(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(**_: object) -> None:
        raise OperationalError("could not connect to server: the password is 42")

    monkeypatch.setattr("subscriptions.selectors.get_topic", broken)

    answer = api.get("topics/orders")

    assert answer.status == 503
    assert answer.error["status"] == "UNAVAILABLE"
    assert "42" not in answer.error["message"]


def test_every_link_of_the_first_page_works(api: Api) -> None:
    page = api.client.get("/")

    assert page.status_code == 200
    for address in re.findall(r'href="([^"]+)"', page.content.decode()):
        with closing(api.client.get(address)) as answer:
            is_unbuilt_guide = address == "/docs/guide/" and b"make docs" in answer.getvalue()
            assert answer.status_code in (200, 302) or is_unbuilt_guide, address


def test_the_health_check_does_not_wait_for_the_database(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise OperationalError

    with monkeypatch.context() as patched:
        patched.setattr(connection, "cursor", broken)
        assert api.get("/healthz") == Answer(200, {"status": "ok"})


def test_the_health_check_asks_the_threads_of_the_process(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("subscriptions.api.pages.threads_stuck", lambda: ["journal"])

    answer = api.get("/healthz")

    assert answer.status == 503
    assert answer.body["threads"] == ["journal"]


def test_the_documentation_loads_nothing_from_elsewhere(api: Api) -> None:
    page = api.client.get("/docs").content.decode()
    sources = re.findall(r'(?:src|href)="([^"]+)"', page)

    assert any("swagger-ui-bundle.js" in source for source in sources)
    sources.remove("/docs?script=")  # the page's own script, which is not inline
    for source in sources:
        assert source.startswith("/static/")
        assert finders.find(source.removeprefix("/static/")), source


def test_the_openapi_document_describes_each_method(
    api: Api, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    document = api.get("/schema").body
    paths = document["paths"]

    topic = "/v1/projects/{project}/topics/{topic}"
    subscription = "/v1/projects/{project}/subscriptions/{subscription}"
    assert set(paths[topic]) == {"get", "put", "patch", "delete"}
    assert set(paths[subscription]) == {"get", "put", "patch", "delete"}
    for path in (f"{topic}/subscriptions", f"{subscription}:modifyPushConfig", f"{subscription}:detach"):
        assert path in paths
    operations = [operation for path in paths.values() for operation in path.values()]
    assert len({operation["operationId"] for operation in operations}) == len(operations)
    complaints = [line for line in capsys.readouterr().err.splitlines() if "subscriptions/" in line]
    assert complaints == []
    body = paths[subscription]["put"]["requestBody"]["content"]["application/json"]["schema"]
    jsonschema.Draft202012Validator.check_schema(body)
    assert body["properties"]["ackDeadlineSeconds"] == {"type": "integer", "format": "int32"}
