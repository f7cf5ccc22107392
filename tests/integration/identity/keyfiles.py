"""A service account with a key file, and the JSON Web Tokens that its owner or a thief signs with it."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from typing import Any

import jwt
import orjson
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from pushhub.common.clock import utcnow
from subscriptions.identity import account_keys
from subscriptions.models.credentials import ServiceAccountKey
from subscriptions.services import service_accounts
from tests.privatekeys import loaded_key

EMAIL = "pusher@shop.iam.gserviceaccount.com"
NAME = f"projects/shop/serviceAccounts/{EMAIL}"
TOKEN_AUDIENCE = "https://oauth2.googleapis.com/token"
SERVICE_AUDIENCE = "https://pubsub.googleapis.com/"
SCOPE = "https://www.googleapis.com/auth/cloud-platform"
GRANT = "urn:ietf:params:oauth:grant-type:jwt-bearer"


def key_file(account_id: str = "pusher") -> dict[str, Any]:
    """The account of the project `shop`, made here, and the content of a key file of it."""
    service_accounts.create_service_account(project="shop", request={"accountId": account_id})
    return another_key(f"projects/shop/serviceAccounts/{account_id}@shop.iam.gserviceaccount.com")


def another_key(name: str = NAME) -> dict[str, Any]:
    content: dict[str, Any] = orjson.loads(account_keys.create_service_account_key(name=name, request={}).key_file)
    return content


def assertion_claims(**changes: Any) -> dict[str, Any]:
    """Return the claims of google-auth's assertions with changes; None removes a claim."""
    now = int(time.time())
    return _changed({"iss": EMAIL, "aud": TOKEN_AUDIENCE, "iat": now, "exp": now + 3600, "scope": SCOPE}, changes)


def bearer_claims(**changes: Any) -> dict[str, Any]:
    """Return the claims of google-auth's self-signed tokens with changes; None removes a claim."""
    now = int(time.time())
    return _changed({"iss": EMAIL, "sub": EMAIL, "aud": SERVICE_AUDIENCE, "iat": now, "exp": now + 3600}, changes)


def _changed(claims: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in (claims | changes).items() if value is not None}


def signed(key: dict[str, Any], claims: dict[str, Any], *, kid: str | None = "", algorithm: str = "RS256") -> str:
    headers = {} if kid is None else {"kid": kid or key["private_key_id"]}
    # PyJWT's low-level interface, as the usual one refuses to sign some of these claims.
    private_key = loaded_key(key["private_key"])
    return jwt.PyJWS().encode(json.dumps(claims).encode(), private_key, algorithm=algorithm, headers=headers)


def forged(key: dict[str, Any], claims: dict[str, Any], kind: str) -> str:
    """Return a token of `claims` with something else in place of the account's signature."""
    kid = key["private_key_id"]
    genuine = signed(key, claims)
    if kind == "alg none":
        return f"{_part({'alg': 'none', 'typ': 'JWT', 'kid': kid})}.{_part(claims)}."
    if kind == "alg none in other letters":
        return f"{_part({'alg': 'nOnE', 'typ': 'JWT', 'kid': kid})}.{_part(claims)}."
    if kind == "no signature":
        return genuine.rpartition(".")[0] + "."
    if kind == "the public key as a shared secret":
        return _with_secret(claims, kid, _public_pem(key))
    if kind == "the certificate as a shared secret":
        return _with_secret(claims, kid, ServiceAccountKey.objects.get(key_id=kid).certificate.encode())
    if kind == "another algorithm":
        return signed(key, claims, algorithm="RS512")
    if kind == "another key":
        return jwt.encode(claims, _stranger(), algorithm="RS256", headers={"kid": kid})
    if kind == "another key without its id":
        return jwt.encode(claims, _stranger(), algorithm="RS256")
    if kind == "a key that comes along":
        stranger = _stranger()
        jwk = jwt.algorithms.RSAAlgorithm.to_jwk(stranger.public_key(), as_dict=True)
        return jwt.encode(claims, stranger, algorithm="RS256", headers={"kid": kid, "jwk": jwk})
    if kind == "an unknown key id":
        return signed(key, claims, kid="f" * 40)
    if kind in KEY_IDS_OF_NO_KEY:
        return signed(key, claims, kid=KEY_IDS_OF_NO_KEY[kind])
    if kind == "a critical header":
        return jwt.encode(
            claims, key["private_key"], algorithm="RS256", headers={"kid": kid, "crit": ["b64"], "b64": True}
        )
    assert kind == "changed claims"
    header, _, signature = genuine.split(".")
    return f"{header}.{_part(claims | {'exp': claims['exp'] - 1})}.{signature}"


