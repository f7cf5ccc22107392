"""The console's pages of policies and credentials, and the button that lets the service agent sign."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from pushhub.common.clock import utcnow
from subscriptions.iam import grants
from subscriptions.iam.tree import get_resource
from subscriptions.identity import access_tokens, agents
from subscriptions.models import ServiceAccount, Subscription
from subscriptions.models.credentials import AccessToken, ServiceAccountKey
from subscriptions.models.iam import RoleResource
from tests.integration.admin.test_resources import errors, form
from tests.restapi import Api, staff_client

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("api")]

TOPIC = "projects/shop/topics/orders"
ADA = "user:ada@example.com"
ADMIN = "/admin/subscriptions/"
PAGE = f"{ADMIN}policy/of/{TOPIC}/"
PUBLISHER = "roles/pubsub.publisher"


@pytest.fixture
def api(redis_url: str) -> Api:
    api = Api()
    api.create("topics/orders")
    api.post("serviceAccounts", {"accountId": "pusher"})
    return api


@pytest.fixture
def ada(api: Api) -> Client:
    """A member of staff with all of Django's permissions, to whom no policy has granted anything."""
    return staff_client("ada")


def bindings() -> list[Any]:
    bindings: list[Any] = grants.get_policy(get_resource(TOPIC)).get("bindings", [])
    return bindings


def revoke_agent_role(account: ServiceAccount) -> None:
    """Revoke the role that the service agent got when the project was created."""
    member = agents.service_agent(account.project).member
    grants.revoke_role(account.project, role="roles/pubsub.serviceAgent", member=member)


def test_a_role_is_granted_and_revoked(client: Client) -> None:
    assert client.post(PAGE, {"grant": "1", "member": ADA, "role": PUBLISHER}).status_code == 302
    assert bindings() == [{"role": PUBLISHER, "members": [ADA]}]
    assert ADA in client.get(PAGE).content.decode()
    assert client.post(PAGE, {"revoke": f"{PUBLISHER} {ADA}"}).status_code == 302
    assert bindings() == []
    assert "roles/iam.serviceAccountUser" not in client.get(PAGE).content.decode(), (
        "the role cannot be granted on a topic"
    )


def test_members_that_match_nobody_are_marked(client: Client, ada: Client, api: Api) -> None:
    nobody = {
        "group:readers@example.com",
        "principalSet://goog/group/readers@example.com",
        "projectViewer:other",
        "serviceAccount:gone@developer.gserviceaccount.com",
        "serviceAccount:pusher@other.iam.gserviceaccount.com",
    }
    somebody = {ADA, "allUsers", "domain:example.com", "serviceAccount:pusher@shop.iam.gserviceaccount.com"}
    for member in nobody | somebody:
        grants.grant_role(get_resource(TOPIC), role="roles/pubsub.viewer", member=member)
    grants.grant_role(get_resource("projects/shop"), role="roles/iam.securityReviewer", member=ADA)

    def marked(client: Client) -> set[str]:
        page = client.get(PAGE)
        members = {member for _, member, matches_nobody in page.context["levels"][0]["rows"] if matches_nobody}
        assert page.content.decode().count("matches nobody here") == len(members)
        return members

    assert marked(client) == nobody
    # Not every reader may learn whether a group or another project's account exists.
    assert marked(ada) == nobody - {
        "group:readers@example.com",
        "serviceAccount:pusher@other.iam.gserviceaccount.com",
    }


def test_inherited_bindings_are_shown(client: Client) -> None:
    grants.grant_role(get_resource("projects/shop"), role="roles/pubsub.viewer", member=ADA)
    page = client.get(PAGE).content.decode()
    assert "Inherited from projects/shop" in page
    assert ADA in page


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"member": "ada", "role": PUBLISHER}, "member"),
        ({"member": "", "role": PUBLISHER}, "member"),
        ({"member": ADA, "role": "roles/iam.serviceAccountUser"}, "role"),
        ({"member": ADA, "role": "roles/nonsense"}, "role"),
    ],
)
def test_an_invalid_grant_is_an_error_at_its_field(client: Client, fields: dict[str, str], place: str) -> None:
    response = client.post(PAGE, {"grant": "1", **fields})
    assert response.status_code == 200
    assert list(response.context["form"].errors) == [place]
    assert bindings() == []


