"""Who a caller is, according to its Authorization header. REST and gRPC both use this."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from django.conf import settings

from pushhub.common.clock import utcnow
from pushhub.common.errors import PermissionDenied, Unauthenticated, error_info
from pushhub.common.principals import Principal
from subscriptions.identity import audiences
from subscriptions.identity.access_tokens import find_access_token
from subscriptions.identity.assertions import AssertionRefused, read_assertion
from subscriptions.identity.recent import recent_callers
from subscriptions.identity.scopes import OPENING, read_scopes
from subscriptions.models import ServiceAccount

#: Far longer than any credential that PushHub issues.
MAX_CREDENTIAL_CHARACTERS = 8192
#: Google's clients send this to an emulator because they can't omit the token. It stands for the anonymous caller.
EMULATOR_TOKEN = "owner"  # noqa: S105 - publicly known


def caller_from_authorization(header: str) -> Principal:
    """Return the principal of `Bearer {access token or JWT}`. Raises Unauthenticated for anything else."""
    caller = recent_caller(header)
    if caller is None:
        token, generation = bearer_token(header), recent_callers.generation
        caller, seconds_left = _caller_of(token)
        recent_callers.put(_digest(token), caller, at_most_seconds=seconds_left, generation=generation)
    return caller


def recent_caller(header: str) -> Principal | None:
    """As `caller_from_authorization`, but None if it would need a query."""
    token = bearer_token(header)
    if token == EMULATOR_TOKEN and settings.ANONYMOUS:  # where a setting allows anonymous callers
        return Principal(settings.ANONYMOUS)
    return recent_callers.get(_digest(token))


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


def bearer_token(header: str) -> str:
    scheme, _, token = header.strip().partition(" ")
    token = token.strip()
    if scheme.lower() != "bearer" or not token.isascii() or not 0 < len(token) <= MAX_CREDENTIAL_CHARACTERS:
        raise refused()
    return token


def refused() -> Unauthenticated:
    """Return the same error whatever was wrong, so that guessing reveals nothing."""
    return Unauthenticated(
        "Request had invalid authentication credentials. Expected OAuth 2 access token, login cookie or "
        "other valid authentication credential."
    )


def _caller_of(token: str) -> tuple[Principal, float]:
    """Return the principal, and for how many more seconds the credential is valid."""
    if token.count(".") == 2:
        return _self_signed(token)
    row = find_access_token(token)
    if row is None:
        raise refused()
    _check_scopes(row.scopes)
    caller = Principal(row.member) if row.account is None else account_principal(row.account)
    return caller, (row.expires_at - utcnow()).total_seconds()


def _self_signed(token: str) -> tuple[Principal, float]:
    """Return the principal of a JWT that a service account signed to use it in place of an access token.

    Its audience must be PushHub's or, as Google's clients do it, it has scopes and no audience. An assertion for /token
    has neither, so it is no credential here.
    """
    try:
        assertion = read_assertion(token)
    except AssertionRefused:
        raise refused() from None
    claims = assertion.claims
    if claims.get("sub") != claims["iss"]:
        raise refused()
    if "aud" in claims:
        if not audiences.is_service(claims["aud"], own=settings.AUDIENCES):
            raise refused()
    else:
        _check_scopes(read_scopes(claims.get("scope")))
    return account_principal(assertion.account), assertion.seconds_left


def account_principal(account: ServiceAccount) -> Principal:
    return Principal(f"serviceAccount:{account.email}", unique_id=account.unique_id)


def _check_scopes(scopes: Iterable[str]) -> None:
    if OPENING.isdisjoint(scopes):
        raise PermissionDenied(
            "Request had insufficient authentication scopes.", details=error_info("ACCESS_TOKEN_SCOPE_INSUFFICIENT")
        )
