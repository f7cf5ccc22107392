"""The audit log: who changed what in the control plane, from where, before and after.

Saving or deleting a row writes its entry (receivers.py) in the same transaction, so a change that no service announces
is logged as well. `origin` has the caller and the address; each surface sets it.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

from django.conf import settings
from django.core.serializers.json import DjangoJSONEncoder
from django.db.models import F, Model

from pushhub.common.clock import utcnow
from pushhub.common.principals import OPERATOR
from subscriptions.iam import tree
from subscriptions.models.iam import AuditEntry, Policy
from subscriptions.quotas import DATA_METHODS

#: Columns that hold secrets or digests of secrets.
SECRET_COLUMNS = frozenset({"private_key", "digest", "token_digest", "password", "certificate", "public_key"})
#: Columns that other columns, or the entry itself, make redundant.
DULL_COLUMNS = frozenset(
    {"compiled", "updated_at", "created_at", "generation", "last_login", "last_used_at", "active_at"}
)
#: Push attributes that are no secrets. Others may be.
OPEN_ATTRIBUTES = ("x-goog-version", "x-pushhub-")
HIDDEN = "…"
#: The prefixes of methods that change nothing.
READING = ("Get", "List", "Test", "Validate")
MAX_TEXT = 2000
MAX_CALLER = 400
#: How many entries the denied calls of one caller may create in a period. Later calls are only counted.
DENIED_ENTRIES = 50
DENIED_PERIOD = datetime.timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Origin:
    """The origin of a change: the caller, its address, the surface and the method."""

    caller: str = OPERATOR.member
    surface: str = "command"
    address: str = ""
    method: str = ""


#: Without a surface, a change comes from a command or from the service itself.
COMMAND = Origin()
_origin: ContextVar[Origin] = ContextVar("origin", default=COMMAND)


@contextmanager
def origin(current: Origin) -> Iterator[None]:
    """Set the origin of the changes in this block."""
    token = _origin.set(current)
    try:
        yield
    finally:
        _origin.reset(token)


def refine_origin(**known: str) -> None:
    """Complete the origin when more is known: the caller after authentication, the method after routing."""
    _origin.set(replace(_origin.get(), **known))


def written(row: Model, *, action: str, before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> None:
    """Log a change of a row, unless nothing that the log shows has changed."""
    if before != after:
        _store(action=action, kind=type(row).__name__, resource=resource_name(row), before=before, after=after)


def carried_out(*, method: str, row: Model, after: Mapping[str, Any]) -> None:
    """Log a call of an administrative method that changes no row of the control plane."""
    refine_origin(method=method)
    _store(action=method.rpartition(".")[2], kind=type(row).__name__, resource=resource_name(row), after=after)


def denied(*, method: str, resource: str) -> None:
    """Log a denied call of an administrative method.

    The entries per caller are bounded. The last of them counts the calls that come after it.
    """
    if method in DATA_METHODS or method.rpartition(".")[2].startswith(READING):
        return
    refine_origin(method=method)
    recent = AuditEntry.objects.filter(
        caller=_origin.get().caller[:MAX_CALLER], outcome=AuditEntry.Outcome.DENIED, at__gt=utcnow() - DENIED_PERIOD
    )
    newest = list(recent.order_by("-at", "-id").values_list("pk", flat=True)[:DENIED_ENTRIES])
    if len(newest) == DENIED_ENTRIES:
        AuditEntry.objects.filter(pk=newest[0]).update(left_out=F("left_out") + 1)
        return
    _store(action=method.rpartition(".")[2], kind="", resource=resource, outcome=AuditEntry.Outcome.DENIED)


def resource_name(row: Model) -> str:
    """Return the full name of a changed row. A policy has the name of its resource."""
    if isinstance(row, Policy):
        owner = tree.resource_of(row.kind, row.resource_pk)
        return tree.name_of(owner) if owner is not None else str(row)
    return str(getattr(row, "name", "") or f"{type(row).__name__}/{row}")


def picture(row: Model) -> dict[str, Any]:
    """Return a row's columns as the log shows them: without secrets, and in JSON form."""
    columns = {}
    for column in row._meta.concrete_fields:
        if column.primary_key or column.name in DULL_COLUMNS:
            continue
        value = getattr(row, column.attname)
        if column.name in SECRET_COLUMNS:
            value = HIDDEN if value else ""
        elif column.is_relation:
            related = getattr(row, column.name, None)
            value = resource_name(related) if related is not None else None
        columns[column.name] = _shown(column.name, value)
    return {name: value for name, value in columns.items() if value not in (None, "", [], {})}


def sweep() -> int:
    """Remove entries older than AUDIT_DAYS. Returns how many."""
    before = utcnow() - datetime.timedelta(days=settings.AUDIT_DAYS)
    return AuditEntry.objects.filter(at__lt=before).delete()[0]


def _shown(name: str, value: Any) -> Any:
    if name == "push_attributes":
        return {key: text if key.startswith(OPEN_ATTRIBUTES) else HIDDEN for key, text in value.items()}
    if isinstance(value, str):
        return _without_query(value)[:MAX_TEXT]
    return json.loads(json.dumps(value, cls=DjangoJSONEncoder))


def _without_query(text: str) -> str:
    """Remove the query of a URL, which may contain shared secrets."""
    before, mark, _ = text.partition("?")
    return before + mark + HIDDEN if "://" in before and mark else text


def _store(*, action: str, resource: str, **columns: Any) -> None:
    who = _origin.get()
    AuditEntry.objects.create(
        caller=who.caller[:MAX_CALLER],
        address=who.address[:64],
        surface=who.surface,
        method=who.method[:200],
        action=action[:100],
        resource=resource[:700].replace("\0", ""),  # strangers choose it, and PostgreSQL holds none
        **columns,
    )
