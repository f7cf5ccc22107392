"""The tables of the control plane. Django expects them in this module."""

from __future__ import annotations

from subscriptions.models import credentials, iam, schemas
from subscriptions.models.resources import (
    Folder,
    Organization,
    Project,
    ServiceAccount,
    Snapshot,
    Subscription,
    Topic,
    new_project_number,
    new_unique_id,
)

__all__ = [
    "Folder",
    "Organization",
    "Project",
    "ServiceAccount",
    "Snapshot",
    "Subscription",
    "Topic",
    "credentials",
    "iam",
    "new_project_number",
    "new_unique_id",
    "schemas",
]
