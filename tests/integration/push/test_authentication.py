"""Who may have pushes signed as an account, and who signs (docs/spec-delivery.md#push-token-preconditions)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.core.management import call_command

from deliveries.models import Delivery
from deliveries.publish.service import publish_message
from deliveries.rules.payload import NewMessage
from subscriptions.iam import grants
from subscriptions.iam.tree import get_resource
from subscriptions.identity import tokens
from subscriptions.models import Folder, Organization, Project
from subscriptions.selectors import get_topic
from tests.ports import wait_for
from tests.receiver import Receiver
from tests.restapi import Answer, Api
from tests.workers import Worker

pytestmark = pytest.mark.any_database

ADA = "user:ada@example.com"
ORDERS = "projects/shop/topics/orders"
EMAIL = "pusher@shop.iam.gserviceaccount.com"
ACCOUNT = f"projects/shop/serviceAccounts/{EMAIL}"
SIGNED = {"pushEndpoint": "https://shop.example/push", "oidcToken": {"serviceAccountEmail": EMAIL}}
USER, AGENT, CREATOR = (
    "roles/iam.serviceAccountUser",
    "roles/pubsub.serviceAgent",
    "roles/iam.serviceAccountTokenCreator",
)

CALLS: dict[str, Callable[[Api], Answer]] = {
    "create": lambda api: api.put("subscriptions/new", {"topic": ORDERS, "pushConfig": SIGNED}),
    "patch": lambda api: api.patch(
        "subscriptions/audit", {"subscription": {"pushConfig": SIGNED}, "updateMask": "push_config"}
    ),
    "ModifyPushConfig": lambda api: api.post("subscriptions/audit:modifyPushConfig", {"pushConfig": SIGNED}),
}


@pytest.fixture
def shop(api: Api) -> Api:
    """Create a topic, a pull subscription and a service account in a project of an organization."""
    api.create("topics/orders")
    api.create("subscriptions/audit", {"topic": ORDERS})
    assert api.post("serviceAccounts", {"accountId": "pusher"}).status == 200
    organization = Organization.objects.create(display_name="Example", number=1)
    folder = Folder.objects.create(display_name="Shops", organization=organization, number=2)
    Project.objects.filter(project_id="shop").update(folder=folder)
    return api


@pytest.fixture
def ada(shop: Api) -> Api:
    """Return a caller who may do everything with Pub/Sub and nothing with service accounts."""
    grant("projects/shop", "roles/pubsub.admin", ADA)
    caller = Api()
    caller.sign_in("ada@example.com")
    return caller


def grant(resource: str, role: str, member: str) -> None:
    grants.grant_role(get_resource(resource), role=role, member=member)


def revoke(resource: str, role: str, member: str) -> None:
    grants.revoke_role(get_resource(resource), role=role, member=member)


def agent() -> str:
    return f"serviceAccount:{Project.objects.get(project_id='shop').service_agent}"


def minted() -> bool:
    try:
        tokens.mint_id_token(email=EMAIL, audience="x")
    except tokens.TokenDenied as denied:
        assert denied.reason == "token_denied"
        return False
    return True


@pytest.mark.parametrize("call", CALLS)
def test_this_service_account_must_be_in_the_same_project_as_the_push_subscription(shop: Api, call: str) -> None:
    assert shop.post("/v1/projects/depot/serviceAccounts", {"accountId": "pusher"}).status == 200
    before = shop.get("subscriptions/audit").body
    elsewhere = {**SIGNED, "oidcToken": {"serviceAccountEmail": "pusher@depot.iam.gserviceaccount.com"}}
    bodies: dict[str, Callable[[], Answer]] = {
        "create": lambda: shop.put("subscriptions/new", {"topic": ORDERS, "pushConfig": elsewhere}),
        "patch": lambda: shop.patch(
            "subscriptions/audit", {"subscription": {"pushConfig": elsewhere}, "updateMask": "pushConfig"}
        ),
        "ModifyPushConfig": lambda: shop.post("subscriptions/audit:modifyPushConfig", {"pushConfig": elsewhere}),
    }

    answer = bodies[call]()

    assert (answer.status, answer.error["status"]) == (400, "INVALID_ARGUMENT")
    assert answer.error["message"] == (
        "You have passed an invalid argument to the service (argument=PushConfig::oidc_token::service_account_email)."
    )
    assert shop.get("subscriptions/audit").body == before
    assert shop.get("subscriptions/new").status == 404


@pytest.mark.parametrize("token", [{}, {"audience": "x"}, {"serviceAccountEmail": "none@shop.iam.gserviceaccount.com"}])
def test_service_account_required(shop: Api, token: dict[str, str]) -> None:
    answer = shop.put("subscriptions/new", {"topic": ORDERS, "pushConfig": {**SIGNED, "oidcToken": token}})

    assert answer.status == 400
    assert "PushConfig::oidc_token::service_account_email" in answer.error["message"]


@pytest.mark.parametrize("call", CALLS)
def test_the_principal_who_is_creating_or_modifying_the_push_subscription_must_have_the_act_as_permission(
    ada: Api, call: str
) -> None:
    before = ada.get("subscriptions/audit").body

    refused = CALLS[call](ada)

    assert (refused.status, refused.error["status"]) == (403, "PERMISSION_DENIED")
    assert "iam.serviceAccounts.actAs" in refused.error["message"]
    assert EMAIL in refused.error["message"]
    assert ada.get("subscriptions/audit").body == before
    assert ada.get("subscriptions/new").status == 404


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("level", [ACCOUNT, "projects/shop", "folders/2", "organizations/1"])
def test_you_can_allow_the_caller_at_the_project_folder_or_organization_level_or_on_the_service_account(
    ada: Api, call: str, level: str
) -> None:
    grant(level, USER, ADA)

    assert CALLS[call](ada).status == 200


def test_modifying_anything_of_a_signed_push_subscription_needs_act_as(shop: Api, ada: Api) -> None:
    assert CALLS["ModifyPushConfig"](shop).status == 200
    labels = {"subscription": {"labels": {"a": "b"}}, "updateMask": "labels"}
    refused = ada.patch("subscriptions/audit", labels)
    pulled = ada.post("subscriptions/audit:modifyPushConfig", {"pushConfig": {}})

    assert refused.status == 403
    assert pulled.status == 403, "a pull subscription could push elsewhere next"
    assert shop.post("subscriptions/audit:modifyPushConfig", {"pushConfig": {}}).status == 200
    assert ada.patch("subscriptions/audit", labels).status == 200


def test_without_an_oidc_token_no_permission_on_accounts_is_needed(ada: Api) -> None:
    body = {"topic": ORDERS, "pushConfig": {"pushEndpoint": "https://shop.example/push"}}

    assert ada.put("subscriptions/new", body).status == 200


def test_if_your_project_was_created_after_april_8_2021_you_dont_need_to_grant_this_role(shop: Api) -> None:
    assert minted()


@pytest.mark.parametrize("level", [ACCOUNT, "projects/shop", "folders/2", "organizations/1"])
def test_if_your_project_was_created_on_or_before_april_8_2021_you_must_grant_token_creator(
    db: None, level: str
) -> None:
    organization = Organization.objects.create(display_name="Example", number=1)
    Folder.objects.create(display_name="Shops", organization=organization, number=2)
    call_command("project_create", "shop", "--parent", "folders/2", "--created", "2021-04-08")
    assert Api().post("serviceAccounts", {"accountId": "pusher"}).status == 200
    before = minted()

    grant(level, CREATOR, agent())

    assert not before
    assert minted()


@pytest.mark.parametrize("level", [ACCOUNT, "projects/shop", "folders/2", "organizations/1"])
def test_this_signing_service_account_must_have_get_open_id_token_on_the_account_or_on_any_ancestor(
    shop: Api, level: str
) -> None:
    role = shop.post(
        "roles", {"roleId": "signer", "role": {"includedPermissions": ["iam.serviceAccounts.getOpenIdToken"]}}
    )
    revoke("projects/shop", AGENT, agent())
    without = minted()

    grant(level, role.body["name"] if level in (ACCOUNT, "projects/shop") else CREATOR, agent())

    assert not without
    assert minted()


def test_the_agent_of_another_project_signs_nothing_here(shop: Api) -> None:
    shop.create("/v1/projects/depot/topics/any")
    revoke("projects/shop", AGENT, agent())

    grant("projects/shop", CREATOR, f"serviceAccount:{Project.objects.get(project_id='depot').service_agent}")

    assert not minted()


def test_configuring_works_without_the_agents_grant_as_it_shows_in_deliveries(shop: Api) -> None:
    revoke("projects/shop", AGENT, agent())

    assert all(call(shop).status == 200 for call in CALLS.values())


@pytest.mark.django_db(transaction=True)
def test_a_revoked_grant_stops_pushes_as_nacks_with_reason_token_denied_until_it_is_granted_again(
    redis_url: str, receiver: Receiver
) -> None:
    api = Api()
    api.create("topics/orders")
    assert api.post("serviceAccounts", {"accountId": "pusher"}).status == 200
    signed: dict[str, Any] = {**SIGNED, "pushEndpoint": receiver.url}
    api.create("subscriptions/push", {"topic": ORDERS, "pushConfig": signed})

    with Worker(redis_url):
        # Given pushes that are signed with a token the worker keeps for an hour
        publish()
        wait_for(lambda: not Delivery.objects.exists(), what="the first ack")
        # When the agent loses its role
        revoke("projects/shop", AGENT, agent())
        wait_for(is_refused, what="a nack for want of a token")
        # Then no more pushes arrive
        arrived = len(receiver.requests)
        attempts = Delivery.objects.order_by("pk").last()
        assert attempts is not None
        wait_for(lambda: attempts_of(attempts.pk) >= attempts.attempts + 2, what="two more nacks")
        assert len(receiver.requests) == arrived
        # And with the role back, all messages arrive
        grant("projects/shop", AGENT, agent())
        wait_for(lambda: not Delivery.objects.exists(), what="the last ack")

    assert all(request.headers["authorization"].startswith("Bearer ey") for request in receiver.requests)


def publish() -> None:
    publish_message(topic=get_topic(name=ORDERS), messages=[NewMessage(b"x", {})])


def is_refused() -> bool:
    """Return whether a push was refused; until then publish again, as the worker caches permissions for seconds."""
    if Delivery.objects.filter(last_result="token_denied").exists():
        return True
    if not Delivery.objects.exists():
        publish()
    return False


def attempts_of(pk: int) -> int:
    delivery = Delivery.objects.filter(pk=pk).first()
    return delivery.attempts if delivery is not None else 0
