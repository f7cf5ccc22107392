"""Policies and roles through Google's own generated clients, as documented `gcloud` commands set them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import httplib2
import pytest
from googleapiclient.discovery import build
from googleapiclient.errors import HttpError
from pytest_django.live_server_helper import LiveServer

from subscriptions.identity import tokens
from subscriptions.models import Folder, Organization, Project
from tests.restapi import Api

pytestmark = pytest.mark.any_database

EMAIL = "pusher@shop.iam.gserviceaccount.com"
ACCOUNT = f"projects/shop/serviceAccounts/{EMAIL}"
CREATOR = "roles/iam.serviceAccountTokenCreator"

Client = Callable[..., Any]


@pytest.fixture
def client(transactional_db: None, redis_url: str, live_server: LiveServer) -> Iterator[Client]:
    """Return a function that builds the client of a service and version."""
    api = Api()
    api.create("topics/orders")
    assert api.post("serviceAccounts", {"accountId": "pusher"}).status == 200
    with ExitStack() as stack:

        def make(service: str, version: str = "v1") -> Any:
            http = httplib2.Http()
            stack.callback(http.close)
            options = {"api_endpoint": live_server.url}
            return stack.enter_context(
                build(service, version, static_discovery=True, client_options=options, http=http)
            )

        yield make


def add_binding(resources: Any, name: str, role: str, member: str, *, has_body: bool = True) -> Any:
    """Do what `gcloud ... add-iam-policy-binding` does: read, modify, write."""
    body = {"body": {}} if has_body else {}
    policy = resources.getIamPolicy(resource=name, **body).execute()
    policy.setdefault("bindings", []).append({"role": role, "members": [member]})
    return resources.setIamPolicy(resource=name, body={"policy": policy}).execute()


def bound(policy: Any, role: str) -> list[str]:
    return [member for binding in policy["bindings"] if binding["role"] == role for member in binding["members"]]


def test_grant_the_google_managed_service_account_the_token_creator_role(client: Client) -> None:
    """`gcloud projects add-iam-policy-binding`, as documented (docs/spec-delivery.md#push-token-preconditions)."""
    project = Project.objects.get()
    project.created_at = project.created_at.replace(year=2021, month=4, day=8)
    project.save()
    projects = client("cloudresourcemanager").projects()
    agent = f"serviceAccount:{project.service_agent}"
    policy = projects.getIamPolicy(resource="shop", body={"options": {"requestedPolicyVersion": 3}}).execute()
    policy["bindings"] = [binding for binding in policy["bindings"] if binding["role"] != "roles/pubsub.serviceAgent"]
    projects.setIamPolicy(resource="shop", body={"policy": policy}).execute()
    with pytest.raises(tokens.TokenDenied):
        tokens.mint_id_token(email=EMAIL, audience="x")

    answer = add_binding(projects, "shop", CREATOR, agent)

    assert bound(answer, CREATOR) == [agent]
    assert tokens.mint_id_token(email=EMAIL, audience="x").token


def test_policies_of_service_accounts_with_the_iam_client(client: Client) -> None:
    accounts = client("iam").projects().serviceAccounts()

    answer = add_binding(accounts, ACCOUNT, "roles/iam.serviceAccountUser", "user:Ada@example.com", has_body=False)

    assert bound(answer, "roles/iam.serviceAccountUser") == ["user:ada@example.com"]
    tested = accounts.testIamPermissions(resource=ACCOUNT, body={"permissions": ["iam.serviceAccounts.actAs"]})
    assert tested.execute() == {"permissions": ["iam.serviceAccounts.actAs"]}


def test_policies_of_topics_with_the_pubsub_client(client: Client) -> None:
    topics = client("pubsub").projects().topics()
    name = "projects/shop/topics/orders"

    first = add_binding(topics, name, "roles/pubsub.publisher", f"serviceAccount:{EMAIL}", has_body=False)
    topics.setIamPolicy(resource=name, body={"policy": {"etag": first["etag"]}}).execute()
    with pytest.raises(HttpError) as conflict:
        topics.setIamPolicy(resource=name, body={"policy": {"etag": first["etag"]}}).execute()

    assert conflict.value.status_code == 409
    assert "concurrent policy changes" in conflict.value.reason
    assert topics.getIamPolicy(resource=name, options_requestedPolicyVersion=3).execute().get("bindings") is None


def test_policies_of_folders_and_organizations(client: Client) -> None:
    organization = Organization.objects.create(display_name="Example", number=1)
    Folder.objects.create(display_name="Shops", organization=organization, number=2)
    for version, collection, name in (
        ("v1", "organizations", "organizations/1"),
        ("v3", "organizations", "organizations/1"),
        ("v2", "folders", "folders/2"),
        ("v3", "folders", "folders/2"),
    ):
        resources = getattr(client("cloudresourcemanager", version), collection)()
        answer = add_binding(resources, name, "roles/viewer", f"user:{version}@example.com")
        assert f"user:{version}@example.com" in bound(answer, "roles/viewer")


def test_custom_roles_with_the_iam_client(client: Client) -> None:
    iam = client("iam")
    roles = iam.projects().roles()
    body = {
        "roleId": "reader",
        "role": {"title": "Reader", "includedPermissions": ["pubsub.topics.get"], "stage": "GA"},
    }

    role = roles.create(parent="projects/shop", body=body).execute()
    name = role["name"]
    patched = roles.patch(name=name, updateMask="title", body={"title": "Topic reader"}).execute()

    assert patched["title"] == "Topic reader"
    assert patched["includedPermissions"] == ["pubsub.topics.get"]
    listed = roles.list(parent="projects/shop", view="FULL").execute()
    assert listed["roles"] == [roles.get(name=name).execute()]
    assert roles.delete(name=name).execute()["deleted"] is True
    assert "deleted" not in roles.undelete(name=name, body={}).execute()
    assert iam.roles().get(name="roles/pubsub.publisher").execute()["includedPermissions"] == ["pubsub.topics.publish"]
    with pytest.raises(HttpError) as missing:
        roles.get(name="projects/shop/roles/none").execute()
    assert missing.value.status_code == 404
