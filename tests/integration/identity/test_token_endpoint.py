"""/token (RFC 7523): what a service account's assertion is exchanged for, and what is refused."""

from __future__ import annotations

import logging
from typing import Any
from urllib.parse import urlencode

import jwt
import orjson
import pytest
from django.test import Client

from pushhub.common.clock import utcnow
from pushhub.common.errors import PushHubError
from subscriptions.identity import exchange
from subscriptions.identity.callers import caller_from_authorization
from subscriptions.models.credentials import AccessToken, UsedAssertion
from tests.integration.identity import keyfiles
from tests.integration.identity.keyfiles import EMAIL, FORGERIES, GRANT, OUT_OF_USE, assertion_claims, signed
from tests.restapi import Answer

pytestmark = [pytest.mark.django_db, pytest.mark.any_database]
FORM = "application/x-www-form-urlencoded"


@pytest.fixture
def key() -> dict[str, Any]:
    return keyfiles.key_file()


def posted(path: str, body: bytes | str, **headers: str) -> Answer:
    response = Client().post(path, body, content_type=FORM, headers=headers)
    assert response.headers["Cache-Control"] == "no-store"
    return Answer(response.status_code, orjson.loads(response.content))


def exchanged(assertion: str, **form: str) -> Answer:
    return posted("/token", urlencode({"grant_type": GRANT, "assertion": assertion, **form}))


def refusal(answer: Answer) -> str:
    """Return the error code, and check that the refusal left no token behind."""
    assert answer.status == 400, answer
    assert set(answer.body) == {"error", "error_description"}
    assert not AccessToken.objects.exists()
    word: str = answer.body["error"]
    return word


def test_an_assertion_is_exchanged_for_an_access_token_of_its_account(key: dict[str, Any]) -> None:
    answer = exchanged(signed(key, assertion_claims()))

    assert answer.status == 200
    assert (answer.body["token_type"], answer.body["expires_in"]) == ("Bearer", 3599)
    assert caller_from_authorization(f"Bearer {answer.body['access_token']}").member == f"serviceAccount:{EMAIL}"


def test_an_assertion_with_a_target_audience_is_exchanged_for_an_id_token(key: dict[str, Any]) -> None:
    target = "https://run.example/a?b=c"
    answer = exchanged(signed(key, assertion_claims(scope=None, target_audience=target)))

    claims = jwt.decode(answer.body["id_token"], options={"verify_signature": False})
    assert (claims["aud"], claims["email"], claims["sub"]) == (target, EMAIL, key["client_id"])
    assert not AccessToken.objects.exists()


def test_a_key_need_not_be_named_as_nodes_client_does_not(key: dict[str, Any]) -> None:
    other = keyfiles.another_key()

    for signing_key in (key, other):
        assert exchanged(signed(signing_key, assertion_claims(), kid=None)).status == 200


@pytest.mark.parametrize(
    "audience", sorted([*exchange.audiences.GOOGLE_TOKEN_ADDRESSES, "http://127.0.0.1:8000/token"])
)
def test_the_audience_is_this_endpoint_under_our_name_or_googles(key: dict[str, Any], audience: str) -> None:
    assert exchanged(signed(key, assertion_claims(aud=audience))).status == 200


@pytest.mark.parametrize(
    "audience",
    [
        None,
        "",
        "https://evil.example/token",
        "https://pubsub.googleapis.com/",
        "http://127.0.0.1:8000",
        "http://127.0.0.1:8000/token/",
        "https://oauth2.googleapis.com/token ",
        ["https://oauth2.googleapis.com/token"],
        {"a": 1},
    ],
)
def test_an_assertion_for_another_audience_is_refused(key: dict[str, Any], audience: Any) -> None:
    assert refusal(exchanged(signed(key, assertion_claims(aud=audience)))) == "invalid_grant"


