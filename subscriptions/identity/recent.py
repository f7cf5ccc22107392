"""Callers that have just proved themselves, so that the hundredth publish of a second costs no query."""

from __future__ import annotations

import threading
import time

from django.db import transaction

from pushhub.common.principals import Principal

#: How long a process may go by a credential that another process has revoked meanwhile.
CACHE_SECONDS = 1.0
CACHE_ENTRIES = 10_000


class RecentCallers:
    """Principals by the SHA-256 of the credential they came with."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[bytes, tuple[float, Principal]] = {}

    def get(self, digest: bytes) -> Principal | None:
        found = self._known.get(digest)
        return found[1] if found is not None and found[0] > time.monotonic() else None

    def put(self, digest: bytes, principal: Principal, *, seconds_left: float) -> None:
        with self._lock:
            if len(self._known) >= CACHE_ENTRIES:
                self._known.clear()
            self._known[digest] = (time.monotonic() + min(CACHE_SECONDS, seconds_left), principal)

    def forget(self) -> None:
        with self._lock:
            self._known.clear()


recent_callers = RecentCallers()


def forget_callers() -> None:
    """Credentials change in this transaction: none is taken for good that was before it or while it ran."""
    recent_callers.forget()
    transaction.on_commit(recent_callers.forget)
