"""Service perimeters: what projects that VPC Service Controls protect may not do with push.

Source: the seeds' "Push subscription and VPC Service Controls"; pubsub-spec.md, section 5.4.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from pushhub.common.errors import PermissionDenied
from subscriptions.models import Project, Subscription
from subscriptions.models.iam import Perimeter

#: The two forms of a Cloud Run service's default address: `{service}-{hash}-{zone}.a.run.app` and
#: `{service}-{project number}.{region}.run.app`. A custom domain has neither.
RUN_APP_HOST = re.compile(r"[a-z]([a-z0-9-]*[a-z0-9])?\.(a|[a-z]+-[a-z]+[0-9]+)\.run\.app", re.ASCII)
PROHIBITED = "Request is prohibited by organization's policy"


def is_run_app(endpoint: str) -> bool:
    """Whether this is the default URL of a Cloud Run service."""
    parts = urlsplit(endpoint)
    return parts.scheme == "https" and RUN_APP_HOST.fullmatch(parts.netloc) is not None


def is_protected(project: Project) -> bool:
    return Perimeter.objects.filter(enabled=True, projects=project).exists()


def push_check(subscription: Subscription, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    """Raise PermissionDenied where a perimeter forbids to create or update a subscription.

    `before` and `after` are its PushConfigs in JSON form; one without an endpoint is that of a pull subscription, or of
    none yet. Nothing of an existing push subscription may be updated, its labels included. A new one may push to a
    default run.app URL; a pull subscription that begins to push is a new push subscription.
    """
    endpoint = after.get("pushEndpoint", "")
    is_free = not before.get("pushEndpoint") and (not endpoint or is_run_app(endpoint))
    if not is_free and is_protected(subscription.project):
        raise PermissionDenied(
            PROHIBITED,
            details=[
                {
                    "@type": "type.googleapis.com/google.rpc.PreconditionFailure",
                    "violations": [{"type": "VPC_SERVICE_CONTROLS", "description": subscription.name}],
                }
            ],
        )
