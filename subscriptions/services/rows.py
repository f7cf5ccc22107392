"""Steps of creating and updating that all resources have in common: names, quotas, masks and unique rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import Model, QuerySet

from pushhub.common.errors import AlreadyExists, InvalidArgument, ResourceExhausted, clipped
from pushhub.common.protojson import Message
from subscriptions.resources import masks


def check_name(values: Mapping[str, Any], name: str, *, field: str = "name") -> None:
    """Check that a name in the body agrees with the one in the URL. The body may omit it."""
    if values.get(field, name) != name:
        raise InvalidArgument(
            f"The {field} in the body ({clipped(values[field])}) must agree with the one in the URL ({clipped(name)}).",
            field=field,
        )


def check_body_name(body: object, name: str, *, field: str) -> None:
    """Do as `check_name`, for a request that wasn't read yet and may have any form."""
    if isinstance(body, Mapping) and isinstance(body.get(field), str):
        check_name(body, name, field=field)


def update_request(
    request: object, name: str, kind: Message, resource: str, mutable: frozenset[str]
) -> tuple[dict[str, Any], list[masks.Path]]:
    """Return the resource in an update request, and the paths of its mask. `resource` is the name of its field."""
    parsed = kind.read(request)
    message = kind.fields[resource]
    assert isinstance(message, Message)
    paths = masks.mask_paths(parsed.get("updateMask", ""), message, mutable=mutable)
    values = parsed.get(resource, {})
    check_name(values, name)
    return values, paths


def check_free(rows: QuerySet[Any], resource_id: str) -> None:
    """Raise AlreadyExists if `rows`, those of a new resource's name, has one. Quotas come after it."""
    if rows.exists():
        raise already_exists(resource_id)


def insert(row: Model, resource_id: str) -> None:
    """Store a new row after `check_free`. Of two at once, a constraint refuses one."""
    try:
        with transaction.atomic():
            row.save(force_insert=True)
    except IntegrityError:
        raise already_exists(resource_id) from None


def already_exists(resource_id: str) -> AlreadyExists:
    return AlreadyExists(f"Resource already exists in the project (resource={clipped(resource_id)}).", field="name")


def check_quota(noun: str, rows: QuerySet[Any], limit: int) -> None:
    """Raise ResourceExhausted at the limit. Two calls at the same time may exceed it by one, which does no harm."""
    if rows.count() >= limit:
        raise ResourceExhausted(f"Quota exceeded: there are {limit} {noun}, which is the maximum.")
