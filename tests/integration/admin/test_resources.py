"""The console edits through the services, so it has the same rules, words and effects as the API."""

from __future__ import annotations

import gettext
import re
from pathlib import Path
from typing import Any

import pytest
from django.test import Client

from deliveries.backlog.codes import Mode
from deliveries.backlog.default import default_backlog
from deliveries.models import Delivery, Message
from deliveries.push.rejected import reject
from subscriptions.identity.keys import signing_key
from subscriptions.models import Project, ServiceAccount, Subscription, Topic
from subscriptions.models.iam import SigningKey
from subscriptions.services.hierarchy import create_organization
from tests.lanes import lane_state
from tests.restapi import Api

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("api")]

TOPIC = "projects/shop/topics/orders"


@pytest.fixture
def api(redis_url: str) -> Api:
    api = Api()
    api.put("topics/orders")
    api.post("serviceAccounts", {"accountId": "pusher"})
    return api


def form(**fields: Any) -> dict[str, Any]:
    topic = Topic.objects.get(topic_id="orders")
    base = {
        "project": topic.project_id,
        "subscription_id": "hello",
        "topic": topic.pk,
        "push_endpoint": "https://example.com/push",
        "service_account": "pusher@shop.iam.gserviceaccount.com",
        "audience": "aud",
        "ack_deadline_seconds": 20,
        "message_retention": "604800s",
        "push_attributes": "{}",
        "labels": '{"team": "a"}',
    }
    return base | fields


def errors(response: Any) -> dict[str, list[str]]:
    assert response.status_code == 200, response.status_code
    return {field: list(texts) for field, texts in response.context["adminform"].form.errors.items()}


def test_a_subscription_created_in_the_console_is_the_same_in_the_api(client: Client, api: Api) -> None:
    response = client.post("/admin/subscriptions/subscription/add/", form(minimum_backoff="1s", maximum_backoff="9s"))
    assert response.status_code == 302, errors(response)
    subscription = api.get("subscriptions/hello").body
    assert subscription["topic"] == TOPIC
    assert subscription["pushConfig"] == {
        "pushEndpoint": "https://example.com/push",
        "oidcToken": {"serviceAccountEmail": "pusher@shop.iam.gserviceaccount.com", "audience": "aud"},
    }
    assert (subscription["ackDeadlineSeconds"], subscription["labels"]) == (20, {"team": "a"})
    assert subscription["retryPolicy"] == {"minimumBackoff": "1s", "maximumBackoff": "9s"}
    assert default_backlog().lanes(), "the data plane was told"


def test_saving_an_unchanged_form_changes_nothing(client: Client, api: Api) -> None:
    client.post(
        "/admin/subscriptions/subscription/add/", form(wrapper="metadata", push_attributes='{"x-pushhub-rate": "5"}')
    )
    before = api.get("subscriptions/hello").body
    url = f"/admin/subscriptions/subscription/{Subscription.objects.get().pk}/change/"
    shown = client.get(url).context["adminform"].form
    data = {name: shown[name].value() for name in shown.fields}
    data = {name: getattr(value, "pk", value) for name, value in data.items() if value not in (None, False)}
    assert client.post(url, data).status_code == 302
    assert api.get("subscriptions/hello").body == before


@pytest.mark.parametrize(
    "fields, place",
    [
        ({"push_endpoint": "ftp://example.com/"}, "push_endpoint"),
        ({"ack_deadline_seconds": 5}, "ack_deadline_seconds"),
        ({"subscription_id": "goog-mine"}, "subscription_id"),
        ({"message_retention": "1s"}, "message_retention"),
        ({"push_attributes": '{"x-pushhub-rate": "fast"}'}, "push_attributes"),
    ],
)
def test_an_error_of_a_service_is_shown_at_its_field_and_nothing_is_stored(
    client: Client, fields: dict[str, Any], place: str
) -> None:
    response = client.post("/admin/subscriptions/subscription/add/", form(**fields))
    assert list(errors(response)) == [place]
    assert not Subscription.objects.exists()


def test_exactly_once_delivery_and_expiration_are_set_and_changed(client: Client, api: Api) -> None:
    fields = form(push_endpoint="", service_account="", audience="", expiration="864000s")
    response = client.post("/admin/subscriptions/subscription/add/", {**fields, "enable_exactly_once_delivery": "on"})
    assert response.status_code == 302, errors(response)
    subscription = api.get("subscriptions/hello").body
    assert (subscription["enableExactlyOnceDelivery"], subscription["expirationPolicy"]) == (True, {"ttl": "864000s"})
    url = f"/admin/subscriptions/subscription/{Subscription.objects.get().pk}/change/"
    assert list(errors(client.post(url, {**fields, "expiration": "5s"}))) == ["expiration"]
    assert client.post(url, {**fields, "expiration": ""}).status_code == 302
    changed = api.get("subscriptions/hello").body
    assert "enableExactlyOnceDelivery" not in changed
    assert changed["expirationPolicy"] == {}, "the subscription never expires"


