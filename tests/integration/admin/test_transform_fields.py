"""Message transforms in the console's forms: each error is shown at its function, and no change needs a script."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

import pytest
from django.db import connection
from django.test import Client

from subscriptions.iam import access, grants
from subscriptions.models import Project, Subscription, Topic
from subscriptions.services import transforms as service
from tests.integration.admin.test_chinese import english_in
from tests.restapi import Api, staff_client

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.any_database]

KINDS = ("topic", "subscription")
#: A JavaScript function that returns the message unchanged.
SAME = "function {name}(message) {{ return message; }}"


class Fields(HTMLParser):
    """The names and values that a browser without scripts sends for a page's form."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.values: dict[str, str] = {}
        self._text = self._select = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        name = values.get("name", "")
        if tag == "textarea":
            self._text = name
            self.values[name] = ""
        elif tag == "select":
            self._select = name
        elif tag == "option" and "selected" in values:
            self.values[self._select] = values["value"]
        elif tag == "input" and values.get("type") in ("checkbox", "radio"):
            self.values |= {name: values.get("value", "on")} if "checked" in values else {}
        elif tag == "input" and values.get("type") != "submit":
            self.values[name] = values.get("value", "")

    def handle_endtag(self, tag: str) -> None:
        if tag == "textarea":
            self._text = ""

    def handle_data(self, data: str) -> None:
        if self._text:
            self.values[self._text] += data.removeprefix("\n").removeprefix("\r\n")


def rows(api: Api, *names: str) -> None:
    """Create a topic and a subscription that each have these functions."""
    transforms = [transform(name) for name in names]
    api.create("topics/shaped", {"messageTransforms": transforms})
    api.create("subscriptions/shaped", {"topic": "projects/shop/topics/shaped", "messageTransforms": transforms})


def transform(name: str, **more: Any) -> dict[str, Any]:
    return {"javascriptUdf": {"functionName": name, "code": SAME.format(name=name)}, **more}


def row_of(kind: str) -> Topic | Subscription:
    if kind == "topic":
        return Topic.objects.get(topic_id="shaped")
    return Subscription.objects.get(subscription_id="shaped")


def address_of(kind: str) -> str:
    return f"/admin/subscriptions/{kind}/{row_of(kind).pk}/change/"


def save_form(client: Client, kind: str, **changed: str | None) -> Any:
    """Open the form, change these values, and save it. None stands for a box that is not ticked."""
    values: dict[str, str | None] = {**Fields(client.get(address_of(kind)).content.decode()).values, **changed}
    sent = {name: value for name, value in values.items() if value is not None}
    return client.post(address_of(kind), sent)


def stored(kind: str) -> list[str]:
    """Return the functions as stored, with a minus before those that are switched off."""
    transforms = row_of(kind).message_transforms or ()
    return ["-" * bool(entry.get("disabled")) + entry["javascriptUdf"]["functionName"] for entry in transforms]


def function(number: int, name: str, **more: str) -> dict[str, str]:
    """Return the form values of a function."""
    values = {"name": name, "code": SAME.format(name=name), **more}
    return {f"transform_{number}_{part}": value for part, value in values.items()}


@pytest.mark.parametrize("kind", KINDS)
def test_a_function_is_added(client: Client, api: Api, kind: str) -> None:
    rows(api, "first")
    assert save_form(client, kind, **function(2, "second")).status_code == 302
    assert stored(kind) == ["first", "second"]


def test_a_form_creates_a_topic_with_functions(client: Client, api: Api) -> None:
    api.create("topics/other")
    project = str(Project.objects.get(project_id="shop").pk)
    sent = {"project": project, "topic_id": "shaped", "labels": "{}", **function(1, "f"), **function(2, "g")}
    assert client.post("/admin/subscriptions/topic/add/", sent).status_code == 302
    assert stored("topic") == ["f", "g"]


@pytest.mark.parametrize("kind", KINDS)
def test_saving_changes_no_function(client: Client, api: Api, kind: str) -> None:
    rows(api, "first", "second")
    code = "\n  function second(m) {\r\n    return m; // <b>&amp;\n  }\n".replace("\r", "")
    before = [transform("first", disabled=True), {"javascriptUdf": {"functionName": "second", "code": code}}]
    type(row_of(kind)).objects.update(message_transforms=before)
    assert save_form(client, kind).status_code == 302
    assert row_of(kind).message_transforms == before


