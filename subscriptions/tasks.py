"""The scheduled tasks of the control plane, which the maintenance worker runs."""

from __future__ import annotations

from celery import shared_task

from pushhub.common.clock import utcnow
from subscriptions import audit
from subscriptions.identity import rotation
from subscriptions.models.credentials import AccessToken, UsedAssertion
from subscriptions.services.service_accounts import purge_service_accounts


@shared_task(name="subscriptions.signing_keys_maintain")
def maintain_signing_keys() -> dict[str, int]:
    return rotation.maintain_keys()


@shared_task(name="subscriptions.credentials_sweep")
def sweep_credentials() -> dict[str, int]:
    """Remove expired tokens and assertions, and accounts that can't be undeleted any more. Return how many of each."""
    expired = {
        "tokens": AccessToken.objects.filter(expires_at__lte=utcnow()),
        "assertions": UsedAssertion.objects.filter(expires_at__lte=utcnow()),
    }
    return {kind: rows.delete()[0] for kind, rows in expired.items()} | {"accounts": purge_service_accounts()}


@shared_task(name="subscriptions.audit_sweep")
def sweep_audit() -> int:
    return audit.sweep()
