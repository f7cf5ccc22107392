"""JSON Web Tokens that a service account signs with one of its keys: read and verified.

There are two kinds, which differ in their audience: assertions for /token (RFC 7523), and self-signed tokens in place
of an access token (https://google.aip.dev/auth/4111).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.db.models import Q

from pushhub.common.clock import utcnow
from pushhub.common.errors import InvalidArgument
from pushhub.common.rows import row_or_none
from subscriptions.identity.account_keys import MAX_KEYS
from subscriptions.identity.keys import certificate_public_key
from subscriptions.identity.libraries import jwt
from subscriptions.identity.pairs import is_key_id
from subscriptions.models import ServiceAccount
from subscriptions.models.credentials import ServiceAccountKey

MAX_CHARACTERS = 8192
MAX_LIFETIME_SECONDS = 3600
#: Larger values, infinity and NaN are no times.
LAST_MOMENT = 1e12
#: How far the caller's clock may be ahead.
SKEW_SECONDS = 60
#: The only algorithm. With a choice, a public key could pass for the secret of HS256, and `none` for a signature.
ALGORITHM = "RS256"


class AssertionRefused(InvalidArgument):
    """The token is invalid. The text is Google's and is for /token only; bearers get no reason."""


@dataclass(frozen=True, slots=True)
class Assertion:
    """The claims of an account, verified with one of its keys."""

    account: ServiceAccount
    key: ServiceAccountKey
    claims: Mapping[str, Any]

    @property
    def seconds_left(self) -> float:
        return float(self.claims["exp"]) - time.time()


def read_assertion(token: str) -> Assertion:
    """Return the verified content of `token`, or raise AssertionRefused. The audience is not checked."""
    header, claims = _unverified(token)
    if header.get("alg") != ALGORITHM or "crit" in header:
        raise AssertionRefused("Invalid JWT: Only RS256 is supported.")
    account = _account(claims.get("iss"))
    key = _signer(token, account, header.get("kid"))
    check_times(claims, now=time.time())
    if not isinstance(claims.get("sub", ""), str) or not isinstance(claims.get("jti", ""), str):
        raise AssertionRefused("Invalid JWT: sub and jti must be strings.")
    return Assertion(account, key, claims)


def check_times(claims: Mapping[str, Any], *, now: float) -> None:
    """Raise AssertionRefused unless the claims are valid at `now`, and for one hour at most."""
    issued_at, expires_at = _moment(claims, "iat"), _moment(claims, "exp")
    not_before = _moment(claims, "nbf") if "nbf" in claims else issued_at
    if (
        not issued_at < expires_at <= issued_at + MAX_LIFETIME_SECONDS
        or expires_at <= now
        or max(issued_at, not_before) > now + SKEW_SECONDS
    ):
        raise AssertionRefused(
            "Invalid JWT: Token must be a short-lived token (60 minutes) and in a reasonable timeframe. Check your iat "
            "and exp values in the JWT claim."
        )


def _unverified(token: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the header and the claims before verification, which needs them to find the key."""
    malformed = AssertionRefused("Bad Request: the assertion is no JSON Web Token.")
    if len(token) > MAX_CHARACTERS or not token.isascii():
        raise malformed
    try:
        read = jwt.decode_complete(token, options={"verify_signature": False})
    except (jwt.InvalidTokenError, ValueError, RecursionError):
        raise malformed from None
    return read["header"], read["payload"]


def _account(issuer: object) -> ServiceAccount:
    """Return the account with this email or unique id. Google's clients send the email."""
    refused = AssertionRefused("Invalid grant: account not found.")
    if not isinstance(issuer, str) or not issuer.isascii() or "\0" in issuer:
        raise refused
    accounts = ServiceAccount.objects.filter(Q(email=issuer) | Q(unique_id=issuer), deleted_at=None)
    account = row_or_none(accounts.select_related("project"))
    if account is None or account.is_disabled:
        raise refused
    return account


def _signer(token: str, account: ServiceAccount, key_id: object) -> ServiceAccountKey:
    """Return the key in use that signed the token. Google's client for Node doesn't name it; then all are tried."""
    keys = account.keys.filter(disabled=False, expires_at__gt=utcnow())
    if key_id is not None:
        keys = keys.filter(key_id=key_id) if is_key_id(key_id) else keys.none()
    for key in keys[:MAX_KEYS]:
        if _is_signed_by(token, key):
            return key
    raise AssertionRefused("Invalid JWT Signature.")


def _is_signed_by(token: str, key: ServiceAccountKey) -> bool:
    try:
        jwt.PyJWS().decode(token, certificate_public_key(key.certificate), algorithms=[ALGORITHM])
    except jwt.InvalidTokenError:
        return False
    return True


def _moment(claims: Mapping[str, Any], name: str) -> float:
    value = claims.get(name)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < LAST_MOMENT:
        raise AssertionRefused(f"Invalid JWT: {name} must be a number of seconds since 1970.")
    return float(value)
