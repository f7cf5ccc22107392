"""What is added up from metrics and gauges for pages that ask every two seconds, for each viewer."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from datetime import datetime
from typing import Any, TypeVar

from deliveries.telemetry.series.coverage import Counting
from pushhub.common.expiring import ExpiringCache
from pushhub.common.replica import is_replica_read

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