#: JSON may have them, and databases can't look them up.
KEY_IDS_OF_NO_KEY = {"half a character as the key id": "\ud800", "a NUL in the key id": "a\0b"}
FORGERIES = [
    *KEY_IDS_OF_NO_KEY,
    "alg none",
    "alg none in other letters",
    "no signature",
    "the public key as a shared secret",
    "the certificate as a shared secret",
    "another algorithm",
    "another key",
    "another key without its id",
    "a key that comes along",
    "an unknown key id",
    "a critical header",
    "changed claims",
]


def take_out_of_use(key: dict[str, Any], what: str) -> None:
    """Delete or disable the account or the key, or let the key expire, so that its tokens must be refused."""
    key_name = f"{NAME}/keys/{key['private_key_id']}"
    if what == "key deleted":
        account_keys.delete_service_account_key(name=key_name)
    elif what == "key disabled":
        account_keys.disable_service_account_key(name=key_name)
    elif what == "key expired":
        ServiceAccountKey.objects.update(expires_at=utcnow())
    elif what == "account disabled":
        service_accounts.disable_service_account(name=NAME)
    else:
        service_accounts.delete_service_account(name=NAME)


OUT_OF_USE = ["key deleted", "key disabled", "key expired", "account disabled", "account deleted"]

#: Claims that no token of either kind may have: (reason, changes).
BAD_TIMES: list[tuple[str, dict[str, Any]]] = [
    ("expired", {"iat": -7200, "exp": -1}),
    ("expired this second", {"iat": -3600, "exp": 0}),
    ("issued in the future", {"iat": 300, "exp": 3000}),
    ("not yet", {"nbf": 300}),
    ("for more than an hour", {"exp": 3700}),
    ("for ever", {"exp": 10**9}),
    ("ends before it begins", {"iat": 30, "exp": 20}),
]
BAD_CLAIMS: list[dict[str, Any]] = [
    {"exp": None},
    {"iat": None},
    {"iss": None},
    {"exp": "soon"},
    {"exp": True},
    {"iat": [1]},
    {"exp": float("inf")},
    {"exp": 10**400},
    {"iat": float("nan")},
    {"iss": "nobody@shop.iam.gserviceaccount.com"},
    {"iss": ""},
    {"iss": "a\0b"},
    {"iss": "\ud800"},
    {"iss": [EMAIL]},
    {"iss": EMAIL.upper()},
    {"iss": "x" * 5000},
    {"jti": 7},
]


def at(changes: dict[str, Any]) -> dict[str, Any]:
    """Return the changes, given in seconds from now, as times."""
    now = int(time.time())
    return {name: now + value for name, value in changes.items()}


def _part(content: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(orjson.dumps(content)).decode().rstrip("=")


def _with_secret(claims: dict[str, Any], kid: str, secret: bytes) -> str:
    """Sign by hand, as PyJWT refuses to do this."""
    content = f"{_part({'alg': 'HS256', 'typ': 'JWT', 'kid': kid})}.{_part(claims)}"
    digest = hmac.new(secret, content.encode(), hashlib.sha256).digest()
    return f"{content}.{base64.urlsafe_b64encode(digest).decode().rstrip('=')}"


def _public_pem(key: dict[str, Any]) -> bytes:
    return (
        loaded_key(key["private_key"])
        .public_key()
        .public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )


def _stranger() -> rsa.RSAPrivateKey:
    """Return a key that no account has."""
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)
