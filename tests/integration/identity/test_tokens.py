"""Push tokens, verified as Google tells receivers to (docs/spec-delivery.md#verifying-push-tokens)."""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator
from typing import Any

import google.auth.exceptions
import google.auth.transport.requests
import jwt
import orjson
import pytest
import requests
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509 import load_pem_x509_certificate
from google.oauth2 import id_token
from pytest_django.live_server_helper import LiveServer

from subscriptions.identity import keys, tokens
from subscriptions.models.iam import SigningKey
from tests.restapi import Api

pytestmark = pytest.mark.any_database

EMAIL = "pusher@shop.iam.gserviceaccount.com"
AUDIENCE = "https://shop.example/push?token=1"


@pytest.fixture
def account(api: Api) -> dict[str, Any]:
    account: dict[str, Any] = api.post("serviceAccounts", {"accountId": "pusher"}).body
    return account


@pytest.fixture
def served(transactional_db: None, live_server: LiveServer) -> Iterator[Api]:
    """Serve the account and our certificates on a real HTTP server."""
    api = Api()
    assert api.post("serviceAccounts", {"accountId": "pusher"}).status == 200
    yield api


@pytest.fixture
def transport() -> Iterator[google.auth.transport.requests.Request]:
    with requests.Session() as session:
        yield google.auth.transport.requests.Request(session)


def verify(
    live_server: LiveServer, transport: google.auth.transport.requests.Request, token: str, audience: str = AUDIENCE
) -> dict[str, Any]:
    claims: dict[str, Any] = id_token.verify_token(
        token, transport, audience=audience, certs_url=f"{live_server.url}/oauth2/v1/certs"
    )
    return claims


def test_google_auth_accepts_our_token(
    served: Api, live_server: LiveServer, transport: google.auth.transport.requests.Request
) -> None:
    minted = tokens.mint_id_token(email=EMAIL, audience=AUDIENCE)

    claims = verify(live_server, transport, minted.token)

    assert (claims["email"], claims["email_verified"], claims["aud"]) == (EMAIL, True, AUDIENCE)


