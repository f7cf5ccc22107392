"""Reads the payloads that are too large for Redis."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from deliveries.models import Message
from deliveries.rules.payload import parse_attributes, wire_message


def read_payloads(message_ids: Iterable[int]) -> dict[int, Mapping[str, Any]]:
    """Return the messages that are still in the database, by id, in the form that travels in a task."""
    pks = list(message_ids)
    rows = Message.objects.filter(pk__in=pks) if pks else ()  # Django builds a query even if it asks for nothing
    return {
        row.pk: wire_message(row.pk, bytes(row.data), parse_attributes(row.attributes), row.ordering_key)
        for row in rows
    }