def test_the_page_checks_the_policies(ada: Client) -> None:
    assert ada.get(PAGE).status_code == 403
    grants.grant_role(get_resource(TOPIC), role="roles/pubsub.viewer", member=ADA)
    assert ada.get(PAGE).status_code == 403, "a viewer may not read policies"
    grants.grant_role(get_resource("projects/shop"), role="roles/iam.securityReviewer", member=ADA)
    assert ada.get(PAGE).status_code == 200
    before = bindings()
    refused = ada.post(PAGE, {"grant": "1", "member": ADA, "role": "roles/pubsub.admin"})
    assert "pubsub.topics.setIamPolicy" in str(refused.context["form"].errors)
    refused = ada.post(PAGE, {"revoke": f"roles/pubsub.viewer {ADA}"})
    assert "pubsub.topics.setIamPolicy" in refused.content.decode()
    assert bindings() == before


def test_inherited_bindings_and_roles_are_shown_only_to_those_who_may_read_them(ada: Client) -> None:
    project = get_resource("projects/shop")
    RoleResource.objects.create(project=project, role_id="packer", title="Packs parcels", permissions=[])
    grants.grant_role(project, role="roles/viewer", member="user:bob@example.com")
    grants.grant_role(get_resource(TOPIC), role="roles/pubsub.admin", member=ADA)

    page = ada.get(PAGE).content.decode()
    assert "bob@example.com" not in page
    assert "Packs parcels" not in page
    assert "you may not read those policies" in page

    grants.grant_role(project, role="roles/viewer", member=ADA)
    page = ada.get(PAGE).content.decode()
    assert "bob@example.com" in page
    assert "Packs parcels" in page
    assert "you may not read those policies" not in page


def test_the_page_of_a_resource_is_found_by_its_name(client: Client) -> None:
    for text in (f" {TOPIC}/", "projects/shop/topics/\r\norders\n"):
        assert client.get(f"{ADMIN}policy/of/", {"resource": text})["Location"] == PAGE, text
    assert client.get(f"{ADMIN}policy/of/", {"resource": "nonsense"})["Location"] == f"{ADMIN}policy/"
    assert client.get(f"{ADMIN}policy/of/projects/shop/topics/none/").status_code == 404
    for listed in ("topic", "project", "serviceaccount"):
        assert "/policy/of/projects/shop" in client.get(f"{ADMIN}{listed}/").content.decode()


def test_the_list_names_the_resources(client: Client) -> None:
    grants.grant_role(get_resource(TOPIC), role=PUBLISHER, member=ADA)
    page = client.get(f"{ADMIN}policy/").content.decode()
    assert PAGE in page
    assert f"{PUBLISHER}: {ADA}" in page


def test_a_configuration_says_what_is_wrong_with_the_account(client: Client) -> None:
    assert client.post(f"{ADMIN}subscription/add/", form()).status_code == 302
    change = f"{ADMIN}subscription/{Subscription.objects.get().pk}/change/"
    account = ServiceAccount.objects.get()
    ServiceAccount.objects.update(disabled=True)
    page = client.get(change).content.decode()
    assert "The service account is disabled" in page and "/grant-agent/" not in page
    account.delete()
    page = client.get(change).content.decode()
    assert "The service account does not exist" in page and "/grant-agent/" not in page