@pytest.mark.parametrize("kind", FORGERIES)
def test_a_forged_assertion_is_refused(key: dict[str, Any], kind: str) -> None:
    answer = exchanged(keyfiles.forged(key, assertion_claims(), kind))

    assert refusal(answer) == "invalid_grant"
    words = "Invalid JWT Signature."
    if kind.startswith("alg none") or kind.endswith(("shared secret", "algorithm")):
        words = "Invalid JWT: Only RS256 is supported."
    elif kind == "a critical header":
        words = "Bad Request: the assertion is no JSON Web Token."
    assert answer.body["error_description"] == words


@pytest.mark.parametrize(("why", "times"), keyfiles.BAD_TIMES)
def test_an_assertion_with_bad_times_is_refused(key: dict[str, Any], why: str, times: dict[str, int]) -> None:
    assert refusal(exchanged(signed(key, assertion_claims(**keyfiles.at(times))))) == "invalid_grant"


def test_a_callers_clock_may_be_a_minute_ahead(key: dict[str, Any]) -> None:
    times = keyfiles.at({"iat": 50, "exp": 3650})

    assert exchanged(signed(key, assertion_claims(**times))).status == 200


@pytest.mark.parametrize("claims", keyfiles.BAD_CLAIMS, ids=lambda claims: str(claims)[:40])
def test_an_assertion_without_sense_is_refused(key: dict[str, Any], claims: dict[str, Any]) -> None:
    assert refusal(exchanged(signed(key, assertion_claims() | claims))) == "invalid_grant"


@pytest.mark.parametrize(
    "assertion", ["x", "a.b.c", "..", "é.é.é", "." * 10_000, "eyJhbGciOiJSUzI1NiJ9." + "A" * 9000 + ".x"]
)
def test_malformed_jwts_are_refused(key: dict[str, Any], assertion: str) -> None:
    assert refusal(exchanged(assertion)) == "invalid_grant"


def test_a_header_that_is_nested_deeply_is_refused(key: dict[str, Any]) -> None:
    part = keyfiles.base64.urlsafe_b64encode(b"[" * 3000).decode().rstrip("=")

    assert refusal(exchanged(f"{part}.{part}.x")) == "invalid_grant"


def test_an_account_cannot_assert_for_another_account(key: dict[str, Any]) -> None:
    thief = keyfiles.key_file("thief-account")

    assert refusal(exchanged(signed(thief, assertion_claims()))) == "invalid_grant"
    assert refusal(exchanged(signed(thief, assertion_claims(), kid=key["private_key_id"]))) == "invalid_grant"
    assert refusal(exchanged(signed(thief, assertion_claims(), kid=None))) == "invalid_grant"


def test_the_subject_of_an_assertion_impersonates_nobody(key: dict[str, Any]) -> None:
    assert refusal(exchanged(signed(key, assertion_claims(sub="ceo@example.com")))) == "unauthorized_client"


@pytest.mark.parametrize("what", OUT_OF_USE)
def test_a_deleted_or_disabled_key_or_account_gets_no_token_and_loses_its_tokens(
    key: dict[str, Any], what: str
) -> None:
    token = exchanged(signed(key, assertion_claims())).body["access_token"]
    assertion = signed(key, assertion_claims(jti="1"))

    keyfiles.take_out_of_use(key, what)

    answer = exchanged(assertion)
    assert (answer.status, answer.body["error"]) == (400, "invalid_grant")
    if what != "key expired":  # a token of an expired key stays valid for its hour
        with pytest.raises(PushHubError):
            caller_from_authorization(f"Bearer {token}")


def test_an_assertion_with_an_id_is_exchanged_once(key: dict[str, Any]) -> None:
    assert exchanged(signed(key, assertion_claims(jti="one"))).status == 200
    AccessToken.objects.all().delete()

    again = exchanged(signed(key, assertion_claims(jti="one", iat=assertion_claims()["iat"] - 1)))

    assert refusal(again) == "invalid_grant"
    assert exchanged(signed(key, assertion_claims(jti="two"))).status == 200


def test_an_id_that_another_account_has_used_is_not_used(key: dict[str, Any]) -> None:
    other = keyfiles.key_file("other-account")
    theirs = assertion_claims(iss=other["client_email"], jti="one")

    assert exchanged(signed(other, theirs)).status == 200
    assert exchanged(signed(key, assertion_claims(jti="one"))).status == 200


