"""The console checks the IAM policies too: Django's permissions alone allow a member of staff nothing."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from subscriptions.iam import grants
from subscriptions.iam.tree import get_resource
from subscriptions.models import Organization, Project, ServiceAccount, Subscription, Topic
from tests.integration.admin.test_resources import errors, form
from tests.restapi import Api, root_client, staff_client

pytestmark = pytest.mark.django_db(transaction=True)

ADA = "user:ada@example.com"
ADMIN = "/admin/subscriptions/"


@pytest.fixture
def ada(redis_url: str) -> Client:
    """A member of staff with all of Django's permissions; the topic `orders` and the account `pusher` exist."""
    api = Api()
    api.create("topics/orders")
    api.post("serviceAccounts", {"accountId": "pusher"})
    return staff_client("ada")


def grant(resource: str, role: str) -> None:
    grants.grant_role(get_resource(resource), role=role, member=ADA)


def is_denied(response: Any) -> bool:
    return any("You need the permission" in text for texts in errors(response).values() for text in texts)


def test_nothing_is_created_without_the_permission(ada: Client) -> None:
    project = Project.objects.get()
    pages: dict[str, dict[str, Any]] = {
        "topic": {"project": project.pk, "topic_id": "returns", "labels": "{}"},
        "subscription": form(service_account="", audience=""),
        "serviceaccount": {"project": project.pk, "account_id": "another"},
        "project": {"project_id": "depot"},
    }
    assert is_denied(ada.post(f"{ADMIN}project/add/", pages.pop("project")))
    for role in ("", "roles/viewer"):
        if role:
            grant("projects/shop", role)
        for page, fields in pages.items():
            assert ada.post(f"{ADMIN}{page}/add/", fields).status_code == 403, page
    assert (Topic.objects.count(), Subscription.objects.count()) == (1, 0)
    assert (ServiceAccount.objects.count(), Project.objects.count()) == (1, 1)

    grant("projects/shop", "roles/editor")
    for page, fields in pages.items():
        assert ada.post(f"{ADMIN}{page}/add/", fields).status_code == 302, page


def test_a_signed_subscription_needs_act_as(ada: Client) -> None:
    grant("projects/shop", "roles/pubsub.admin")
    assert errors(ada.post(f"{ADMIN}subscription/add/", form()))["service_account"], "Ada may not see the account"
    grant("projects/shop", "roles/iam.serviceAccountViewer")

    refused = ada.post(f"{ADMIN}subscription/add/", form())
    assert "iam.serviceAccounts.actAs" in errors(refused)["service_account"][0]
    grant("projects/shop", "roles/iam.serviceAccountUser")

    assert ada.post(f"{ADMIN}subscription/add/", form()).status_code == 302


def test_rows_are_changed_and_deleted_only_with_the_permission(ada: Client) -> None:
    topic = Topic.objects.get()
    account = ServiceAccount.objects.get()
    change = f"{ADMIN}topic/{topic.pk}/change/"
    deletion = {"action": "delete_selected", "_selected_action": [topic.pk], "post": "yes"}

    for address in (change, f"{ADMIN}topic/{topic.pk}/delete/"):
        unknown = address.replace(f"/{topic.pk}/", f"/{topic.pk + 1}/")
        for hidden_or_unknown in (address, unknown):
            assert ada.post(hidden_or_unknown, {"labels": '{"a": "b"}', "post": "yes"}).status_code == 403
    grant("projects/shop", "roles/viewer")
    assert ada.post(change, {"labels": '{"a": "b"}', "message_retention": ""}).status_code == 403
    assert ada.post(f"{ADMIN}topic/{topic.pk}/delete/", {"post": "yes"}).status_code == 403
    ada.post(f"{ADMIN}topic/", deletion)
    ada.post(f"{ADMIN}serviceaccount/", {"action": "disable", "_selected_action": [account.pk]})
    account.refresh_from_db()
    assert Topic.objects.get().labels == {}
    assert not account.disabled

    grant("projects/shop", "roles/editor")
    ada.post(f"{ADMIN}serviceaccount/", {"action": "disable", "_selected_action": [account.pk]})
    account.refresh_from_db()
    assert account.disabled
    assert ada.post(change, {"labels": '{"a": "b"}', "message_retention": ""}).status_code == 302
    ada.post(f"{ADMIN}topic/", deletion)
    assert not Topic.objects.exists()


def test_publishing_by_hand_needs_the_permission(ada: Client) -> None:
    page = f"/admin/subscriptions/topic/{Topic.objects.get().pk}/overview/"

    hidden = ada.post(page, {"text": "hello", "attributes": "{}"})
    grant("projects/shop", "roles/pubsub.viewer")
    refused = ada.post(page, {"text": "hello", "attributes": "{}"})
    grant("projects/shop", "roles/pubsub.publisher")

    assert (hidden.status_code, refused.status_code) == (404, 403)
    assert "pubsub.topics.publish" in refused.content.decode()
    assert ada.post(page, {"text": "hello", "attributes": "{}"}).status_code == 302


def test_a_project_is_created_below_a_parent(ada: Client) -> None:
    organization = Organization.objects.create(display_name="Example", number=1)
    fields = {"project_id": "depot", "parent": "organizations/1"}
    assert is_denied(ada.post(f"{ADMIN}project/add/", fields))
    grant("organizations/1", "roles/resourcemanager.projectCreator")

    missing = {**fields, "parent": "organizations/2"}
    assert is_denied(ada.post(f"{ADMIN}project/add/", missing)), "Ada may not learn whether the organization exists"
    root = root_client()
    assert errors(root.post(f"{ADMIN}project/add/", missing))["parent"]
    assert ada.post(f"{ADMIN}project/add/", fields).status_code == 302
    assert Project.objects.get(project_id="depot").parent == organization


def test_the_grant_action_gives_the_service_agent_the_token_creator_role_once(
    ada: Client,
) -> None:
    account = ServiceAccount.objects.get()
    agent = f"serviceAccount:{account.project.service_agent}"
    grants.revoke_role(account.project, role="roles/pubsub.serviceAgent", member=agent)
    page = f"{ADMIN}serviceaccount/"
    click = {"action": "grant_agent", "_selected_action": [account.pk]}

    ada.post(page, click)
    assert "bindings" not in grants.get_policy(account), "Ada may not see the account"
    grant("projects/shop", "roles/iam.serviceAccountViewer")
    ada.post(page, click)
    assert "bindings" not in grants.get_policy(account), "Ada may not grant"
    assert 'icon-no.svg" alt="False"' in ada.get(f"{page}{account.pk}/change/").content.decode()

    grant(account.name, "roles/iam.serviceAccountAdmin")
    for _ in range(2):
        ada.post(page, click)
    assert {"role": "roles/iam.serviceAccountTokenCreator", "members": [agent]} in grants.get_policy(account)[
        "bindings"
    ]
    assert 'icon-yes.svg" alt="True"' in ada.get(f"{page}{account.pk}/change/").content.decode()
