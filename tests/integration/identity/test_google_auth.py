"""Google's own libraries as callers: google-auth with a key file, and the IAM client of google-api-python-client."""

from __future__ import annotations

import base64
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import google.auth.exceptions
import google.auth.transport.requests
import google_auth_httplib2
import httplib2
import orjson
import pytest
import requests
from django.core.management import CommandError, call_command
from django.db import OperationalError
from google.auth import impersonated_credentials, jwt
from google.oauth2 import id_token, service_account
from googleapiclient.discovery import build
from googleapiclient.errors import HttpError
from pytest_django.live_server_helper import LiveServer

from pushhub.common.principals import Principal
from subscriptions.iam import access, grants
from subscriptions.identity import account_keys
from subscriptions.models import Project, ServiceAccount
from subscriptions.models.credentials import ServiceAccountKey
from subscriptions.models.iam import Group
from subscriptions.services import service_accounts
from subscriptions.services.projects import create_project

pytestmark = pytest.mark.any_database

EMAIL = "pusher@shop.iam.gserviceaccount.com"
NAME = f"projects/shop/serviceAccounts/{EMAIL}"
SCOPES = ["https://www.googleapis.com/auth/cloud-platform"]
TOPIC = "projects/shop/topics/orders"


@pytest.fixture
def hub(transactional_db: None, live_server: LiveServer, settings: Any) -> str:
    """Return the URL of a PushHub whose public URL it is, and which refuses callers without a token."""
    settings.ANONYMOUS = ""
    settings.DEVELOPMENT = False
    settings.PUBLIC_URL = settings.ISSUER = live_server.url
    settings.AUDIENCES = [live_server.url]
    create_project(project_id="shop")
    service_accounts.create_service_account(project="shop", request={"accountId": "pusher"})
    grant("roles/pubsub.editor")
    return str(live_server.url)


def grant(role: str, member: str = f"serviceAccount:{EMAIL}", on: Any = None) -> None:
    grants.grant_role(on or Project.objects.get(), role=role, member=member)


@pytest.fixture
def key_file(hub: str, tmp_path: Path) -> str:
    path = tmp_path / "key.json"
    call_command("service_account_key_create", EMAIL, "--out", str(path))
    assert path.stat().st_mode & 0o777 == 0o600
    return str(path)


@pytest.fixture
def transport() -> Iterator[google.auth.transport.requests.Request]:
    with requests.Session() as session:
        yield google.auth.transport.requests.Request(session)


def client(service: str, hub: str, credentials: Any) -> Any:
    """Build a client as everybody builds it; it authenticates itself and names its audience as it does at Google."""
    http = google_auth_httplib2.AuthorizedHttp(credentials, http=httplib2.Http())
    return build(service, "v1", static_discovery=True, client_options={"api_endpoint": hub}, http=http)


def test_a_key_file_works_unmodified(hub: str, key_file: str) -> None:
    credentials = service_account.Credentials.from_service_account_file(key_file, scopes=SCOPES)

    with client("pubsub", hub, credentials) as pubsub:
        assert pubsub.projects().topics().create(name=TOPIC, body={}).execute()["name"] == TOPIC
    assert credentials.token.startswith("pushhub_")
    assert credentials.service_account_email == EMAIL


@pytest.mark.parametrize("audience", ["https://pubsub.googleapis.com/", ""], ids=["Google's", "ours"])
def test_a_self_signed_jwt_works_without_any_exchange(hub: str, key_file: str, audience: str) -> None:
    from_file = service_account.Credentials.from_service_account_file(key_file)
    credentials = from_file.with_always_use_jwt_access(True)
    credentials._create_self_signed_jwt(audience or f"{hub}/")

    with client("pubsub", hub, credentials) as pubsub:
        assert pubsub.projects().topics().list(project="projects/shop").execute() == {}
    assert credentials.token.count(".") == 2


