"""OpenID Connect tokens: minting them for push requests, and verifying one for `/tokeninfo`."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Literal

from django.conf import settings

from pushhub.common.errors import InvalidArgument, PushHubError, clipped
from pushhub.common.rows import row_or_none
from subscriptions.identity.agents import can_agent_mint
from subscriptions.identity.keys import certificate_public_key, signing_key
from subscriptions.identity.libraries import jwt
from subscriptions.identity.pairs import is_key_id
from subscriptions.models import ServiceAccount
from subscriptions.models.iam import SigningKey

LIFETIME_SECONDS = 3600
#: google-auth for Python allows no clock skew, and would refuse a token from its future.
BACKDATE_SECONDS = 10
#: PushHub's tokens have about a thousand characters. Much longer ones are not decoded.
MAX_TOKEN_CHARACTERS = 8192
#: As long as the `oidcToken.audience` of a push config may be.
MAX_AUDIENCE_CHARACTERS = 2048
REQUIRED_CLAIMS = ["iss", "aud", "sub", "iat", "exp"]


class TokenDenied(PushHubError, code="PERMISSION_DENIED", http_status=403):
    """No token for this account. `reason` is a bounded word, which a metric label can hold."""

    def __init__(self, reason: Literal["account_unknown", "account_disabled", "token_denied"], *, email: str) -> None:
        super().__init__(f"No token can be made for {clipped(email)} ({reason}).")
        self.reason = reason


@dataclass(frozen=True, slots=True)
class IdToken:
    """A signed token and when it ends, in seconds since the epoch."""

    token: str
    expires_at: float


def mint_id_token(*, email: str, audience: str) -> IdToken:
    """Return a token as Cloud Pub/Sub attaches it to push requests. It can be reused until it expires.

    The service agent of the account's project signs it, if the policies allow that.
    """
    account = row_or_none(ServiceAccount.objects.filter(email=email).select_related("project"))
    if account is None:
        raise TokenDenied("account_unknown", email=email)
    if account.is_disabled:
        raise TokenDenied("account_disabled", email=email)
    if not can_agent_mint(account):
        raise TokenDenied("token_denied", email=email)
    return sign_id_token(account, audience=audience)


def sign_id_token(
    account: ServiceAccount, *, audience: str, include_email: bool = True, azp_is_email: bool = False
) -> IdToken:
    """Return a token for an account. The caller of this function has checked the permission."""
    issued_at = int(time.time()) - BACKDATE_SECONDS
    claims = {
        "aud": audience,
        "azp": account.email if azp_is_email else account.unique_id,
        "exp": issued_at + LIFETIME_SECONDS,
        "iat": issued_at,
        "iss": settings.ISSUER,
        "sub": account.unique_id,
    }
    if include_email:
        claims |= {"email": account.email, "email_verified": True}
    signer = signing_key()
    token = jwt.encode(claims, signer.private_key, algorithm="RS256", headers={"kid": signer.kid})
    return IdToken(token=token, expires_at=float(issued_at + LIFETIME_SECONDS))


def id_token_claims(token: str) -> dict[str, Any]:
    """Return the header and claims of a token that PushHub signed and that is valid now; else InvalidArgument."""
    refused = InvalidArgument("Invalid Value", field="id_token")
    if len(token) > MAX_TOKEN_CHARACTERS:
        raise refused
    try:
        header = jwt.get_unverified_header(token)
        kid = header.get("kid")
        key = row_or_none(SigningKey.objects.filter(kid=kid, retired_at=None)) if is_key_id(kid) else None
        if key is None:
            raise refused
        claims: dict[str, Any] = jwt.decode(
            token,
            certificate_public_key(key.certificate),
            algorithms=["RS256"],
            issuer=settings.ISSUER,
            options={"require": REQUIRED_CLAIMS, "verify_aud": False},
        )
    except (jwt.InvalidTokenError, ValueError, OverflowError, RecursionError):
        raise refused from None
    return claims | {"alg": "RS256", "kid": key.kid, "typ": "JWT"}
