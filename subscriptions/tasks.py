"""The scheduled tasks of the control plane, which the maintenance worker runs."""

from __future__ import annotations

from celery import shared_task

from subscriptions import audit
from subscriptions.identity import rotation
from subscriptions.services import sweeping


@shared_task(name="subscriptions.signing_keys_maintain")
def signing_keys_maintain() -> dict[str, int]:
    return rotation.keys_maintain()


@shared_task(name="subscriptions.credentials_sweep")
def credentials_sweep() -> dict[str, int]:
    return sweeping.credentials_sweep()


@shared_task(name="subscriptions.audit_sweep")
def audit_sweep() -> int:
    return audit.sweep()