def test_a_self_signed_jwt_with_scopes_works_too(hub: str, key_file: str) -> None:
    from_file = service_account.Credentials.from_service_account_file(key_file, scopes=SCOPES)
    credentials = from_file.with_always_use_jwt_access(True)

    with client("pubsub", hub, credentials) as pubsub:
        assert pubsub.projects().topics().list(project="projects/shop").execute() == {}
    assert jwt.decode(credentials.token, verify=False)["scope"] == SCOPES[0]


def test_the_jwt_credentials_of_google_auth_work(hub: str, key_file: str) -> None:
    credentials = jwt.Credentials.from_service_account_file(key_file, audience="https://pubsub.googleapis.com/")

    with client("pubsub", hub, credentials) as pubsub:
        assert pubsub.projects().topics().list(project="projects/shop").execute() == {}


def test_id_token_credentials_work_and_a_receiver_verifies_what_they_get(
    hub: str, key_file: str, transport: google.auth.transport.requests.Request
) -> None:
    audience = "https://receiver.example"
    credentials = service_account.IDTokenCredentials.from_service_account_file(key_file, target_audience=audience)

    credentials.refresh(transport)

    claims = id_token.verify_token(
        credentials.token, transport, audience=audience, certs_url=f"{hub}/oauth2/v1/certs", clock_skew_in_seconds=0
    )
    assert (claims["email"], claims["iss"]) == (EMAIL, hub)


def test_a_key_that_is_deleted_is_refused_at_the_next_refresh(
    hub: str, key_file: str, transport: google.auth.transport.requests.Request
) -> None:
    credentials = service_account.Credentials.from_service_account_file(key_file, scopes=SCOPES)
    credentials.refresh(transport)

    ServiceAccount.objects.get().keys.all().delete()

    with pytest.raises(google.auth.exceptions.RefreshError, match="invalid_grant: Invalid JWT Signature"):
        credentials.refresh(transport)


def test_the_certificates_of_a_key_file_verify_what_its_key_signs(hub: str, key_file: str) -> None:
    content = orjson.loads(Path(key_file).read_bytes())
    credentials = jwt.Credentials.from_service_account_file(key_file, audience=hub)
    certificates = requests.get(content["client_x509_cert_url"], timeout=10).json()

    assert jwt.decode(credentials.token or _token_of(credentials), certs=certificates)["iss"] == EMAIL


def _token_of(credentials: Any) -> bytes:
    credentials.refresh(None)
    token: bytes = credentials.token
    return token


def test_impersonation_needs_a_permission(
    hub: str, key_file: str, transport: google.auth.transport.requests.Request, monkeypatch: pytest.MonkeyPatch
) -> None:
    service_accounts.create_service_account(project="shop", request={"accountId": "target"})
    target = "target@shop.iam.gserviceaccount.com"
    for name in ("_IAM_ENDPOINT", "_IAM_IDTOKEN_ENDPOINT"):
        path = {"_IAM_ENDPOINT": "generateAccessToken", "_IAM_IDTOKEN_ENDPOINT": "generateIdToken"}[name]
        address = f"{hub}/v1/projects/-/serviceAccounts/{{}}:{path}"
        monkeypatch.setattr(f"google.auth.iam.{name}", address)
    source = service_account.Credentials.from_service_account_file(key_file, scopes=SCOPES)
    credentials = impersonated_credentials.Credentials(
        source_credentials=source, target_principal=target, target_scopes=SCOPES, lifetime=300
    )
    with pytest.raises(google.auth.exceptions.RefreshError, match="getAccessToken"):
        credentials.refresh(transport)

    grant("roles/iam.serviceAccountTokenCreator", on=ServiceAccount.objects.get(email=target))
    grant("roles/pubsub.viewer", f"serviceAccount:{target}")

    with client("pubsub", hub, credentials) as pubsub:
        assert pubsub.projects().topics().list(project="projects/shop").execute() == {}
    tokens = impersonated_credentials.IDTokenCredentials(credentials, target_audience="https://x.example")
    tokens.refresh(transport)
    assert jwt.decode(tokens.token, verify=False)["aud"] == "https://x.example"


