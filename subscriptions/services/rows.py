"""What creating and updating share for all resources: names, quotas, masks and unique rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import QuerySet

from pushhub.common.errors import AlreadyExists, InvalidArgument, ResourceExhausted, clipped
from pushhub.common.protojson import Message
from subscriptions.models import Subscription, Topic
from subscriptions.resources import masks


def check_name(values: Mapping[str, Any], name: str, *, field: str = "name") -> None:
    """Check that a name in the body agrees with the one in the URL. The body may omit it."""
    if values.get(field, name) != name:
        raise InvalidArgument(
            f"The {field} in the body ({clipped(values[field])}) must agree with the one in the URL ({clipped(name)}).",
            field=field,
        )


def update_request(
    request: object, name: str, kind: Message, resource: str, mutable: frozenset[str]
) -> tuple[dict[str, Any], list[masks.Path]]:
    read = kind.read(request)
    message = kind.fields[resource]
    assert isinstance(message, Message)
    paths = masks.mask_paths(read.get("updateMask", ""), message, mutable=mutable)
    values = read.get(resource, {})
    check_name(values, name)
    return values, paths


def insert(row: Topic | Subscription, resource_id: str, taken: bool) -> None:
    """Store a new row. `taken` is the result of a query for its name; a constraint decides between two at once."""
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
    """Raise ResourceExhausted at the limit. Two calls at the same time may exceed it by one, which does no harm."""
    if rows.count() >= limit:
        raise ResourceExhausted(f"Quota exceeded: there are {limit} {what}, which is the maximum.")
