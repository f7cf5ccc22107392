"""Adds the counters of `/metrics` to the tables of metrics each minute, where time series are read from.

The journal counts events for which it has a row. Other counters exist in Redis only: messages sent to pullers, requests
of pullers, sizes of messages, messages that a filter acknowledged. The transaction that stores a new sample also adds a
counter's growth since the last sample to the tables, so no growth is added twice. A counter that is smaller than its
last sample has started again at zero, because Redis lost it. Counters of deleted resources are removed from Redis.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from datetime import datetime, timedelta

from django.conf import settings

from deliveries.backlog.default import default_backlog
from deliveries.models import CounterSample
from deliveries.rules.histogram import SCALE
from deliveries.store.regionholds import is_alone
from deliveries.store.writelock import write_transaction
from deliveries.telemetry import kinds
from deliveries.telemetry.counting.ledger import Key, Sums, add_sums, only_writer
from deliveries.telemetry.series.series import MINUTE, floor
from deliveries.telemetry.sinks.counters import CounterValue, Resource, read_counters, remove_counters
from pushhub.common.clock import Clock, utcnow
from pushhub.common.names import subscription_name, topic_name
from subscriptions.models import Subscription, Topic

#: Counters of one transaction, which publishers on SQLite wait for.
CHUNK = 500

#: The project and the full name of each resource.
Names = dict[Resource, tuple[str, str]]


def sample_counters(*, clock: Clock = utcnow) -> int:
    """Add what counters have grown by; return how many have. May raise redis.RedisError and the database's errors.

    Values that were read before another process' sample would look like lost counters. So the samples are read before
    the counters, and a counter whose sample has changed since is left to the next call.
    """
    # Each Redis has counters of its own.
    own = "" if is_alone() else f"{settings.REGION}/"
    samples = dict(CounterSample.objects.filter(field__startswith=own).values_list("field", "value"))
    values: dict[str, CounterValue] = {}
    counted: set[Resource] = set()
    for value in read_counters(default_backlog().clients):
        counted.add(value.resource)
        if value.kind.is_sampled(value.labels):
            values[own + value.field] = replace(value, field=own + value.field)
    # Read after the counters, so one without a name is of a deleted resource, and of no new one.
    names = _names()
    _remove(counted - names.keys())
    values = {field: value for field, value in values.items() if value.resource in names}
    grown = [value for value in values.values() if samples.get(value.field) != value.value]
    # The growth is that of the minute before; most of it lies in the minute that began half a minute before that.
    at = floor(clock() - timedelta(seconds=30), MINUTE)
    for start in range(0, len(grown), CHUNK):
        _add(grown[start : start + CHUNK], samples, names, at)
    gone = [field for field in samples if field not in values]
    for start in range(0, len(gone), CHUNK):
        with write_transaction():
            rows = _locked(gone[start : start + CHUNK])
            unchanged = [field for field, row in rows.items() if row.value == samples[field]]
            CounterSample.objects.filter(field__in=unchanged).delete()
    return len(grown)


def _locked(fields: Sequence[str]) -> dict[str, CounterSample]:
    return CounterSample.objects.order_by("field").select_for_update().in_bulk(fields)


def _add(values: Sequence[CounterValue], samples: Mapping[str, int], names: Names, at: datetime) -> None:
    with only_writer():  # `rebuild` would write an hour without the growth of a minute that it has not seen
        # Only a row that exists can be locked.
        first = [CounterSample(field=value.field, value=0) for value in values if value.field not in samples]
        CounterSample.objects.bulk_create(first, ignore_conflicts=True)
        rows = _locked([value.field for value in values])
        values = [
            value for value in values if value.field in rows and rows[value.field].value == samples.get(value.field, 0)
        ]
        news: dict[Key, Sums] = {}
        for value in values:
            sample = rows[value.field].value
            growth = value.value - sample if value.value >= sample else value.value
            project, name = names[value.resource]
            # The first label is stored as the response class.
            label = value.labels[0] if value.kind.counter else ""
            key = (name, value.kind.sampled[0], at, label, 0, "")
            _count(news.setdefault(key, Sums(project)), value, growth)
        add_sums(news)
        CounterSample.objects.bulk_create(
            [CounterSample(field=value.field, value=value.value) for value in values],
            update_conflicts=True,
            unique_fields=["field"],
            update_fields=["value"],
        )


def _count(sums: Sums, value: CounterValue, growth: int) -> None:
    """Add the growth of a counter, which of a distribution is that of one bucket or of the sum."""
    if not value.kind.is_distribution:
        sums.count += growth
    elif value.labels[-1] == kinds.SUM:
        sums.latency_us_sum += growth
    else:
        bucket = int(value.labels[-1]) << (SCALE - kinds.DISTRIBUTION_SCALE)
        sums.count += growth
        sums.buckets[bucket] = sums.buckets.get(bucket, 0) + growth


def _names() -> Names:
    names: Names = {}
    for pk, project, name in Subscription.objects.values_list("id", "project__project_id", "subscription_id"):
        names["subscription", pk] = (project, subscription_name(project, name))
    for pk, project, name in Topic.objects.values_list("id", "project__project_id", "topic_id"):
        names["topic", pk] = (project, topic_name(project, name))
    return names


def _remove(gone: Set[Resource]) -> None:
    """Remove the counters of deleted resources."""
    if gone:
        clients = default_backlog().clients
        remove_counters(clients, [value.field for value in read_counters(clients) if value.resource in gone])