def test_a_change_goes_through_the_services_too(client: Client, api: Api) -> None:
    client.post("/admin/subscriptions/subscription/add/", form())
    url = f"/admin/subscriptions/subscription/{Subscription.objects.get().pk}/change/"
    assert list(errors(client.post(url, form(push_endpoint="nonsense")))) == ["push_endpoint"]
    assert client.post(url, form(push_endpoint="https://example.com/new")).status_code == 302
    assert api.get("subscriptions/hello").body["pushConfig"]["pushEndpoint"] == "https://example.com/new"
    assert api.get("subscriptions/hello").body["name"] == "projects/shop/subscriptions/hello"


def test_pause_and_delete_go_through_the_services(client: Client, api: Api) -> None:
    client.post("/admin/subscriptions/subscription/add/", form())
    pk = Subscription.objects.get().pk
    client.post("/admin/subscriptions/subscription/", {"action": "pause", "_selected_action": [pk]})
    assert api.get("subscriptions/hello").body["pushConfig"]["pushEndpoint"] == "https://example.com/push"
    [lane] = default_backlog().lanes()
    assert lane_state(default_backlog(), lane).mode == Mode.IDLE, "the data plane was told"
    client.post(f"/admin/subscriptions/subscription/{pk}/delete/", {"post": "yes"})
    assert not Subscription.objects.exists()
    assert not default_backlog().lanes(), "the data plane was told"


def test_topics_accounts_and_projects_are_created_too(client: Client, api: Api) -> None:
    project = Project.objects.get().pk
    added = [
        ("topic", {"project": project, "topic_id": "more", "labels": "{}", "message_retention": "600s"}),
        ("serviceaccount", {"project": project, "account_id": "another", "display_name": "Another"}),
        ("project", {"project_id": "second"}),
    ]
    for model, data in added:
        add = f"/admin/subscriptions/{model}/add/"
        response = client.post(add, data)
        assert response.status_code == 302, errors(response)
    assert api.get("topics/more").body["messageRetentionDuration"] == "600s"
    assert ServiceAccount.objects.get(email__startswith="another@").display_name == "Another"
    organization = create_organization(display_name="Shops")
    assert client.post(add, {"project_id": "third", "parent": organization.name}).status_code == 302
    for project_id, parent in (("second", "-"), ("third", organization.name)):
        page = f"/admin/subscriptions/project/{Project.objects.get(project_id=project_id).pk}/change/"
        assert f'<div class="readonly">{parent}</div>' in client.get(page).content.decode()


def test_a_message_is_published_and_shown_as_waiting(client: Client, api: Api) -> None:
    client.post("/admin/subscriptions/subscription/add/", form())
    url = f"/admin/subscriptions/topic/{Topic.objects.get().pk}/overview/"
    assert client.post(url, {"text": "hello", "attributes": '{"a": "1"}'}).status_code == 302
    assert bytes(Message.objects.get().data) == b"hello"
    assert "empty" in client.post(url, {"text": "", "attributes": "{}"}).content.decode()
    assert Message.objects.count() == 1
    pk = Subscription.objects.get().pk
    assert (
        str(Delivery.objects.get().message_id)
        in client.get(f"/admin/deliveries/delivery/waiting/{pk}/").content.decode()
    )
    figures = client.get(f"/admin/deliveries/delivery/state/{pk}/").context["shown"]["figures"]
    assert (figures["undelivered"], figures["window"], figures["acked"]) == ("1", "3", "-")


def test_the_state_page_says_that_redis_does_not_answer(client: Client, api: Api, settings: Any) -> None:
    client.post("/admin/subscriptions/subscription/add/", form())
    settings.REDIS_URL = "unix:///nowhere/redis.sock"
    page = client.get(f"/admin/deliveries/delivery/state/{Subscription.objects.get().pk}/")
    assert page.status_code == 200
    assert "Redis takes no messages: Redis cannot be reached." in page.content.decode()


@pytest.mark.parametrize("language", ["en", "zh-hans"])
def test_every_page_opens_in_both_languages(client: Client, api: Api, language: str) -> None:
    client.post("/admin/subscriptions/subscription/add/", form())
    api.post("topics/orders:publish", {"messages": [{"attributes": {"a": "b"}}]})
    signing_key()
    reject("garbage", reason="not JSON")
    pages = ["", "deliveries/delivery/rejected/"]
    for app, models in {
        "subscriptions": [Project, Topic, Subscription, ServiceAccount, SigningKey],
        "deliveries": [Message, Delivery],
    }.items():
        for model in models:
            base = f"{app}/{model.__name__.lower()}/"
            pages += [base, f"{base}?q=1", f"{base}{model.objects.all()[0].pk}/change/"]  # type: ignore[attr-defined]
    for page in pages:
        response = client.get(f"/admin/{page}", headers={"Accept-Language": language})
        assert response.status_code == 200, page


