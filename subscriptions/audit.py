"""The audit log: who changed what in the control plane, from where, before and after.

Entries are written from the rows themselves as they are saved and deleted (receivers.py), in the same transaction: a
change that no service announces is logged all the same. Who and where stand in `origin`, which each surface sets.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from django.conf import settings
from django.core.serializers.json import DjangoJSONEncoder
from django.db.models import F, ManyToManyField, Model

from pushhub.common.clock import utcnow
from pushhub.common.principals import OPERATOR
from subscriptions.iam import tree
from subscriptions.models.iam import AuditEntry, Policy

#: Columns that hold secrets, or nothing but a secret's digest.
SECRET_COLUMNS = frozenset({"private_key", "digest", "token_digest", "password", "certificate", "public_key"})
#: Said of the row by other columns, or by the entry itself.
DULL_COLUMNS = frozenset(
    {"compiled", "updated_at", "created_at", "generation", "last_login", "last_used_at", "active_at"}
)
#: Attributes of a push configuration that are no secret: the others may well be one.
OPEN_ATTRIBUTES = ("x-goog-version", "x-pushhub-")
HIDDEN = "…"
#: Calls that move messages, which the log leaves out (pubsub-spec.md, section 5.3).
DATA_METHODS = frozenset(
    {
        "google.pubsub.v1.Publisher.Publish",
        "google.pubsub.v1.Subscriber.Pull",
        "google.pubsub.v1.Subscriber.StreamingPull",
        "google.pubsub.v1.Subscriber.Acknowledge",
        "google.pubsub.v1.Subscriber.ModifyAckDeadline",
    }
)
#: What the names of methods that change nothing begin with.
READING = ("Get", "List", "Test", "Validate")
MAX_TEXT = 2000
MAX_CALLER = 400
#: Entries that the denied calls of one caller may make in a period; others are only counted.
DENIED_ENTRIES = 50
DENIED_PERIOD = datetime.timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Origin:
    """Who asks for a change: a member, from an address, through a surface, by a method."""

    caller: str = OPERATOR.member
    surface: str = "command"
    address: str = ""
    method: str = ""


#: A process that nobody asked through a surface is a command, or the service itself.
COMMAND = Origin()
_origin: ContextVar[Origin] = ContextVar("origin", default=COMMAND)


@contextmanager
def origin(found: Origin) -> Iterator[None]:
    """Changes in this block are asked for by `found`."""
    token = _origin.set(found)
    try:
        yield
    finally:
        _origin.reset(token)


def origin_refine(**known: str) -> None:
    """Say more of who asks, once it is known: the caller after authentication, the method after routing."""
    _origin.set(replace(_origin.get(), **known))


def written(row: Model, *, action: str, before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> None:
    """Log a change of a row; one that changes nothing worth telling is none."""
    if before != after:
        _store(action=action, kind=type(row).__name__, resource=resource_name(row), before=before, after=after)


def denied(*, method: str, resource: str) -> None:
    """Log a call that its caller was not allowed, if it is administration.

    A caller gets a bounded number of entries; the last of them counts the calls that come after it.
    """
    if method in DATA_METHODS or method.rpartition(".")[2].startswith(READING):
        return
    origin_refine(method=method)
    recent = AuditEntry.objects.filter(
        caller=_origin.get().caller[:MAX_CALLER], outcome=AuditEntry.Outcome.DENIED, at__gt=utcnow() - DENIED_PERIOD
    )
    newest = list(recent.order_by("-at", "-id").values_list("pk", flat=True)[:DENIED_ENTRIES])
    if len(newest) == DENIED_ENTRIES:
        AuditEntry.objects.filter(pk=newest[0]).update(left_out=F("left_out") + 1)
        return
    _store(action=method.rpartition(".")[2], kind="", resource=resource, outcome=AuditEntry.Outcome.DENIED)


def resource_name(row: Model) -> str:
    """The full name of what changed; for a policy, of what it is the policy of."""
    if isinstance(row, Policy):
        owner = tree.resource_of(row.kind, row.resource_pk)
        return tree.name_of(owner) if owner is not None else str(row)
    return str(getattr(row, "name", "") or f"{type(row).__name__}/{row}")


def picture(row: Model) -> dict[str, Any]:
    """A row's columns as the log shows them: without secrets, and fit for JSON."""
    found = {}
    for column in row._meta.concrete_fields:
        if column.primary_key or column.name in DULL_COLUMNS:
            continue
        value = getattr(row, column.attname)
        if column.name in SECRET_COLUMNS:
            value = HIDDEN if value else ""
        elif column.is_relation:
            related = getattr(row, column.name, None)
            value = resource_name(related) if related is not None else None
        found[column.name] = _shown(column.name, value)
    return {name: value for name, value in found.items() if value not in (None, "", [], {})}


def members_of(row: Model, relation: ManyToManyField[Any, Any]) -> list[str]:
    return sorted(resource_name(related) for related in getattr(row, relation.name).all())


def sweep() -> int:
    """Remove entries older than the setting says; returns how many."""
    before = utcnow() - datetime.timedelta(days=settings.AUDIT_DAYS)
    return AuditEntry.objects.filter(at__lt=before).delete()[0]


def _shown(name: str, value: Any) -> Any:
    if name == "push_attributes":
        return {key: text if key.startswith(OPEN_ATTRIBUTES) else HIDDEN for key, text in value.items()}
    if isinstance(value, str):
        return _without_query(value)[:MAX_TEXT]
    return json.loads(json.dumps(value, cls=DjangoJSONEncoder))


def _without_query(text: str) -> str:
    """A URL's query is where people put shared secrets."""
    if "://" not in text or "?" not in text:
        return text
    parts = urlsplit(text)
    return urlunsplit(parts._replace(query=HIDDEN))


def _store(
    *,
    action: str,
    kind: str,
    resource: str,
    before: Mapping[str, Any] | None = None,
    after: Mapping[str, Any] | None = None,
    outcome: str = AuditEntry.Outcome.DONE,
) -> None:
    who = _origin.get()
    AuditEntry.objects.create(
        caller=who.caller[:MAX_CALLER],
        address=who.address[:64],
        surface=who.surface,
        method=who.method[:200],
        action=action[:100],
        kind=kind,
        resource=resource[:700],
        before=before,
        after=after,
        outcome=outcome,
    )