def test_the_form_says_whether_the_service_agent_may_sign_for_an_account_and_a_button_grants_it(client: Client) -> None:
    account = ServiceAccount.objects.get()
    add = f"{ADMIN}subscription/add/"
    assert "may not sign" not in client.get(add).content.decode()
    revoke_agent_role(account)
    assert "pusher@shop.iam.gserviceaccount.com (disabled, or the service agent may not sign" in (
        client.get(add).content.decode()
    )

    response = client.post(add, form(), follow=True)
    assert "token_denied" in response.content.decode(), "saving shows a warning"
    row = Subscription.objects.get()
    change = f"{ADMIN}subscription/{row.pk}/change/"
    button = f"{ADMIN}subscription/{row.pk}/grant-agent/"
    assert button in client.get(change).content.decode()

    assert client.get(button).status_code == 405, "a link must not grant a role"
    assert client.post(button).status_code == 302

    assert agents.can_agent_mint(account)
    page = client.get(change).content.decode()
    assert button not in page
    assert "The service agent may sign for the account." in page


def test_the_button_checks_the_policies(client: Client, ada: Client) -> None:
    account = ServiceAccount.objects.get()
    client.post(f"{ADMIN}subscription/add/", form())
    revoke_agent_role(account)
    ada.post(f"{ADMIN}subscription/{Subscription.objects.get().pk}/grant-agent/")
    assert not agents.can_agent_mint(account)


def test_a_deleted_account_cannot_be_chosen(client: Client, api: Api) -> None:
    api.delete("serviceAccounts/pusher@shop.iam.gserviceaccount.com")
    assert errors(client.post(f"{ADMIN}subscription/add/", form()))["service_account"]
    assert "deleted:" not in client.get(f"{ADMIN}subscription/add/").content.decode()


def test_tokens_are_listed_without_their_secret_and_revoked(client: Client, ada: Client) -> None:
    issued = access_tokens.create_access_token(member=ADA)
    access_tokens.create_access_token(member="user:bob@example.com")
    page = client.get(f"{ADMIN}accesstoken/").content.decode()
    assert ADA in page
    assert "user:bob@example.com" in page
    assert issued.token not in page
    assert issued.row.digest not in page

    adas_page = ada.get(f"{ADMIN}accesstoken/").content.decode()
    assert ADA in adas_page
    assert "user:bob@example.com" not in adas_page, "Ada sees only her own tokens"
    token_ids = list(AccessToken.objects.values_list("pk", flat=True))
    ada.post(f"{ADMIN}accesstoken/", {"action": "revoke", "_selected_action": token_ids})
    assert [row.member for row in AccessToken.objects.all()] == ["user:bob@example.com"]


def test_staff_see_their_own_tokens_whatever_the_case_of_their_address(client: Client) -> None:
    access_tokens.create_access_token(member=ADA)
    assert ADA in staff_client("Ada").get(f"{ADMIN}accesstoken/").content.decode()


def test_account_keys_are_disabled_and_deleted_only_with_the_permission(client: Client, ada: Client, api: Api) -> None:
    api.post("serviceAccounts/pusher@shop.iam.gserviceaccount.com/keys")
    key = ServiceAccountKey.objects.get()
    page = f"{ADMIN}serviceaccountkey/"

    def act(client: Client, action: str) -> None:
        client.post(page, {"action": action, "_selected_action": [key.pk]})

    for action in ("disable", "delete_keys", "delete_selected"):
        act(ada, action)
        assert not ServiceAccountKey.objects.get().disabled
    act(client, "disable")
    assert ServiceAccountKey.objects.get().disabled
    act(client, "enable")
    assert not ServiceAccountKey.objects.get().disabled
    act(client, "delete_keys")
    assert not ServiceAccountKey.objects.exists()


def test_the_list_of_keys_says_which_have_expired(client: Client, api: Api) -> None:
    api.post("serviceAccounts/pusher@shop.iam.gserviceaccount.com/keys")
    expired = '<td class="field-has_expired"><img src="/static/admin/img/icon-yes.svg"'
    assert expired not in client.get(f"{ADMIN}serviceaccountkey/").content.decode()
    ServiceAccountKey.objects.update(expires_at=utcnow())
    assert expired in client.get(f"{ADMIN}serviceaccountkey/").content.decode()