@pytest.fixture
def accounts(hub: str, key_file: str) -> Iterator[Any]:
    """Return IAM's own client for an administrator of the project."""
    grant("roles/owner")
    credentials = service_account.Credentials.from_service_account_file(key_file, scopes=SCOPES)
    with client("iam", hub, credentials) as iam:
        yield iam.projects().serviceAccounts()


def test_the_iam_client_creates_keys_that_work(hub: str, accounts: Any) -> None:
    key = accounts.keys().create(name=NAME, body={}).execute()
    content = orjson.loads(base64.b64decode(key["privateKeyData"]))

    assert key["name"] == f"{NAME}/keys/{content['private_key_id']}"
    assert (key["keyType"], key["keyOrigin"]) == ("USER_MANAGED", "GOOGLE_PROVIDED")
    assert key["privateKeyType"] == "TYPE_GOOGLE_CREDENTIALS_FILE"
    assert content == {
        "type": "service_account",
        "project_id": "shop",
        "private_key_id": content["private_key_id"],
        "private_key": content["private_key"],
        "client_email": EMAIL,
        "client_id": ServiceAccount.objects.get().unique_id,
        "auth_uri": f"{hub}/o/oauth2/auth",
        "token_uri": f"{hub}/token",
        "auth_provider_x509_cert_url": f"{hub}/oauth2/v1/certs",
        "client_x509_cert_url": f"{hub}/robot/v1/metadata/x509/pusher%40shop.iam.gserviceaccount.com",
        "universe_domain": "googleapis.com",
    }
    credentials = service_account.Credentials.from_service_account_info(content, scopes=SCOPES)
    with client("pubsub", hub, credentials) as pubsub:
        assert pubsub.projects().topics().list(project="projects/shop").execute() == {}


def test_the_life_of_a_key(accounts: Any) -> None:
    keys = accounts.keys()
    created = keys.create(name=NAME, body={"keyAlgorithm": "KEY_ALG_RSA_2048"}).execute()
    name = created["name"]
    shown = {field: value for field, value in created.items() if not field.startswith("privateKey")}

    assert keys.get(name=name).execute() == shown
    assert shown in keys.list(name=NAME).execute()["keys"]
    assert keys.list(name=NAME, keyTypes="SYSTEM_MANAGED").execute() == {}
    public = keys.get(name=name, publicKeyType="TYPE_X509_PEM_FILE").execute()["publicKeyData"]
    assert base64.b64decode(public).startswith(b"-----BEGIN CERTIFICATE-----")
    assert keys.disable(name=name, body={}).execute() == {}
    assert keys.get(name=name).execute()["disabled"] is True
    assert keys.enable(name=name, body={}).execute() == {}
    assert keys.get(name=name).execute() == shown
    assert keys.delete(name=name).execute() == {}
    with pytest.raises(HttpError) as gone:
        keys.get(name=name).execute()
    assert gone.value.status_code == 404


def test_a_callers_own_public_key_is_uploaded(hub: str, accounts: Any) -> None:
    theirs = accounts.keys().create(name=NAME, body={}).execute()
    content = orjson.loads(base64.b64decode(theirs["privateKeyData"]))
    public = accounts.keys().get(name=theirs["name"], publicKeyType="TYPE_X509_PEM_FILE").execute()["publicKeyData"]
    accounts.keys().delete(name=theirs["name"]).execute()

    uploaded = accounts.keys().upload(name=NAME, body={"publicKeyData": public}).execute()

    assert (uploaded["name"], uploaded["keyOrigin"]) == (theirs["name"], "USER_PROVIDED")
    credentials = service_account.Credentials.from_service_account_info(content, scopes=SCOPES)
    with client("pubsub", hub, credentials) as pubsub:
        assert pubsub.projects().topics().list(project="projects/shop").execute() == {}


