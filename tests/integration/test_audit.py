"""The audit log: each administrative change with its caller, address and values before and after, without secrets."""

from __future__ import annotations

import datetime
import json
from typing import Any

import pytest
from django.apps import apps
from django.contrib.auth.models import User
from django.core.management import call_command
from django.test import override_settings

from pushhub.common.clock import utcnow
from subscriptions import audit, receivers
from subscriptions.iam import grants
from subscriptions.iam.tree import get_resource
from subscriptions.identity import access_tokens, keys
from subscriptions.models import Project, Subscription
from subscriptions.models.iam import AuditEntry, Perimeter
from tests.restapi import Api, root_client

pytestmark = pytest.mark.django_db(transaction=True)

TOPIC = "projects/shop/topics/orders"
HELLO = "projects/shop/subscriptions/hello"
ENDPOINT = "https://example.com/push"


@pytest.fixture
def api(redis_url: str) -> Api:
    api = Api()
    api.create("topics/orders")
    api.post("serviceAccounts", {"accountId": "pusher"})
    return api


def entries(resource: str, **conditions: Any) -> list[AuditEntry]:
    """Return the entries about a resource, oldest first."""
    return list(AuditEntry.objects.filter(resource=resource, **conditions).order_by("pk"))


def the_log() -> str:
    return json.dumps(list(AuditEntry.objects.values("before", "after", "method", "resource", "caller")))


def test_a_change_over_rest_says_who_what_from_where_before_and_after(api: Api) -> None:
    api.create("subscriptions/hello", {"topic": TOPIC, "pushConfig": {"pushEndpoint": ENDPOINT}})
    api.post("subscriptions/hello:modifyPushConfig", {"pushConfig": {"pushEndpoint": ENDPOINT + "/2"}})
    api.delete("subscriptions/hello")

    created, changed, deleted = entries(HELLO)

    assert [entry.action for entry in (created, changed, deleted)] == ["create", "update", "delete"]
    assert {entry.caller for entry in (created, changed, deleted)} == {"user:developer@localhost"}
    assert (created.surface, created.address) == ("rest", "127.0.0.1")
    assert created.method == "google.pubsub.v1.Subscriber.CreateSubscription"
    assert changed.method == "google.pubsub.v1.Subscriber.ModifyPushConfig"
    assert (created.before, created.after["push_endpoint"]) == (None, ENDPOINT)  # type: ignore[index]
    assert changed.before["push_endpoint"] == ENDPOINT  # type: ignore[index]
    assert changed.after["push_endpoint"] == ENDPOINT + "/2"  # type: ignore[index]
    assert (deleted.before["push_endpoint"], deleted.after) == (ENDPOINT + "/2", None)  # type: ignore[index]


def test_a_change_that_fails_leaves_no_entry(api: Api) -> None:
    before = AuditEntry.objects.count()
    assert api.put("subscriptions/hello", {"topic": TOPIC, "ackDeadlineSeconds": 1}).status == 400
    assert api.put("topics/orders").status == 409
    assert AuditEntry.objects.count() == before


def test_a_patch_that_changes_nothing_leaves_no_entry(api: Api) -> None:
    before = AuditEntry.objects.count()
    patch = {"topic": {"labels": {}}, "updateMask": "labels"}
    assert api.patch("topics/orders", patch).status == 200
    assert AuditEntry.objects.count() == before


def test_publishing_and_pulling_leave_no_entries(api: Api) -> None:
    api.create("subscriptions/hello", {"topic": TOPIC})
    before = AuditEntry.objects.count()
    assert api.post("topics/orders:publish", {"messages": [{"data": "aGk="}]}).status == 200
    received = api.post("subscriptions/hello:pull", {"maxMessages": 1}).body["receivedMessages"]
    api.post("subscriptions/hello:acknowledge", {"ackIds": [received[0]["ackId"]]})
    assert AuditEntry.objects.count() == before


