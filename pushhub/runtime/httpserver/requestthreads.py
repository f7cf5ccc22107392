"""Gives each request of the web server its thread: the tenants take turns, and monitoring has a thread of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any, Self, TypeVar

from django.db import connections

from pushhub.common.tenantpool import MOST_ASIDE, TenantPool
from subscriptions.identity.tenants import tenant_of

T = TypeVar("T")
Headers = Iterable[tuple[bytes, bytes]]

#: The requests of a tenant that may wait for a thread, and for how long.
MOST_WAITING = 1_000
WAIT_SECONDS = 20.0
#: What monitoring asks for. It is answered also while all other threads are busy.
MONITORING = (b"/metrics", b"/readyz")


class RequestThreads:
    """The threads of a web server."""

    def __init__(self, threads: int) -> None:
        bounds: dict[str, Any] = {"most_waiting": MOST_WAITING, "wait_seconds": WAIT_SECONDS}
        most = max(threads * 3 // 4, 1)
        self._requests = TenantPool(
            "web", threads, most=most, most_aside=MOST_ASIDE, at_end=connections.close_all, **bounds
        )
        self._monitoring = TenantPool("monitoring", 1, most=1, at_end=connections.close_all, **bounds)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._requests.close()
        self._monitoring.close()

    def submit(self, call: Callable[[], T], *, target: bytes, headers: Headers, client: str) -> Future[T]:
        """Have `call` answer a request. The names of the headers are in lower case.

        Too many requests of a tenant are refused: this call, or its future, raises ResourceExhausted.
        """
        if target.partition(b"?")[0] in MONITORING:
            return self._monitoring.submit(client, call)
        fields = {name: value.decode("latin-1") for name, value in headers if name in (b"authorization", b"cookie")}
        tenant = tenant_of(
            target=target.decode("latin-1"),
            authorization=fields.get(b"authorization", ""),
            cookie=fields.get(b"cookie", ""),
            client=client,
        )
        return self._requests.submit(tenant, call)
