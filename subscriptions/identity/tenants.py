"""The tenant that a request counts for while it waits for a thread, when nobody has checked yet who sends it."""

from __future__ import annotations

import hashlib
import re

from django.http import HttpRequest

from pushhub.common.expiring import ExpiringCache
from pushhub.common.tenantpool import count_for

PROJECT = re.compile(r"/v[13]/projects/([^/:?]+)")
#: How long a credential that was let in counts for its tenant.
REMEMBERED_SECONDS = 60.0

#: Tenants by what tells their requests apart (`_key`).
_admitted: ExpiringCache[bytes, str] = ExpiringCache(seconds=REMEMBERED_SECONDS, max_entries=10_000)


def tenant_of(*, target: str, authorization: str, cookie: str, client: str) -> str:
    """Return the tenant of a request: the project of its URL or, for pages, the user who is signed in.

    That is so if a request with the same credentials was let in before. All others count for the client's address:
    otherwise a stranger could use up the turns of a project, or have the turns of as many as he thinks of.
    """
    found = PROJECT.match(target)
    return _admitted.get(_key(authorization, cookie, found[1] if found else "")) or f"client {client}"


def admit_tenant(request: HttpRequest, *, project: str = "", user: str = "") -> None:
    """Count the request for the project, where the caller may call a method, or for the user who is signed in.

    Its credentials are remembered, so that the next request counts from the start.
    """
    tenant = f"project {project}" if project else f"user {user}"
    meta = request.META
    key = _key(meta.get("HTTP_AUTHORIZATION", ""), meta.get("HTTP_COOKIE", ""), project)
    _admitted.put(key, tenant)
    count_for(tenant)


def _key(authorization: str, cookie: str, project: str) -> bytes:
    return hashlib.sha256("\0".join((authorization, cookie, project)).encode()).digest()
