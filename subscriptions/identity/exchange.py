"""The token endpoint: an assertion of a service account becomes an access token or an id token (RFC 7523)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import transaction

from pushhub.common.clock import utcnow
from pushhub.common.errors import InvalidArgument
from subscriptions.identity import access_tokens, audiences, tokens
from subscriptions.identity.assertions import Assertion, AssertionRefused, read_assertion
from subscriptions.identity.scopes import read_scopes
from subscriptions.models.credentials import UsedAssertion

GRANT_TYPE = "urn:ietf:params:oauth:grant-type:jwt-bearer"
#: Google's clients give their assertions no id, and send an assertion again if the response was lost. Assertions of one
#: account from the same second are even equal. After this time, only a thief would send one again.
REPEAT_SECONDS = 60


class GrantRefused(InvalidArgument):
    """The request is refused. `error` is one of RFC 6749's error codes."""

    def __init__(self, error: str, description: str) -> None:
        super().__init__(description)
        self.error = error


def grant_token(form: Mapping[str, str]) -> dict[str, Any]:
    """Return the answer to a token request. Raises GrantRefused, which changes nothing."""
    if form.get("grant_type", "") != GRANT_TYPE:
        raise GrantRefused("unsupported_grant_type", f"Invalid grant_type: only {GRANT_TYPE} is supported.")
    if not form.get("assertion"):
        raise GrantRefused("invalid_request", "Missing required parameter: assertion")
    try:
        assertion = read_assertion(form["assertion"])
    except AssertionRefused as error:
        raise GrantRefused("invalid_grant", error.message) from None
    _check_audience(assertion)
    with transaction.atomic():
        mark_used(form["assertion"], assertion)
        return _granted(assertion)


def mark_used(token: str, assertion: Assertion) -> None:
    """Refuse an assertion that was exchanged before: at once if it has an id, otherwise after REPEAT_SECONDS."""
    identity = f"{assertion.account.pk}:{assertion.claims['jti']}" if "jti" in assertion.claims else token
    used, is_new = UsedAssertion.objects.get_or_create(
        digest=hashlib.sha256(identity.encode("utf-8", "surrogatepass")).hexdigest(),
        defaults={"first_used_at": utcnow(), "expires_at": datetime.fromtimestamp(assertion.claims["exp"], UTC)},
    )
    is_repeat = "jti" not in assertion.claims and utcnow() - used.first_used_at <= timedelta(seconds=REPEAT_SECONDS)
    if not is_new and not is_repeat:
        raise GrantRefused("invalid_grant", "Invalid JWT: the assertion has been used before.")


def _check_audience(assertion: Assertion) -> None:
    if not audiences.is_token_address(assertion.claims.get("aud"), public_url=settings.PUBLIC_URL):
        raise GrantRefused(
            "invalid_grant",
            f"Invalid JWT: Failed audience check. The right audience is {settings.PUBLIC_URL}/token",
        )
    if assertion.claims.get("sub", assertion.claims["iss"]) != assertion.claims["iss"]:
        raise GrantRefused(
            "unauthorized_client", "Client is unauthorized to retrieve access tokens for another subject."
        )


def _granted(assertion: Assertion) -> dict[str, Any]:
    target = assertion.claims.get("target_audience")
    if isinstance(target, str) and 0 < len(target) <= tokens.MAX_AUDIENCE_CHARACTERS:
        return {"id_token": tokens.sign_id_token(assertion.account, audience=target).token}
    scopes = read_scopes(assertion.claims.get("scope"))
    if target is not None or not scopes:
        raise GrantRefused("invalid_scope", "Invalid OAuth scope or ID token audience provided.")
    issued = access_tokens.create_account_token(account=assertion.account, key=assertion.key, scopes=scopes)
    return {
        "access_token": issued.token,
        "scope": " ".join(scopes),
        "token_type": "Bearer",
        # One second less, because the response takes time.
        "expires_in": int(access_tokens.LIFETIME.total_seconds()) - 1,
    }
