"""Service accounts in the form of IAM v1."""

from __future__ import annotations

import base64
from ssl import DER_cert_to_PEM_cert
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding
from django.core.management import CommandError, call_command

from subscriptions.identity.account_keys import NEVER
from subscriptions.identity.pairs import certificate_of
from subscriptions.models import Project, ServiceAccount
from tests.restapi import Api

EMAIL = "pusher@shop.iam.gserviceaccount.com"


@pytest.fixture
def account(api: Api) -> dict[str, Any]:
    body = {"accountId": "pusher", "serviceAccount": {"displayName": "Pusher", "description": "signs"}}
    answer = api.post("serviceAccounts", body)
    assert answer.status == 200, answer
    account: dict[str, Any] = answer.body
    return account


def test_a_new_account_has_an_email_and_a_number(account: dict[str, Any]) -> None:
    unique_id = account["uniqueId"]

    assert len(unique_id) == 21
    assert unique_id.isdecimal()
    assert account == {
        "name": f"projects/shop/serviceAccounts/{EMAIL}",
        "projectId": "shop",
        "uniqueId": unique_id,
        "email": EMAIL,
        "displayName": "Pusher",
        "description": "signs",
        "oauth2ClientId": unique_id,
    }


@pytest.mark.parametrize("project", ["shop", "-"])
@pytest.mark.parametrize("key", ["email", "uniqueId"])
def test_an_account_is_found_by_email_and_by_number_with_and_without_its_project(
    api: Api, account: dict[str, Any], project: str, key: str
) -> None:
    assert api.get(f"/v1/projects/{project}/serviceAccounts/{account[key]}").body == account


def test_an_account_is_not_found_under_another_project(api: Api, account: dict[str, Any]) -> None:
    api.create("/v1/projects/other/topics/any")

    assert api.get(f"/v1/projects/other/serviceAccounts/{EMAIL}").status == 404


def test_accounts_are_listed_in_pages(api: Api) -> None:
    for account_id in ("cc-cccc", "aa-aaaa", "bb-bbbb"):
        assert api.post("serviceAccounts", {"accountId": account_id}).status == 200

    first = api.get("serviceAccounts?pageSize=2").body
    second = api.get(f"serviceAccounts?pageToken={first['nextPageToken']}").body

    assert [account["email"][:2] for account in first["accounts"] + second["accounts"]] == ["aa", "bb", "cc"]
    assert "nextPageToken" not in second


def test_an_id_that_is_taken_is_a_conflict(api: Api, account: dict[str, Any]) -> None:
    answer = api.post("serviceAccounts", {"accountId": "pusher"})

    assert (answer.status, answer.error["status"]) == (409, "ALREADY_EXISTS")


@pytest.mark.any_database
@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "accountId"),
        ({"accountId": "short"}, "accountId"),
        ({"accountId": "Capitals"}, "accountId"),
        ({"accountId": "ends-with-"}, "accountId"),
        ({"accountId": "x" * 31}, "accountId"),
        ({"accountId": "pusher\n"}, "accountId"),
        ({"accountId": 123456}, "accountId"),
        ({"accountId": "pusher", "serviceAccount": {"displayName": "x" * 101}}, "serviceAccount.displayName"),
        ({"accountId": "pusher", "serviceAccount": {"description": "é" * 129}}, "serviceAccount.description"),
        ({"accountId": "pusher", "colour": 1}, "colour"),
    ],
)
def test_a_bad_request_is_refused_by_name_and_nothing_is_stored(api: Api, body: Any, field: str) -> None:
    answer = api.post("serviceAccounts", body)

    assert (answer.status, answer.fields) == (400, [field])
    assert not ServiceAccount.objects.exists()
    assert not Project.objects.exists()


def test_an_account_is_disabled_and_enabled(api: Api, account: dict[str, Any]) -> None:
    assert api.post(f"serviceAccounts/{EMAIL}:disable").body == {}
    assert api.get(f"serviceAccounts/{EMAIL}").body == {**account, "disabled": True}
    assert api.post(f"serviceAccounts/{EMAIL}:enable").body == {}
    assert api.get(f"serviceAccounts/{EMAIL}").body == account


def test_an_account_is_patched_by_mask(api: Api, account: dict[str, Any]) -> None:
    changes = {"displayName": "New", "description": "not named by the mask"}

    patched = api.patch(f"serviceAccounts/{EMAIL}", {"serviceAccount": changes, "updateMask": "display_name"})
    refused = api.patch(f"serviceAccounts/{EMAIL}", {"serviceAccount": {}, "updateMask": "email"})

    assert patched.body == {**account, "displayName": "New"}
    assert (refused.status, refused.fields) == (400, ["updateMask"])


def test_a_deleted_account_may_be_created_again_as_another_account(api: Api, account: dict[str, Any]) -> None:
    assert api.delete(f"serviceAccounts/{EMAIL}").body == {}
    assert api.get(f"serviceAccounts/{EMAIL}").status == 404

    again = api.post("serviceAccounts", {"accountId": "pusher"}).body

    assert again["email"] == EMAIL
    assert again["uniqueId"] != account["uniqueId"]


def test_an_operator_creates_projects_if_they_are_not_created_on_first_use(
    api: Api, settings: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    settings.DEVELOPMENT = False
    api.sign_in("root@example.com", is_superuser=True)
    assert api.post("serviceAccounts", {"accountId": "pusher"}).status == 404

    call_command("project_create", "shop")

    project = Project.objects.get()
    agent = f"service-{project.number}@gcp-sa-pubsub.iam.gserviceaccount.com"
    assert capsys.readouterr().out == f"shop {project.number} {agent}\n"
    assert api.post("serviceAccounts", {"accountId": "pusher"}).status == 200
    for bad in ("shop", "a b"):
        with pytest.raises(CommandError):
            call_command("project_create", bad)


#: The object identifiers of RSA keys, and of a kind of keys that nobody knows.
RSA_KEYS, NO_KEYS = bytes.fromhex("2a864886f70d010101"), bytes.fromhex("2a864886f70d010163")


@pytest.mark.parametrize("what", ["no text", "no certificate", "unknown kind of key"])
def test_a_public_key_that_is_of_no_use_is_refused(api: Api, account: dict[str, Any], what: str) -> None:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    certificate = x509.load_pem_x509_certificate(certificate_of(key, "1", until=NEVER).encode())
    other = certificate.public_bytes(Encoding.DER).replace(RSA_KEYS, NO_KEYS)
    texts = {"no text": b"\0", "no certificate": b"x", "unknown kind of key": DER_cert_to_PEM_cert(other).encode()}
    upload = {"publicKeyData": base64.b64encode(texts[what]).decode()}
    answer = api.post(f"serviceAccounts/{EMAIL}/keys:upload", upload)
    assert (answer.status, answer.fields) == (400, ["publicKeyData"])
