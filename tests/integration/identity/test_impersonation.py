"""IAM Credentials: tokens of an account for callers who may impersonate it (test_google_auth.py tests the clients)."""

from __future__ import annotations

from typing import Any

import jwt
import pytest

from pushhub.common.errors import PermissionDenied
from pushhub.common.principals import Principal
from subscriptions.identity import impersonation
from subscriptions.identity.scopes import CLOUD_PLATFORM
from subscriptions.models.credentials import AccessToken
from subscriptions.services import service_accounts
from tests.restapi import Api

EMAIL = "pusher@shop.iam.gserviceaccount.com"
NAME = f"projects/-/serviceAccounts/{EMAIL}"
ADA = Principal("user:ada@example.com")


@pytest.fixture
def account(api: Api) -> dict[str, Any]:
    account: dict[str, Any] = api.post("serviceAccounts", {"accountId": "pusher"}).body
    return account


def test_the_service_itself_asks_for_the_permission(account: dict[str, Any]) -> None:
    with pytest.raises(PermissionDenied, match="getOpenIdToken"):
        impersonation.generate_id_token(name=NAME, request={"audience": "x"}, caller=ADA)
    with pytest.raises(PermissionDenied, match="getAccessToken"):
        impersonation.generate_access_token(name=NAME, request={"scope": [CLOUD_PLATFORM]}, caller=ADA)
    assert not AccessToken.objects.exists()


def claims_of(api: Api, **request: Any) -> dict[str, Any]:
    token = api.post(f"/v1/{NAME}:generateIdToken", {"audience": "https://x.example", **request}).body["token"]
    claims: dict[str, Any] = jwt.decode(token, options={"verify_signature": False})
    return claims


def test_an_id_token_has_the_email_if_it_is_asked_for(api: Api, account: dict[str, Any]) -> None:
    bare, full = claims_of(api), claims_of(api, includeEmail=True, useEmailAzp=True)

    assert "email" not in bare
    assert (bare["aud"], bare["sub"], bare["azp"]) == ("https://x.example", account["uniqueId"], account["uniqueId"])
    assert (full["email"], full["email_verified"], full["azp"]) == (EMAIL, True, EMAIL)


def test_tokeninfo_accepts_a_token_without_an_email(api: Api, account: dict[str, Any]) -> None:
    token = api.post(f"/v1/{NAME}:generateIdToken", {"audience": "x"}).body["token"]

    assert api.get(f"/tokeninfo?id_token={token}").status == 200


def test_an_access_token_has_the_lifetime_that_is_asked_for(api: Api, account: dict[str, Any]) -> None:
    request = {"scope": [CLOUD_PLATFORM], "lifetime": "300s"}
    answer = api.post(f"/v1/{NAME}:generateAccessToken", request)

    row = AccessToken.objects.get()
    assert (row.expires_at - row.created_at).total_seconds() == pytest.approx(300, abs=1)
    assert answer.body["expireTime"] == f"{row.expires_at:%Y-%m-%dT%H:%M:%SZ}"
    caller = {"Authorization": f"Bearer {answer.body['accessToken']}"}
    assert "pubsub.topics.list" in api.get("topics", **caller).error["message"]


@pytest.mark.parametrize(
    ("verb", "body", "status"),
    [
        ("generateIdToken", {}, 400),
        ("generateIdToken", {"audience": ""}, 400),
        ("generateIdToken", {"audience": "x" * 2049}, 400),
        ("generateIdToken", {"audience": "x", "colour": 1}, 400),
        ("generateIdToken", {"audience": "x", "delegates": [NAME]}, 501),
        ("generateIdToken", {"audience": "x", "organizationNumberIncluded": True}, 501),
        ("generateAccessToken", {}, 400),
        ("generateAccessToken", {"scope": []}, 400),
        ("generateAccessToken", {"scope": ["a b"]}, 200),
        ("generateAccessToken", {"scope": ['"']}, 400),
        ("generateAccessToken", {"scope": [CLOUD_PLATFORM], "lifetime": "0s"}, 400),
        ("generateAccessToken", {"scope": [CLOUD_PLATFORM], "lifetime": "43201s"}, 400),
        ("generateAccessToken", {"scope": [CLOUD_PLATFORM], "lifetime": "43200s"}, 200),
    ],
)
def test_requests(api: Api, account: dict[str, Any], verb: str, body: dict[str, Any], status: int) -> None:
    assert api.post(f"/v1/{NAME}:{verb}", body).status == status


@pytest.mark.parametrize(("change", "status"), [("disable", 400), ("delete", 404)])
def test_a_deleted_or_disabled_account_gets_no_token(
    api: Api, account: dict[str, Any], change: str, status: int
) -> None:
    getattr(service_accounts, f"{change}_service_account")(name=account["name"])

    assert api.post(f"/v1/{NAME}:generateIdToken", {"audience": "x"}).status == status
    assert api.post(f"/v1/{NAME}:generateAccessToken", {"scope": [CLOUD_PLATFORM]}).status == status
