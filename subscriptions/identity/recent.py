"""Callers whose credential was checked a moment ago, so that a hundred publishes per second cost no query each."""

from __future__ import annotations

from django.db import transaction

from pushhub.common.expiring import ExpiringCache
from pushhub.common.principals import Principal
from subscriptions.iam import epoch

CACHE_ENTRIES = 10_000

#: Principals by the SHA-256 of the credential that they sent.
recent_callers: ExpiringCache[bytes, Principal] = ExpiringCache(seconds=epoch.KEPT_SECONDS, max_entries=CACHE_ENTRIES)


def forget_callers() -> None:
    """Forget all callers now and after the commit, because this transaction changes credentials.

    Another thread may cache the old state of a credential while the transaction runs.
    """
    recent_callers.clear()
    transaction.on_commit(recent_callers.clear)
    epoch.end_after_commit()
