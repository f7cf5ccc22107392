"""Counts requests by their results. They are no events: only the counters have them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from deliveries.telemetry import kinds
from deliveries.telemetry.kinds import Kind
from deliveries.telemetry.sinks.counters import counters
from pushhub.common.errors import PushHubError


@contextmanager
def request_counted(kind: Kind, resource_id: int) -> Iterator[None]:
    """Count one request by its canonical code; errors go on to the caller."""
    code = "internal"
    try:
        yield
        code = "success"
    except PushHubError as error:
        code = error.code.lower()
        raise
    finally:
        count_request(kind, resource_id, code=code)


@contextmanager
def refusals_counted(topic_id: int) -> Iterator[None]:
    """Count a publish request that is refused. Accepted ones are counted with their messages (events.Published)."""
    try:
        yield
    except PushHubError as error:
        count_request(kinds.TOPIC_REFUSED, topic_id, code=error.code.lower())
        raise


def count_request(kind: Kind, resource_id: int, *, code: str = "success") -> None:
    """Count one request, where metrics are on."""
    process_counters = counters()
    if process_counters is not None:
        process_counters.add({f"{kind.field}|{resource_id}|{code}": 1})
