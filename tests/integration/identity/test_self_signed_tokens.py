"""JSON Web Tokens that a service account signs itself, in place of access tokens (docs/spec-access.md#credentials)."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from pushhub.common.errors import PermissionDenied, Unauthenticated
from subscriptions.identity import audiences, recent, tokens
from subscriptions.identity.callers import caller_from_authorization
from tests.integration.identity import keyfiles
from tests.integration.identity.keyfiles import (
    EMAIL,
    FORGERIES,
    OUT_OF_USE,
    SCOPE,
    assertion_claims,
    bearer_claims,
    signed,
)

pytestmark = [pytest.mark.django_db, pytest.mark.any_database]


@pytest.fixture
def key() -> dict[str, Any]:
    return keyfiles.key_file()


def caller_of(token: str) -> str:
    return caller_from_authorization(f"Bearer {token}").member


def is_refused(token: str) -> bool:
    try:
        caller_of(token)
    except Unauthenticated:
        return True
    return False


@pytest.mark.parametrize("kid", ["", None], ids=["that is named", "that is not named"])
def test_the_bearer_of_a_jwt_is_the_account_whose_key_has_signed_it(key: dict[str, Any], kid: str | None) -> None:
    token = signed(key, bearer_claims(), kid=kid)

    assert caller_of(token) == f"serviceAccount:{EMAIL}"
    assert caller_of(token) == f"serviceAccount:{EMAIL}", "it is made to be used again"


def test_rest_authenticates_the_bearer_and_checks_the_policies(key: dict[str, Any]) -> None:
    headers = {"Authorization": f"Bearer {signed(key, bearer_claims())}"}

    assert Client().get("/v1/projects/shop/topics", headers=headers).status_code == 403


def test_scopes_may_take_the_place_of_the_audience_as_in_nodes_client(key: dict[str, Any]) -> None:
    scopes = f"https://www.googleapis.com/auth/pubsub {SCOPE}"

    assert caller_of(signed(key, bearer_claims(aud=None, scope=scopes))) == f"serviceAccount:{EMAIL}"


@pytest.mark.parametrize("scope", [None, "", "openid email", [SCOPE], SCOPE + '"'])
def test_scopes_that_do_not_cover_the_api_are_refused(key: dict[str, Any], scope: Any) -> None:
    with pytest.raises(PermissionDenied, match="insufficient authentication scopes"):
        caller_of(signed(key, bearer_claims(aud=None, scope=scope)))


OWN = ["https://hub.example", "http://127.0.0.1:8000", "https://proxy.example/hub"]


@pytest.mark.parametrize(
    "audience",
    [
        "https://hub.example",
        "https://hub.example/",
        "http://127.0.0.1:8000/google.pubsub.v1.Publisher",
        "https://proxy.example/hub",
        "https://proxy.example/hub/google.pubsub.v1.Publisher",
        "https://pubsub.googleapis.com/",
        "https://pubsub.googleapis.com/google.pubsub.v1.Subscriber",
        "https://us-east1-pubsub.googleapis.com/",
        "https://iam.googleapis.com/",
        "https://iamcredentials.googleapis.com/",
        "https://cloudresourcemanager.googleapis.com/",
    ],
)
def test_an_audience_of_pushhub(audience: str) -> None:
    assert audiences.is_service(audience, own=OWN)


@pytest.mark.parametrize(
    "audience",
    [
        None,
        "",
        "/",
        7,
        ["https://hub.example"],
        "https://hub.example.evil.example/",
        "https://hub.example:444/",
        "http://hub.example/",
        "https://hub.example/token",
        "https://proxy.example/",
        "https://proxy.example/hubs",
        "https://proxy.example/hub/token",
        "https://hub.example/?a=b",
        "https://hub.example/#a",
        "https://user@hub.example/",
        "https://storage.googleapis.com/",
        "https://evil.example/https://pubsub.googleapis.com/",
        "https://pubsub.googleapis.com.evil.example/",
        "https://oauth2.googleapis.com/token",
        "http://pubsub.googleapis.com/",
        "https://pubsub.googleapis.com/\n",
        "https://[bad/",
        "https://hub.example/" + "x" * 1000,
    ],
)
def test_a_foreign_audience(audience: object) -> None:
    assert not audiences.is_service(audience, own=OWN)


def test_a_jwt_for_another_audience_is_refused_with_any_scopes(key: dict[str, Any]) -> None:
    assert is_refused(signed(key, bearer_claims(aud="https://storage.googleapis.com/", scope=SCOPE)))


def test_the_settings_may_name_more_audiences(key: dict[str, Any], settings: Any) -> None:
    token = signed(key, bearer_claims(aud="https://hub.example/"))
    assert is_refused(token)

    settings.AUDIENCES = ["https://hub.example"]

    assert caller_of(token) == f"serviceAccount:{EMAIL}"


@pytest.mark.parametrize("kind", FORGERIES)
def test_a_forged_jwt_is_refused(key: dict[str, Any], kind: str) -> None:
    assert is_refused(keyfiles.forged(key, bearer_claims(), kind))


@pytest.mark.parametrize(("why", "times"), keyfiles.BAD_TIMES)
def test_a_jwt_with_bad_times_is_refused(key: dict[str, Any], why: str, times: dict[str, int]) -> None:
    assert is_refused(signed(key, bearer_claims(**keyfiles.at(times))))


@pytest.mark.parametrize("claims", [*keyfiles.BAD_CLAIMS, {"sub": None}, {"sub": "ceo@example.com"}], ids=str)
def test_a_jwt_without_sense_is_refused(key: dict[str, Any], claims: dict[str, Any]) -> None:
    assert is_refused(signed(key, bearer_claims() | claims))


@pytest.mark.parametrize("what", OUT_OF_USE)
def test_a_deleted_or_disabled_key_or_account_is_no_longer_accepted(key: dict[str, Any], what: str) -> None:
    token = signed(key, bearer_claims())
    assert caller_of(token)

    keyfiles.take_out_of_use(key, what)
    recent.recent_callers.clear()  # only for an expired key, which the cache keeps for a second

    assert is_refused(token)


def test_tokens_of_one_kind_do_not_pass_for_another(key: dict[str, Any]) -> None:
    push_token = tokens.mint_id_token(email=EMAIL, audience="https://pubsub.googleapis.com/").token

    assert is_refused(signed(key, assertion_claims())), "an assertion is for /token"
    assert is_refused(signed(key, assertion_claims(sub=EMAIL))), "an assertion is for /token"
    assert is_refused(push_token), "a push token proves the pusher to the endpoint, not the endpoint to us"