def test_google_auth_accepts_our_token_as_googles_if_the_issuer_is_googles(
    served: Api,
    live_server: LiveServer,
    transport: google.auth.transport.requests.Request,
    settings: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings.ISSUER = "https://accounts.google.com"
    monkeypatch.setattr(id_token, "_GOOGLE_OAUTH2_CERTS_URL", f"{live_server.url}/oauth2/v1/certs")
    minted = tokens.mint_id_token(email=EMAIL, audience=AUDIENCE)

    assert id_token.verify_oauth2_token(minted.token, transport, audience=AUDIENCE)["email"] == EMAIL


def test_google_auth_refuses_a_token_for_another_audience(
    served: Api, live_server: LiveServer, transport: google.auth.transport.requests.Request
) -> None:
    minted = tokens.mint_id_token(email=EMAIL, audience="https://other.example")

    with pytest.raises(google.auth.exceptions.InvalidValue, match="wrong audience"):
        verify(live_server, transport, minted.token)


def forged(token: str, kind: str) -> str:
    """Return a token that somebody else has made to look like `token`."""
    header, claims, signature = token.split(".")
    content = jwt.decode(token, options={"verify_signature": False})
    kid = jwt.get_unverified_header(token)["kid"]
    if kind == "alg none":
        none = base64.urlsafe_b64encode(orjson.dumps({"alg": "none", "typ": "JWT", "kid": kid})).decode().rstrip("=")
        return f"{none}.{claims}."
    if kind == "another key":
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        return jwt.encode(content, key, algorithm="RS256", headers={"kid": kid})
    if kind == "our certificate as a shared secret":
        return jwt.encode(content, b"c" * 64, algorithm="HS256", headers={"kid": kid})
    if kind == "an unknown key id":
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        return jwt.encode(content, key, algorithm="RS256", headers={"kid": "f" * 40})
    changed = base64.urlsafe_b64encode(orjson.dumps(content | {"email": "ceo@shop.example"})).decode().rstrip("=")
    return f"{header}.{changed}.{signature}"


FORGERIES = ["alg none", "another key", "our certificate as a shared secret", "an unknown key id", "changed claims"]


@pytest.mark.parametrize("kind", FORGERIES)
def test_google_auth_and_tokeninfo_refuse_a_forged_token(
    served: Api, live_server: LiveServer, transport: google.auth.transport.requests.Request, kind: str
) -> None:
    token = forged(tokens.mint_id_token(email=EMAIL, audience=AUDIENCE).token, kind)

    with pytest.raises(google.auth.exceptions.GoogleAuthError):
        verify(live_server, transport, token)
    assert served.get(f"/tokeninfo?id_token={token}").status == 400


def test_a_token_has_the_form_of_the_documentation(account: dict[str, Any], settings: Any) -> None:
    settings.ISSUER = "https://accounts.google.com"
    before = time.time()

    minted = tokens.mint_id_token(email=EMAIL, audience=AUDIENCE)

    header = jwt.get_unverified_header(minted.token)
    claims = jwt.decode(minted.token, options={"verify_signature": False})
    assert header == {"alg": "RS256", "kid": SigningKey.objects.get().kid, "typ": "JWT"}
    assert len(header["kid"]) == 40
    assert claims == {
        "aud": AUDIENCE,
        "azp": account["uniqueId"],
        "email": EMAIL,
        "email_verified": True,
        "exp": claims["iat"] + 3600,
        "iat": claims["iat"],
        "iss": "https://accounts.google.com",
        "sub": account["uniqueId"],
    }
    assert claims["iat"] < before
    assert minted.expires_at == claims["exp"]


def test_no_token_for_an_account_that_is_unknown_or_disabled(api: Api, account: dict[str, Any]) -> None:
    with pytest.raises(tokens.TokenDenied) as unknown:
        tokens.mint_id_token(email="nobody@shop.iam.gserviceaccount.com", audience=AUDIENCE)
    api.post(f"serviceAccounts/{EMAIL}:disable")
    with pytest.raises(tokens.TokenDenied) as disabled:
        tokens.mint_id_token(email=EMAIL, audience=AUDIENCE)

    assert (unknown.value.reason, disabled.value.reason) == ("account_unknown", "account_disabled")


def test_tokeninfo_returns_the_claims_as_text(api: Api, account: dict[str, Any]) -> None:
    minted = tokens.mint_id_token(email=EMAIL, audience=AUDIENCE)

    answer = api.get(f"/tokeninfo?id_token={minted.token}")

    assert answer.status == 200
    assert answer.body == {
        "alg": "RS256",
        "aud": AUDIENCE,
        "azp": account["uniqueId"],
        "email": EMAIL,
        "email_verified": "true",
        "exp": str(int(minted.expires_at)),
        "iat": str(int(minted.expires_at) - 3600),
        "iss": "http://127.0.0.1:8000",
        "kid": SigningKey.objects.get().kid,
        "sub": account["uniqueId"],
        "typ": "JWT",
    }


NUL_KEY_ID = base64.urlsafe_b64encode(orjson.dumps({"alg": "RS256", "kid": "a\0b"})).decode().rstrip("=")


@pytest.mark.parametrize(
    "token", ["", "x", "a.b.c", "é", "." * 10_000, "eyJhbGciOiJSUzI1NiJ9.e30.", f"{NUL_KEY_ID}.e30.AAAA"]
)
def test_tokeninfo_refuses_malformed_tokens(api: Api, token: str) -> None:
    answer = api.get(f"/tokeninfo?id_token={token}")

    assert (answer.status, answer.body) == (400, {"error": "invalid_token", "error_description": "Invalid Value"})


def test_tokeninfo_refuses_an_expired_token(api: Api, account: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("subscriptions.identity.tokens.BACKDATE_SECONDS", 3700)
    minted = tokens.mint_id_token(email=EMAIL, audience=AUDIENCE)

    assert api.get(f"/tokeninfo?id_token={minted.token}").status == 400


def test_the_certificates_are_the_same_keys_in_both_forms(api: Api) -> None:
    pem = api.get("/oauth2/v1/certs").body
    jwks = api.get("/oauth2/v3/certs").body

    (kid,) = pem
    (jwk,) = jwks["keys"]
    assert (jwk["kid"], jwk["kty"], jwk["alg"], jwk["use"]) == (kid, "RSA", "RS256", "sig")
    certified = load_pem_x509_certificate(pem[kid].encode()).public_key()
    assert isinstance(certified, rsa.RSAPublicKey)
    served = jwt.PyJWK(jwk).key
    assert served.public_numbers() == certified.public_numbers()


@pytest.mark.parametrize("path", ["/oauth2/v1/certs", "/oauth2/v3/certs", "/.well-known/openid-configuration"])
def test_the_public_side_needs_no_credentials_and_may_be_cached(api: Api, settings: Any, path: str) -> None:
    settings.ANONYMOUS = ""

    response = api.client.get(path, headers={"Authorization": "Bearer whatever"})

    assert response.status_code == 200
    assert "max-age=" in response.headers["Cache-Control"]


def test_discovery_leads_to_the_keys(api: Api, settings: Any) -> None:
    configuration = api.get("/.well-known/openid-configuration").body

    assert configuration["issuer"] == settings.ISSUER
    assert configuration["jwks_uri"] == f"{settings.PUBLIC_URL}/oauth2/v3/certs"
    assert configuration["id_token_signing_alg_values_supported"] == ["RS256"]


def test_a_private_key_is_not_readable_in_the_database(db: None) -> None:
    keys.signing_key()

    row = SigningKey.objects.get()
    assert "PRIVATE" not in row.private_key
    assert "PRIVATE" not in row.certificate


def test_repeated_calls_create_one_key_only(db: None) -> None:
    assert {keys.signing_key().kid for _ in range(3)} == {SigningKey.objects.get().kid}


def test_two_processes_that_create_the_first_key_at_once_agree(db: None, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given another process that creates the key while this process does
    certificate = keys.certificate_of
    other_key_ids: list[str] = []

    def overtaken(private_key: rsa.RSAPrivateKey, common_name: str, **until: Any) -> str:
        monkeypatch.setattr(keys, "certificate_of", certificate)
        other_key_ids.append(keys.signing_key().kid)
        return certificate(private_key, common_name, **until)

    monkeypatch.setattr(keys, "certificate_of", overtaken)
    # When this process stores its own key
    mine = keys.signing_key()
    # Then it uses the other process's key
    assert [mine.kid] == other_key_ids
    assert SigningKey.objects.count() == 1


def test_a_changed_secret_creates_a_new_key_besides_the_old_one(api: Api, settings: Any) -> None:
    old = keys.signing_key()

    settings.KEY_ENCRYPTION_KEY = "another secret"
    new = keys.signing_key()

    assert new.kid != old.kid
    assert set(api.get("/oauth2/v1/certs").body) == {old.kid, new.kid}
    settings.KEY_ENCRYPTION_KEY = settings.SECRET_KEY
    assert keys.signing_key().kid == old.kid
