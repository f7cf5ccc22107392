"""Opaque access tokens: create them, find them by their digest, revoke them."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from django.db import transaction
from django.db.models import QuerySet

from pushhub.common import names
from pushhub.common.clock import utcnow
from pushhub.common.errors import InvalidArgument, NotFound
from pushhub.common.rows import row_or_none
from subscriptions.iam import members
from subscriptions.identity.recent import forget_callers
from subscriptions.identity.scopes import CLOUD_PLATFORM
from subscriptions.models import ServiceAccount
from subscriptions.models.credentials import AccessToken, ServiceAccountKey

#: Lets people who search code and logs for leaked secrets recognise a token.
PREFIX = "pushhub_"
#: The lifetime of tokens that clients fetch by themselves, as at Google.
LIFETIME = timedelta(hours=1)
MAX_LIFETIME = timedelta(days=365)


@dataclass(frozen=True, slots=True)
class IssuedToken:
    """A new token. Its text is visible only here, because PushHub stores a digest."""

    token: str
    row: AccessToken

    def __repr__(self) -> str:
        return f"IssuedToken({self.row})"


def create_access_token(*, member: str, lifetime: timedelta = LIFETIME) -> IssuedToken:
    """Create a token for `user:...` or for `serviceAccount:...`, which must exist."""
    member = members.parse_member(member, field="member")
    kind, _, email = member.partition(":")
    if kind == "serviceAccount":
        return create_account_token(account=_account(email), lifetime=lifetime)
    if kind != "user":
        raise InvalidArgument("A token is for a user: or a serviceAccount:, and no other member.", field="member")
    return _create(AccessToken(member=member), lifetime, [CLOUD_PLATFORM])


def create_account_token(
    *,
    account: ServiceAccount,
    key: ServiceAccountKey | None = None,
    lifetime: timedelta = LIFETIME,
    scopes: Sequence[str] = (CLOUD_PLATFORM,),
) -> IssuedToken:
    """Create a token for an account that proved its identity by `key`, or that another caller impersonates."""
    return _create(AccessToken(member=f"serviceAccount:{account.email}", account=account, key=key), lifetime, scopes)


def find_access_token(token: str) -> AccessToken | None:
    """Return the row of a token that is valid now: not expired, and its account and key are in use."""
    row = row_or_none(AccessToken.objects.select_related("account", "key").filter(digest=_digest(token)))
    if row is None or row.has_expired:
        return None
    if row.account is None and row.member.startswith("serviceAccount:"):
        return None
    if row.account is not None and (row.account.is_disabled or row.account.deleted_at is not None):
        return None
    return None if row.key is not None and row.key.disabled else row


def list_access_tokens(*, member: str = "") -> QuerySet[AccessToken]:
    """Return the tokens that have not expired, newest first."""
    rows = AccessToken.objects.filter(expires_at__gt=utcnow())
    return rows.filter(member=member) if member else rows


def revoke_access_token(*, token: str) -> bool:
    """Return whether there was such a token. Other processes accept it for a second more (identity/recent.py)."""
    deleted, _ = AccessToken.objects.filter(digest=_digest(token)).delete()
    if deleted:  # anybody may send words that are no token, and all processes would ask the database again
        forget_callers()
    return bool(deleted)


def revoke_access_tokens(*, ids: Sequence[int] = (), member: str = "") -> int:
    """Revoke tokens by the ids that the list shows, or all tokens of a member. Returns how many."""
    rows = AccessToken.objects.filter(member=member) if member else AccessToken.objects.filter(pk__in=ids)
    deleted = rows.count()
    rows.delete()
    forget_callers()
    return deleted


def _create(row: AccessToken, lifetime: timedelta, scopes: Sequence[str]) -> IssuedToken:
    if not timedelta(0) < lifetime <= MAX_LIFETIME:
        raise InvalidArgument(f"A token lives up to {MAX_LIFETIME.days} days.", field="lifetime")
    token = PREFIX + secrets.token_urlsafe(32)
    row.digest = _digest(token)
    row.scopes = list(scopes)
    row.expires_at = utcnow() + lifetime
    with transaction.atomic():
        row.save(force_insert=True)
    return IssuedToken(token, row)


def _account(email: str) -> ServiceAccount:
    account = row_or_none(ServiceAccount.objects.filter(email=email))
    if account is None or names.is_agent_email(email):
        raise NotFound(f"Service account {email} does not exist.", field="member")
    return account


def _digest(token: str) -> str:
    """Return the digest of a token. It has no salt, because the token is random and is looked up by its digest."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()