def test_the_entry_of_a_policy_has_its_resources_name(api: Api) -> None:
    grants.grant_role(get_resource(TOPIC), role="roles/pubsub.publisher", member="user:ada@example.com")
    entry = entries(TOPIC, kind="Policy")[-1]
    assert entry.after["bindings"] == [  # type: ignore[index]
        {"role": "roles/pubsub.publisher", "members": ["user:ada@example.com"]}
    ]
    assert entry.caller == "operator:pushhub"
    assert entry.surface == "command"


def test_a_denied_call_is_logged_with_its_caller(api: Api) -> None:
    api.sign_in("eve@example.com")
    assert api.delete("topics/orders").status == 403
    entry = entries(TOPIC, outcome="denied")[0]
    assert (entry.caller, entry.method) == ("user:eve@example.com", "google.pubsub.v1.Publisher.DeleteTopic")
    assert (entry.action, entry.address) == ("DeleteTopic", "127.0.0.1")


def test_a_denied_call_about_a_name_that_no_database_holds_is_logged(api: Api) -> None:
    with audit.origin(audit.Origin(caller="user:eve@example.com")):
        audit.denied(method="google.pubsub.v1.Publisher.CreateTopic", resource="projects/shop/topics/a\0b")
    [entry] = entries_of("user:eve@example.com")
    assert entry.resource == "projects/shop/topics/ab"


@pytest.mark.parametrize("address", ["topics/a%00b", "roles/a%00b", "serviceAccounts/a%00b/keys/c%00d"])
def test_an_address_with_a_name_that_no_database_holds_is_refused(api: Api, address: str) -> None:
    for caller in ("root", "eve@example.com"):
        if caller != "root":
            api.sign_in(caller)
        for verb in ("GET", "DELETE"):
            answer = api.call(verb, address)
            assert (answer.status, answer.body["error"]["status"]) == (400, "INVALID_ARGUMENT")


def test_denied_calls_create_a_bounded_number_of_entries_per_caller(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "DENIED_ENTRIES", 3)
    api.sign_in("eve@example.com")
    for number in range(8):
        assert api.delete(f"topics/topic-{number}").status == 403
    denials = entries_of("user:eve@example.com")
    assert [entry.left_out for entry in denials] == [0, 0, 5]
    mallory = Api()
    mallory.sign_in("mallory@example.com")
    assert mallory.delete("topics/orders").status == 403
    assert len(entries_of("user:mallory@example.com")) == 1
    AuditEntry.objects.filter(caller="user:eve@example.com").update(at=utcnow() - audit.DENIED_PERIOD)
    assert api.delete("topics/orders").status == 403
    assert len(entries_of("user:eve@example.com")) == 4


def entries_of(caller: str) -> list[AuditEntry]:
    return list(AuditEntry.objects.filter(caller=caller, outcome="denied").order_by("at", "id"))


def test_denied_publishes_and_reads_do_not_flood_the_log(api: Api) -> None:
    api.sign_in("eve@example.com")
    before = AuditEntry.objects.count()
    assert api.post("topics/orders:publish", {"messages": [{"data": "aGk="}]}).status == 403
    assert api.get("topics/orders").status == 403
    assert AuditEntry.objects.count() == before


def test_changes_in_the_console_are_logged_as_such(api: Api) -> None:
    client = root_client()
    project = Project.objects.get()
    client.post("/admin/subscriptions/topic/add/", {"project": project.pk, "topic_id": "returns", "labels": "{}"})
    (entry,) = entries("projects/shop/topics/returns")
    assert (entry.caller, entry.surface) == ("user:root@example.com", "admin")
    assert entry.method == "POST /admin/subscriptions/topic/add/"