def test_the_list_of_deliveries_links_the_rejected_messages(client: Client) -> None:
    reject("garbage <b>", reason="not JSON")
    assert "/admin/deliveries/delivery/rejected/" in client.get("/admin/deliveries/delivery/").content.decode()
    assert "garbage &lt;b&gt;" in client.get("/admin/deliveries/delivery/rejected/").content.decode()


def test_no_page_shows_a_private_key(client: Client, api: Api) -> None:
    signing_key()
    row = SigningKey.objects.get()
    for page in ("", f"{row.pk}/change/"):
        content = client.get(f"/admin/subscriptions/signingkey/{page}").content.decode()
        assert row.private_key not in content
        assert "PRIVATE" not in content


def test_every_page_needs_a_login(api: Api) -> None:
    for page in (
        "",
        "deliveries/delivery/state/1/",
        "subscriptions/topic/1/overview/",
        "deliveries/delivery/rejected/",
    ):
        assert Client().get(f"/admin/{page}").status_code == 302


@pytest.mark.parametrize("app", ["subscriptions", "deliveries"])
def test_the_compiled_translations_are_those_of_the_source(app: str) -> None:
    folder = Path(__file__).parents[3] / app / "locale" / "zh_Hans" / "LC_MESSAGES"
    with (folder / "django.mo").open("rb") as file:
        compiled = gettext.GNUTranslations(file)
    entry = r'(?:^msgctxt "(.+)"\n)?^msgid "(.+)"\nmsgstr "(.*)"$'
    entries = re.findall(entry, (folder / "django.po").read_text("utf-8"), re.MULTILINE)
    assert entries
    for context, *escaped in entries:
        source, translation = (text.replace(r"\"", '"') for text in escaped)
        assert translation, f"{source!r} is not translated"
        assert (compiled.pgettext(context, source) if context else compiled.gettext(source)) == translation


def test_the_console_is_in_chinese_if_the_browser_asks_for_it(client: Client) -> None:
    page = client.get("/admin/subscriptions/subscription/add/", headers={"Accept-Language": "zh-hans"})
    assert "端点网址" in page.content.decode()


@pytest.mark.parametrize("kind", ["topic", "subscription"])
def test_message_transforms_are_shown(client: Client, api: Api, kind: str) -> None:
    code = "function f(m) { return m.data < 'x' ? m : null; }"
    transforms = [{"javascriptUdf": {"functionName": "f", "code": code}, "disabled": True}]
    api.create("topics/shaped", {"messageTransforms": transforms})
    api.create("subscriptions/shaped", {"topic": "projects/shop/topics/shaped", "messageTransforms": transforms})
    row: Topic | Subscription = Topic.objects.get(topic_id="shaped")
    if kind == "subscription":
        row = Subscription.objects.get(subscription_id="shaped")

    page = client.get(f"/admin/subscriptions/{kind}/{row.pk}/change/").content.decode()

    assert '<summary><span class="mono">f</span></summary>' in page
    assert "m.data &lt; &#x27;x&#x27;" in page


def test_a_schema_is_created_in_the_console_with_its_first_revision(client: Client, api: Api) -> None:
    page = "/admin/subscriptions/schema/add/"
    project = Project.objects.get(project_id="shop").pk
    entered = {"project": project, "schema_id": "order", "type": "AVRO", "definition": '{"type": "nonsense"}'}
    assert "definition" in errors(client.post(page, entered))
    entered["definition"] = '{"type": "record",\r\n "name": "Order", "fields": []}'
    assert client.post(page, entered).status_code == 302
    assert api.get("schemas/order?view=FULL").body["definition"] == entered["definition"].replace("\r\n", "\n")
    assert errors(client.post(page, entered)) == {"schema_id": ["There is one of this name already. Choose another."]}


def test_a_form_takes_over_the_chosen_project_and_folds_what_is_seldom_needed(client: Client) -> None:
    page = "/admin/subscriptions/subscription/add/"
    client.post("/admin/choose-project/", {"project": "shop"})
    answer = client.get(page)
    assert answer.context["adminform"].form.initial["project"] == Project.objects.get(project_id="shop")
    text = answer.content.decode()
    assert "---------" not in text
    assert "_addanother" not in text
    folded = text.count("<details><summary>")
    assert folded > 5
    wrong = client.post(page, form(maximum_backoff="forever")).content.decode()
    assert wrong.count("<details><summary>") == folded - 1, "the section with an error is open"


@pytest.mark.parametrize("address", ["/admin/subscriptions/nowhere/", "/nowhere"])
def test_what_is_nowhere_is_a_page_that_leads_on(client: Client, address: str) -> None:
    answer = client.get(address)
    assert answer.status_code == 404
    text = answer.content.decode()
    assert f"There is no page at {address}" in text
    assert 'href="/admin/"' in text
