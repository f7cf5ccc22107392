"""What creating and updating has in common for all resources: names, quotas, masks and rows that are taken."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import QuerySet

from pushhub.common.errors import AlreadyExists, InvalidArgument, ResourceExhausted, clipped
from pushhub.common.protojson import Message
from subscriptions.models import Subscription, Topic
from subscriptions.resources import masks


def check_name(given: Mapping[str, Any], name: str, *, field: str = "name") -> None:
    """The name in a body may be left out, as the address has it too; the two must not differ."""
    if given.get(field, name) != name:
        raise InvalidArgument(
            f"The {field} in the body ({clipped(given[field])}) must agree with the one in the URL ({clipped(name)}).",
            field=field,
        )


def update_request(
    request: object, name: str, kind: Message, resource: str, mutable: frozenset[str]
) -> tuple[dict[str, Any], list[masks.Path]]:
    read = kind.read(request)
    message = kind.fields[resource]
    assert isinstance(message, Message)
    paths = masks.mask_paths(read.get("updateMask", ""), message, mutable=mutable)
    given = read.get(resource, {})
    check_name(given, name)
    return given, paths


def insert(row: Topic | Subscription, resource_id: str, taken: bool) -> None:
    """A look first is what usually finds the name taken; the constraint decides between two at the same time."""
    if taken:
        raise already_exists(resource_id)
    try:
        with transaction.atomic():
            row.save(force_insert=True)
    except IntegrityError:
        raise already_exists(resource_id) from None


def already_exists(resource_id: str) -> AlreadyExists:
    return AlreadyExists(f"Resource already exists in the project (resource={clipped(resource_id)}).")


def check_quota(what: str, rows: QuerySet[Any], limit: int) -> None:
    """Two at the same time may both be the last: a quota is there against running away, and one over does no harm."""
    if rows.count() >= limit:
        raise ResourceExhausted(f"Quota exceeded: there are {limit} {what}, which is the maximum.")