@pytest.mark.parametrize("kind", KINDS)
def test_lines_of_code_are_stored_without_carriage_returns(client: Client, api: Api, kind: str) -> None:
    rows(api)
    code = "function f(m) {\r\n  return m;\r\n}"
    assert save_form(client, kind, **function(1, "f", code=code)).status_code == 302
    assert (row_of(kind).message_transforms or [])[0]["javascriptUdf"]["code"] == "function f(m) {\n  return m;\n}"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("change", "functions"),
    [
        ({"transform_1_disabled": "on"}, ["-first", "second"]),
        ({"transform_1_remove": "on"}, ["second"]),
        ({"transform_1_name": "", "transform_1_code": ""}, ["second"]),
        ({"transform_1_position": "3"}, ["second", "first"]),
        (function(3, "third", position="1"), ["first", "third", "second"]),
    ],
)
def test_functions_are_switched_off_removed_and_reordered(
    client: Client, api: Api, kind: str, change: dict[str, str], functions: list[str]
) -> None:
    rows(api, "first", "second")
    assert save_form(client, kind, **change).status_code == 302
    assert stored(kind) == functions


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("change", "field", "words"),
    [
        (function(2, "f", code="function f( {"), "transform_2", "SyntaxError"),
        (function(2, "f", code="function g(m) {}"), "transform_2", "has no function f"),
        (function(2, "f", code=""), "transform_2", "The code of a function must not be empty"),
        (function(2, "2f"), "transform_2", "Invalid function name"),
        (function(2, "first"), "transform_2", "must have a unique name"),
        # An error is shown at the function's fields, whatever its position.
        (function(4, "f", code="function f( {", position="1"), "transform_4", "SyntaxError"),
        (function(4, "f", code="//" + "x" * 20_480), "transform_4", "20480"),
    ],
)
def test_an_error_is_at_its_function_and_nothing_is_stored(
    client: Client, api: Api, kind: str, change: dict[str, str], field: str, words: str
) -> None:
    rows(api, "first")
    response = save_form(client, kind, **change)
    errors = response.context["adminform"].form.errors
    assert list(errors) == [field], errors
    assert words in errors[field][0]
    assert change[f"{field}_name"] in response.content.decode()
    assert stored(kind) == ["first"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_forms_and_their_errors_are_in_chinese(client: Client, api: Api, kind: str) -> None:
    rows(api, "shop_first")
    client.cookies["django_language"] = "zh-hans"
    assert english_in(client.get(address_of(kind)).content.decode()) == set()
    for change in (function(2, "shop_f", code=""), function(2, "2f"), function(2, "shop_first")):
        page = save_form(client, kind, **change).content.decode()
        assert "errorlist" in page
        assert english_in(page) == set()


@pytest.mark.parametrize("kind", KINDS)
def test_a_viewer_reads_the_functions_and_cannot_run_any(client: Client, api: Api, kind: str) -> None:
    rows(api, "first")
    grants.grant_role(Project.objects.get(project_id="shop"), role="roles/viewer", member="user:viewer@example.com")
    access.forget_decisions()
    client = staff_client("viewer")
    page = client.get(address_of(kind)).content.decode()
    assert "function first(message)" in page
    assert "transform_2" not in page
    service.check_function.cache_clear()
    assert client.post(address_of(kind), function(1, "f")).status_code == 403
    assert service.check_function.cache_info().misses == 0
    assert stored(kind) == ["first"]


def test_users_code_runs_outside_of_transactions(client: Client, api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    rows(api, "first")
    sandboxes = service.sandboxes()
    check = sandboxes.check
    transactions = []

    def check_recorded(*arguments: Any) -> str:
        transactions.append(connection.in_atomic_block)
        return check(*arguments)

    monkeypatch.setattr(sandboxes, "check", check_recorded)
    service.check_function.cache_clear()
    for kind in KINDS:
        assert save_form(client, kind, **function(2, f"{kind}_function")).status_code == 302
    assert transactions
    assert not any(transactions)
