"""Service perimeters: what push subscriptions may not do in projects that VPC Service Controls protect.

The rules are those of docs/spec-access.md#service-perimeters.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from pushhub.common.errors import PermissionDenied
from subscriptions.models import Subscription
from subscriptions.models.iam import Perimeter

#: The two forms of a Cloud Run service's default address: `{service}-{hash}-{zone}.a.run.app` and
#: `{service}-{project number}.{region}.run.app`. A custom domain has neither.
RUN_APP_HOST = re.compile(r"[a-z]([a-z0-9-]*[a-z0-9])?\.(a|[a-z]+-[a-z]+[0-9]+)\.run\.app", re.ASCII)
PROHIBITED = "Request is prohibited by organization's policy"


def is_run_app(endpoint: str) -> bool:
    """Whether this is the default URL of a Cloud Run service."""
    parts = urlsplit(endpoint)
    return parts.scheme == "https" and RUN_APP_HOST.fullmatch(parts.netloc) is not None


def check_push(subscription: Subscription, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    """Raise PermissionDenied if a perimeter forbids creating or updating a subscription.

    `before` and `after` are its PushConfigs in JSON form. A pull subscription, or one that doesn't exist yet, has no
    endpoint. Nothing about an existing push subscription may be updated, not even its labels. A new push subscription
    may push to a default run.app URL only. A pull subscription that starts to push counts as a new one.
    """
    endpoint = after.get("pushEndpoint", "")
    is_free = not before.get("pushEndpoint") and (not endpoint or is_run_app(endpoint))
    if not is_free and Perimeter.objects.filter(enabled=True, projects=subscription.project).exists():
        raise PermissionDenied(
            PROHIBITED,
            details=[
                {
                    "@type": "type.googleapis.com/google.rpc.PreconditionFailure",
                    "violations": [{"type": "VPC_SERVICE_CONTROLS", "description": subscription.name}],
                }
            ],
        )