def test_entries_hold_no_secrets(api: Api) -> None:
    """Neither PushHub's own secrets, nor secrets in URLs or, from before attributes were checked, in attributes."""
    api.create("subscriptions/hello", {"topic": TOPIC, "pushConfig": {"pushEndpoint": ENDPOINT + "?token=hunter2"}})
    assert Subscription.objects.get().push_endpoint.endswith("?token=hunter2"), "the row itself still has the token"
    Subscription.objects.update(push_attributes={"x-shared-secret": "swordfish"})
    assert api.delete("subscriptions/hello").status == 200
    User.objects.create_user("ada", password="correct horse battery")
    token = access_tokens.create_access_token(member="user:ada@example.com").token
    key = api.post("serviceAccounts/pusher@shop.iam.gserviceaccount.com/keys").body
    signing_key = keys.signing_key()

    log = the_log()

    assert "access_tokens" not in log
    for secret in ("hunter2", "swordfish", "battery", token, key["privateKeyData"][:60], "PRIVATE KEY"):
        assert secret not in log, secret
    assert str(User.objects.get(username="ada").password) not in log
    assert signing_key.kid in log


def test_a_text_with_something_like_a_url_is_logged(api: Api) -> None:
    created = {"serviceAccount": {"description": "x://[?a"}, "accountId": "reader"}
    assert api.post("serviceAccounts", created).status == 200
    [entry] = entries("projects/shop/serviceAccounts/reader@shop.iam.gserviceaccount.com")
    assert entry.after is not None
    assert entry.after["description"] == "x://[?…"


def test_the_projects_of_a_perimeter_are_part_of_it(api: Api) -> None:
    perimeter = Perimeter.objects.create(title="crown jewels")
    perimeter.projects.add(Project.objects.get())
    created, added = entries("perimeters/crown jewels")
    assert created.action == "create"
    assert (added.before, added.after) == ({"projects": []}, {"projects": ["projects/shop"]})


def test_each_model_of_the_control_plane_is_audited_or_has_a_reason_not_to_be() -> None:
    models = {model.__name__ for model in apps.get_app_config("subscriptions").get_models()}
    assert {model.__name__ for model in receivers.audited_models()} == {"User", *(models - receivers.NOT_AUDITED)}


def test_the_console_shows_entries_and_cannot_change_them(api: Api) -> None:
    client = root_client()
    api.create("subscriptions/hello", {"topic": TOPIC, "labels": {"team": "a"}})
    (entry,) = entries(HELLO)
    base = "/admin/subscriptions/auditentry/"
    assert HELLO in client.get(base + "?q=hello").content.decode()
    page = client.get(f"{base}{entry.pk}/change/").content.decode()
    assert TOPIC in page
    assert "CreateSubscription" in page
    assert client.post(f"{base}{entry.pk}/delete/", {"post": "yes"}).status_code == 403
    assert client.post(f"{base}{entry.pk}/change/", {"caller": "user:nobody"}).status_code == 403
    assert client.get(base + "add/").status_code == 403


def test_a_link_to_a_time_of_the_log_shows_the_entries_of_that_time(api: Api) -> None:
    old, new = AuditEntry.objects.order_by("pk")[0], utcnow() + datetime.timedelta(days=400)
    api.sign_in("root@example.com", is_superuser=True)

    def listed(**query: str) -> int:
        answer = api.client.get("/admin/subscriptions/auditentry/", query)
        assert answer.status_code == 200
        return int(answer.context["cl"].result_count)

    assert listed(at__gte=f"{old.at:%Y-%m-%d}T00:00Z") >= 1
    assert listed(at__gte=f"{new:%Y-%m-%d}T00:00Z") == 0
    assert listed(at__lt=f"{old.at:%Y-%m-%d}T00:00Z") == 0


def test_old_entries_are_swept(api: Api) -> None:
    AuditEntry.objects.update(at=utcnow() - datetime.timedelta(days=8))
    Perimeter.objects.create(title="new")
    with override_settings(AUDIT_DAYS=7):
        assert audit.sweep() > 0
    assert [entry.resource for entry in AuditEntry.objects.all()] == ["perimeters/new"]


def test_commands_are_logged_as_such(api: Api) -> None:
    call_command("project_create", "depot")
    entry = entries("projects/depot", kind="Project")[0]
    assert (entry.caller, entry.surface) == ("operator:pushhub", "command")
