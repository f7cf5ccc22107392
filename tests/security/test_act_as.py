"""A caller without actAs on a subscription's account can neither remove its token nor redirect its pushes."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from django.test import Client
from google.protobuf.json_format import ParseDict
from google.pubsub_v1.types import pubsub
from pytest_django.live_server_helper import LiveServer

from subscriptions.cli.main import main
from subscriptions.iam import grants
from subscriptions.iam.tree import get_resource
from subscriptions.identity import access_tokens
from subscriptions.models import Project, Subscription
from subscriptions.models.iam import Perimeter
from subscriptions.services import service_accounts
from subscriptions.services.perimeters import PROHIBITED
from subscriptions.services.projects import create_project
from subscriptions.services.subscriptions import create_subscription
from subscriptions.services.topics import create_topic
from tests.grpcservers import GrpcServer
from tests.integration.admin.test_resources import errors, form
from tests.ports import wait_for
from tests.restapi import Api, root_client, staff_client

MALLORY = "user:mallory@example.com"
NAME = "projects/shop/subscriptions/signed"
TOPIC = "projects/shop/topics/orders"
PUSHER = "pusher@shop.iam.gserviceaccount.com"
MINE = "mallorys@shop.iam.gserviceaccount.com"
ENDPOINT, ELSEWHERE = "https://shop.example/push", "https://mallory.example/push"
SIGNED = {"pushEndpoint": ENDPOINT, "oidcToken": {"serviceAccountEmail": PUSHER}}

#: What a caller without actAs may try: an UpdateSubscription with a mask, or a ModifyPushConfig without one.
UPDATES: dict[str, tuple[str, dict[str, Any]]] = {
    "redirect and strip": ("", {"pushConfig": {"pushEndpoint": ELSEWHERE}}),
    "stop": ("", {"pushConfig": {}}),
    "redirect": ("", {"pushConfig": {**SIGNED, "pushEndpoint": ELSEWHERE}}),
    "other account": ("", {"pushConfig": {**SIGNED, "oidcToken": {"serviceAccountEmail": MINE}}}),
    "other audience": ("", {"pushConfig": {**SIGNED, "oidcToken": {"serviceAccountEmail": PUSHER, "audience": "x"}}}),
    "patch whole": ("pushConfig", {"pushConfig": {"pushEndpoint": ELSEWHERE}}),
    "patch empty": ("pushConfig", {}),
    "patch endpoint": ("pushConfig.pushEndpoint", {"pushConfig": {"pushEndpoint": ELSEWHERE}}),
    "patch token": ("pushConfig.oidcToken", {}),
    "patch account": (
        "pushConfig.oidcToken.serviceAccountEmail",
        {"pushConfig": {"oidcToken": {"serviceAccountEmail": MINE}}},
    ),
    "patch audience": ("pushConfig.oidcToken.audience", {"pushConfig": {"oidcToken": {"audience": "x"}}}),
    "patch wrapper": ("pushConfig.noWrapper", {"pushConfig": {"noWrapper": {}}}),
    "patch attributes": ("pushConfig.attributes", {"pushConfig": {"attributes": {"x-pushhub-rate": "1"}}}),
    "patch labels": ("labels", {"labels": {"a": "b"}}),
    "patch two": ("labels,pushConfig", {"labels": {"a": "b"}, "pushConfig": {"pushEndpoint": ELSEWHERE}}),
}
pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.any_database]


def grant(name: str, role: str, member: str = MALLORY) -> None:
    grants.grant_role(get_resource(name), role=role, member=member)


def stored() -> dict[str, Any]:
    return Subscription.objects.values().get()


@pytest.fixture
def token(redis_url: str) -> str:
    """Return a token of Mallory, who administers Pub/Sub and may act as `mallorys`; `signed` pushes as `pusher`."""
    create_project(project_id="shop")
    create_topic(name=TOPIC, topic={})
    for account_id in ("pusher", "mallorys"):
        service_accounts.create_service_account(project="shop", request={"accountId": account_id})
    create_subscription(name=NAME, subscription={"topic": TOPIC, "pushConfig": SIGNED})
    grant("projects/shop", "roles/pubsub.admin")
    grant(f"projects/shop/serviceAccounts/{MINE}", "roles/iam.serviceAccountUser")
    return access_tokens.create_access_token(member=MALLORY).token


def over_rest(token: str, mask: str, update: dict[str, Any]) -> tuple[str, str]:
    headers = {"Authorization": f"Bearer {token}"}
    if mask:
        answer = Api().patch("subscriptions/signed", {"subscription": update, "updateMask": mask}, **headers)
    else:
        answer = Api().post("subscriptions/signed:modifyPushConfig", update, **headers)
    return ("OK", "") if answer.status == 200 else (answer.error["status"], answer.error["message"])


def over_grpc(address: str, token: str, mask: str, update: dict[str, Any]) -> tuple[str, str]:
    request: Any
    if mask:
        method = "UpdateSubscription"
        body = {"subscription": {**update, "name": NAME}, "updateMask": mask}
        request = ParseDict(body, pubsub.UpdateSubscriptionRequest.pb()())
    else:
        method = "ModifyPushConfig"
        request = ParseDict({**update, "subscription": NAME}, pubsub.ModifyPushConfigRequest.pb()())
    with grpc.insecure_channel(address) as channel:
        call = channel.unary_unary(f"/google.pubsub.v1.Subscriber/{method}")
        try:
            call(request.SerializeToString(), timeout=30, metadata=(("authorization", f"Bearer {token}"),))
        except grpc.RpcError as error:
            return error.code().name, error.details() or ""
    return "OK", ""


@pytest.mark.parametrize("update", UPDATES)
def test_rest_refuses_each_update_without_act_as_on_the_present_account_and_accepts_it_with(
    token: str, update: str
) -> None:
    before = stored()

    status, message = over_rest(token, *UPDATES[update])

    assert status == "PERMISSION_DENIED"
    assert "iam.serviceAccounts.actAs" in message
    assert PUSHER in message
    assert stored() == before
    grant(f"projects/shop/serviceAccounts/{PUSHER}", "roles/iam.serviceAccountUser")
    assert over_rest(token, *UPDATES[update]) == ("OK", "")


def test_grpc_refuses_each_update_without_act_as_on_the_present_account(server: GrpcServer, token: str) -> None:
    before = stored()

    for update, call in UPDATES.items():
        status, message = over_grpc(server.address, token, *call)
        assert (status, PUSHER in message) == ("PERMISSION_DENIED", True), update
        assert stored() == before, update

    grant(f"projects/shop/serviceAccounts/{PUSHER}", "roles/iam.serviceAccountUser")
    call = UPDATES["redirect and strip"]
    wait_for(lambda: over_grpc(server.address, token, *call) == ("OK", ""), what="the grant to count in the server")


def test_act_as_on_the_present_account_alone_does_not_put_another_in_its_place(token: str) -> None:
    grants.revoke_role(
        get_resource(f"projects/shop/serviceAccounts/{MINE}"), role="roles/iam.serviceAccountUser", member=MALLORY
    )
    grant(f"projects/shop/serviceAccounts/{PUSHER}", "roles/iam.serviceAccountUser")

    for update in ("other account", "patch account"):
        status, message = over_rest(token, *UPDATES[update])
        assert (status, MINE in message) == ("PERMISSION_DENIED", True)


def test_an_account_that_is_deleted_meanwhile_needs_act_as_on_the_project(token: str) -> None:
    """The account may be undeleted, and then the pushes would be signed again."""
    service_accounts.delete_service_account(name=f"projects/shop/serviceAccounts/{PUSHER}")

    assert over_rest(token, *UPDATES["redirect and strip"])[0] == "PERMISSION_DENIED"
    grant("projects/shop", "roles/iam.serviceAccountUser")
    assert over_rest(token, *UPDATES["redirect and strip"]) == ("OK", "")


@pytest.fixture
def staff(token: str) -> Client:
    """Return a console client of Mallory, who may open every page."""
    return staff_client("mallory")


def test_the_console_refuses_each_update_without_act_as_on_the_present_account(staff: Client) -> None:
    pk = Subscription.objects.get().pk
    before = stored()

    for endpoint in (ELSEWHERE, ""):
        fields = form(push_endpoint=endpoint, service_account="", audience="")
        page = staff.post(f"/admin/subscriptions/subscription/{pk}/change/", fields)
        assert "iam.serviceAccounts.actAs" in str(errors(page))
    chosen = {"action": "pause", "_selected_action": [pk]}
    paused = staff.post("/admin/subscriptions/subscription/", chosen, follow=True)

    assert "iam.serviceAccounts.actAs" in paused.content.decode()
    assert stored() == before


def test_the_command_line_refuses_each_update_without_act_as_on_the_present_account(
    token: str, live_server: LiveServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PUSHHUB_URL", live_server.url)
    monkeypatch.setenv("PUSHHUB_PROJECT", "shop")
    monkeypatch.setenv("PUSHHUB_TOKEN", token)
    before = stored()
    for line in (
        f"pubsub subscriptions modify-push-config signed --push-endpoint={ELSEWHERE}",
        f"pubsub subscriptions update signed --push-endpoint={ELSEWHERE}",
    ):
        assert main(line.split()) == 1
        assert "iam.serviceAccounts.actAs" in capsys.readouterr().err
    assert stored() == before


# Push subscriptions of a project that a perimeter protects


@pytest.fixture
def owner(token: str) -> str:
    """Return a token of Mallory, who now owns the project; a perimeter protects it."""
    grant("projects/shop", "roles/owner")
    Perimeter.objects.create(title="crown jewels").projects.add(Project.objects.get())
    return token


@pytest.mark.parametrize("update", UPDATES)
def test_rest_updates_nothing_of_a_push_subscription_in_a_perimeter(owner: str, update: str) -> None:
    before = stored()

    assert over_rest(owner, *UPDATES[update]) == ("PERMISSION_DENIED", PROHIBITED)
    assert stored() == before


def test_grpc_updates_nothing_of_a_push_subscription_in_a_perimeter(server: GrpcServer, owner: str) -> None:
    before = stored()

    for update, call in UPDATES.items():
        assert over_grpc(server.address, owner, *call) == ("PERMISSION_DENIED", PROHIBITED), update
    assert stored() == before


def test_the_console_updates_nothing_of_a_push_subscription_in_a_perimeter_for_a_superuser(owner: str) -> None:
    client = root_client()
    pk = Subscription.objects.get().pk
    before = stored()

    page = client.post(f"/admin/subscriptions/subscription/{pk}/change/", form(service_account="", audience=""))
    chosen = {"action": "pause", "_selected_action": [pk]}
    paused = client.post("/admin/subscriptions/subscription/", chosen, follow=True)

    assert PROHIBITED in str(errors(page)).replace('\\"', "")
    assert "Request is prohibited by organization" in paused.content.decode()
    assert stored() == before
