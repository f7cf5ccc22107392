"""Removal of credentials that have expired."""

from __future__ import annotations

from pushhub.common.clock import utcnow
from subscriptions.models.credentials import AccessToken, UsedAssertion
from subscriptions.services.service_accounts import purge_service_accounts


def sweep_credentials() -> dict[str, int]:
    """Remove expired tokens and assertions, and accounts that can't be undeleted any more. Returns how many of each."""
    expired = {
        "tokens": AccessToken.objects.filter(expires_at__lte=utcnow()),
        "assertions": UsedAssertion.objects.filter(expires_at__lte=utcnow()),
    }
    return {kind: rows.delete()[0] for kind, rows in expired.items()} | {"accounts": purge_service_accounts()}
