"""The scheduled tasks of the control plane, which the maintenance worker runs."""

from __future__ import annotations

from celery import shared_task

from subscriptions import audit
from subscriptions.identity import rotation
from subscriptions.services import sweeping


@shared_task(name="subscriptions.signing_keys_maintain")
def maintain_signing_keys() -> dict[str, int]:
    return rotation.maintain_keys()


@shared_task(name="subscriptions.credentials_sweep")
def sweep_credentials() -> dict[str, int]:
    return sweeping.sweep_credentials()


@shared_task(name="subscriptions.audit_sweep")
def sweep_audit() -> int:
    return audit.sweep()