def test_an_assertion_without_an_id_may_be_repeated_within_a_minute_only(key: dict[str, Any]) -> None:
    assertion = signed(key, assertion_claims())
    assert exchanged(assertion).status == 200
    assert exchanged(assertion).status == 200
    AccessToken.objects.all().delete()

    UsedAssertion.objects.update(first_used_at=utcnow() - exchange.timedelta(seconds=61))

    assert refusal(exchanged(assertion)) == "invalid_grant"


@pytest.mark.parametrize(
    "claims",
    [
        {"scope": None},
        {"scope": ""},
        {"scope": 'a"b'},
        {"scope": ["a"]},
        {"scope": "x " * 51},
        {"target_audience": ""},
        {"target_audience": ["a"]},
        {"target_audience": "x" * 2049},
    ],
    ids=lambda claims: str(claims)[:30],
)
def test_without_scopes_or_an_audience_nothing_is_granted(key: dict[str, Any], claims: dict[str, Any]) -> None:
    if claims.get("scope") == "x " * 51:
        claims = {"scope": " ".join(f"scope-{number}" for number in range(51))}
    assert refusal(exchanged(signed(key, assertion_claims(**{"scope": None} | claims)))) in ("invalid_scope",)


def test_a_token_whose_scopes_do_not_cover_the_api_is_refused(key: dict[str, Any]) -> None:
    token = exchanged(signed(key, assertion_claims(scope="openid email"))).body["access_token"]

    response = Client().get("/v1/projects/shop/topics", headers={"Authorization": f"Bearer {token}"})

    assert response.status_code == 403
    assert response.json()["error"]["details"][0]["reason"] == "ACCESS_TOKEN_SCOPE_INSUFFICIENT"


@pytest.mark.parametrize(
    ("body", "word"),
    [
        ("", "unsupported_grant_type"),
        ("grant_type=refresh_token&refresh_token=x", "unsupported_grant_type"),
        (f"grant_type={GRANT}", "invalid_request"),
        (f"grant_type={GRANT}&assertion=", "invalid_request"),
        (f"grant_type={GRANT}&assertion=a&assertion=b", "invalid_request"),
        ("&".join(f"a{number}=b" for number in range(21)), "invalid_request"),
        ('{"grant_type": "x"}', "invalid_request"),
        (b"\xff=\xfe", "invalid_request"),
        ("a=" + "x" * 33_000, "invalid_request"),
    ],
)
def test_a_bad_form_is_refused_with_an_oauth_error(body: bytes | str, word: str) -> None:
    assert refusal(posted("/token", body)) == word


def test_only_post_is_a_token_request() -> None:
    response = Client().get("/token")

    assert (response.status_code, response.json()["error"]) == (404, "invalid_request")


@pytest.mark.parametrize("token", ["good", "unknown"])
def test_a_bearer_can_revoke_a_token(key: dict[str, Any], token: str) -> None:
    good = exchanged(signed(key, assertion_claims())).body["access_token"]

    assert posted("/revoke", urlencode({"token": good if token == "good" else "pushhub_x"})).body == {}

    assert AccessToken.objects.exists() == (token == "unknown")


def test_a_revocation_without_a_token_is_refused() -> None:
    assert refusal(posted("/revoke", "")) == "invalid_request"


def test_no_refused_assertion_is_in_a_log_or_an_answer(key: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    refused = [keyfiles.forged(key, assertion_claims(), kind) for kind in FORGERIES]
    refused += [signed(key, assertion_claims(**keyfiles.at(times))) for _, times in keyfiles.BAD_TIMES]
    refused.append(signed(key, assertion_claims(aud="x")))

    for assertion in refused:
        answer = exchanged(assertion)
        bearer = Client().get("/v1/projects/shop/topics", headers={"Authorization": f"Bearer {assertion}"})
        assert (answer.status, bearer.status_code) == (400, 401)
        for part in assertion.split("."):
            for text in (caplog.text, str(answer.body), bearer.content.decode()):
                assert not part or part not in text
    assert "PRIVATE KEY" not in caplog.text
