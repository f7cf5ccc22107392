"""When subscriptions were last used, to the hour, for the expiration policy (docs/spec-messages.md#expiration)."""

from __future__ import annotations

import time
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from django.db import transaction
from django.db.models import F, Value
from django.db.models.functions import Greatest

from deliveries.store.writelock import write_transaction
from pushhub.common.clock import utcnow
from subscriptions.models import Subscription
from subscriptions.services.subscriptions import delete_subscription

#: No expiration policy is shorter than a day.
NOTED_SECONDS = 3600.0

_noted: dict[int, float] = {}


def note_activity(subscription_ids: Iterable[int]) -> None:
    """Note a pull or an acknowledged push. A process writes at most once per subscription and hour."""
    now = time.time()  # the monotonic clock leaves out what a machine sleeps, which may be most of its days
    due = [pk for pk in subscription_ids if abs(now - _noted.get(pk, 0)) >= NOTED_SECONDS]
    if due:
        with write_transaction(durable=False):
            # A clock that was behind for a while must not make a subscription seem unused for so long.
            Subscription.objects.filter(pk__in=due).update(active_at=Greatest("active_at", Value(utcnow())))
        _noted.update(dict.fromkeys(due, now))


def delete_expired_subscriptions() -> int:
    """Delete the subscriptions that were unused for longer than their policy allows. Return their number."""
    rows = Subscription.objects.exclude(expiration_ttl_seconds=None).select_related("project")
    rows = rows.annotate(used_at=Greatest(F("active_at"), F("updated_at")))
    now = utcnow()
    # No policy is shorter than a day, so this condition keeps most rows in the database.
    rows = rows.filter(used_at__lt=now - timedelta(days=1) + timedelta(seconds=1))

    def is_expired(row: Any) -> bool:
        # A policy may be longer than the time since the year 1, which a datetime can't be before.
        return bool((now - row.used_at).total_seconds() > (row.expiration_ttl_seconds or 0))

    deleted = 0
    for pk in [row.pk for row in rows.iterator() if is_expired(row)]:
        with transaction.atomic():
            # Somebody may have used, changed or deleted it meanwhile.
            row = rows.filter(pk=pk).select_for_update(of=("self",)).first()
            if row is not None and is_expired(row):
                delete_subscription(name=row.name)
                deleted += 1
    return deleted
