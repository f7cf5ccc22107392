"""How far pushes are counted into the metrics, as sentences in the reader's language, and sums of what is counted."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from datetime import datetime
from typing import Any, TypeVar

from django.conf import settings
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from deliveries.models import CountingLease
from deliveries.telemetry.series.coverage import Counting
from pushhub.common.clock import time_text
from pushhub.common.expiring import ExpiringCache
from pushhub.common.replica import is_replica_read

#: Why nothing is counted without a journal.
NOT_COUNTED = gettext_lazy("The journal is switched off (PUSHHUB_JOURNAL), so nothing is counted.")
Value = TypeVar("Value")

#: By what was added up, state of the counter, minute, and whether a replica was read.
_values: ExpiringCache[Hashable, Any] = ExpiringCache(seconds=15, max_entries=100)


def added_up_once(add_up: Callable[[], Value], *key: Hashable, state: Counting, now: datetime) -> Value:
    """Return what `add_up` returns for the key, which is called once for each state of the counter and each minute.

    The state must have been read before. Nothing is kept while no counter runs.
    """
    whole_key = (*key, state, now.replace(second=0, microsecond=0), is_replica_read())
    value: Value | None = _values.get(whole_key)
    if value is None:
        value = add_up()
        if state.runs:
            _values.put(whole_key, value)
    return value


def counting_level(state: Counting) -> str:
    """Return "good", or "warn" if no counter runs."""
    return "good" if state.runs else "warn"


def counting_text(state: Counting) -> str:
    """Return until when pushes are counted, and which counter counts."""
    if state.counted_to is None:
        return _("Nothing has been counted yet: no maintenance worker ran.") if settings.JOURNAL else str(NOT_COUNTED)
    words = {"time": time_text(state.counted_to)}
    if not state.runs:
        return _("Counting has stopped: counted up to %(time)s. No counter gives a sign of life.") % words
    if state.counter == CountingLease.Counter.SPARK:
        text = _("Counted up to %(time)s by Spark.") % words
    else:
        text = _("Counted up to %(time)s by the embedded counter.") % words
    if state.waiting:
        text += " " + _("Segments that wait: %(count)d.") % {"count": state.waiting}
    return text