@pytest.mark.parametrize("project", ["shop", "-"])
def test_an_account_that_is_deleted_is_undeleted_as_it_was(accounts: Any, project: str) -> None:
    deleted = accounts.create(name="projects/shop", body={"accountId": "fading"}).execute()
    key = accounts.keys().create(name=deleted["name"], body={}).execute()
    accounts.delete(name=deleted["name"]).execute()
    assert [account["email"] for account in accounts.list(name="projects/shop").execute()["accounts"]] == [EMAIL]

    name = f"projects/{project}/serviceAccounts/{deleted['uniqueId']}"
    answer = accounts.undelete(name=name, body={}).execute()

    assert answer == {"restoredAccount": deleted}
    assert accounts.get(name=deleted["name"]).execute() == deleted
    assert accounts.keys().list(name=deleted["name"]).execute()["keys"][0]["name"] == key["name"]


def test_the_roles_of_an_account_do_not_pass_to_its_successor_and_return_with_an_undelete(accounts: Any) -> None:
    account = accounts.create(name="projects/shop", body={"accountId": "fading"}).execute()
    member = f"serviceAccount:{account['email']}"
    grant("roles/pubsub.viewer", member)

    def holds() -> bool:
        return access.allowed(Principal(member), "pubsub.topics.list", Project.objects.get())

    assert holds()
    accounts.delete(name=account["name"]).execute()
    successor = accounts.create(name="projects/shop", body={"accountId": "fading"}).execute()
    assert not holds()
    accounts.delete(name=successor["name"]).execute()
    accounts.undelete(name=f"projects/shop/serviceAccounts/{account['uniqueId']}", body={}).execute()
    assert holds()


def test_a_group_to_which_a_deleted_account_was_added_again_has_it_once_after_the_undelete(accounts: Any) -> None:
    account = accounts.create(name="projects/shop", body={"accountId": "fading"}).execute()
    member = f"serviceAccount:{account['email']}"
    group = Group.objects.create(email="pushers@example.com")
    group.members.create(member=member)
    accounts.delete(name=account["name"]).execute()
    group.members.create(member=member)
    accounts.undelete(name=f"projects/shop/serviceAccounts/{account['uniqueId']}", body={}).execute()
    assert [str(each) for each in group.members.all()] == [member]


def test_an_account_is_not_undeleted_over_its_successor(accounts: Any) -> None:
    deleted = accounts.create(name="projects/shop", body={"accountId": "fading"}).execute()
    accounts.delete(name=deleted["name"]).execute()
    accounts.create(name="projects/shop", body={"accountId": "fading"}).execute()

    with pytest.raises(HttpError) as conflict:
        accounts.undelete(name=f"projects/shop/serviceAccounts/{deleted['uniqueId']}", body={}).execute()

    assert conflict.value.status_code == 409


def test_a_caller_without_the_permission_cannot_create_a_key(hub: str, key_file: str) -> None:
    credentials = service_account.Credentials.from_service_account_file(key_file, scopes=SCOPES)
    with client("iam", hub, credentials) as iam, pytest.raises(HttpError, match=r"iam\.serviceAccountKeys\.create"):
        iam.projects().serviceAccounts().keys().create(name=NAME, body={}).execute()


def test_a_key_file_is_not_written_over_another_nor_left_behind(
    hub: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "key.json"
    with pytest.raises(CommandError):
        call_command("service_account_key_create", "nobody@shop.iam.gserviceaccount.com", "--out", str(path))
    assert not path.exists()
    with monkeypatch.context() as full, pytest.raises(CommandError, match=f"^{path}: No space left on device$"):
        full.setattr("os.fsync", Mock(side_effect=OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))))
        call_command("service_account_key_create", EMAIL, "--out", str(path))
    assert not path.exists() and not ServiceAccountKey.objects.exists()
    monkeypatch.setattr(account_keys, "create_service_account_key", Mock(side_effect=OperationalError("down")))
    with pytest.raises(CommandError):
        call_command("service_account_key_create", EMAIL, "--out", str(path))
    assert not path.exists()
    path.write_text("mine")
    with pytest.raises(CommandError):
        call_command("service_account_key_create", EMAIL, "--out", str(path))
    assert path.read_text() == "mine"
