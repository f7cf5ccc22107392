"""The rows over which the console's pages are measured (bench/console.py)."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from bench.processes import say

SUBSCRIPTIONS, WAITING, ATTEMPTS = 10_000, 1_000_000, 10_000_000
TOPICS = 100
PROJECT = "bench"
#: The subscription that has half of the waiting messages, and all of the attempts that its charts show.
BUSY = "sub-0"
SEGMENT_ROWS = 20_000
#: Subscriptions whose endpoint fails.
FAILING = 20
#: Dead letters of the busy subscription.
DEAD_LETTERS = 100_000

#: Numbers from 0 on, as a table that both databases know.
NUMBERS = "WITH RECURSIVE n(i) AS (SELECT CAST(0 AS bigint) UNION ALL SELECT i + 1 FROM n WHERE i < %s - 1) "


def fill(folder: Path, *, scale: float) -> None:
    """Store all rows."""
    from django.conf import settings

    settings.JOURNAL = str(folder / "segments")
    for name, step in (
        ("subscriptions", lambda: _subscriptions(int(SUBSCRIPTIONS * scale))),
        ("waiting messages", lambda: _waiting(int(WAITING * scale), int(SUBSCRIPTIONS * scale))),
        ("metrics and gauges", lambda: _metrics(int(SUBSCRIPTIONS * scale))),
        ("attempts", lambda: _attempts(Path(settings.JOURNAL), int(ATTEMPTS * scale))),
        ("dead letters", lambda: _dead_letters(int(DEAD_LETTERS * scale))),
        ("lanes", _lanes),
        ("statistics", lambda: execute("ANALYZE", [])),
    ):
        began = time.monotonic()
        step()
        say(f"{name}: {time.monotonic() - began:.1f} s")


def _subscriptions(count: int) -> None:
    from subscriptions.models import Project, Subscription, Topic
    from subscriptions.services.topics import create_topic

    for number in range(TOPICS):
        create_topic(name=f"projects/{PROJECT}/topics/topic-{number}", topic={})
    project = Project.objects.get(project_id=PROJECT)
    topics = list(Topic.objects.order_by("pk"))
    Subscription.objects.bulk_create(
        (
            Subscription(
                project=project,
                subscription_id=f"sub-{number}",
                topic=topics[number % TOPICS],
                push_endpoint=f"https://endpoint-{number}.example.com/push",
            )
            for number in range(count)
        ),
        batch_size=2000,
    )


def _waiting(count: int, subscriptions: int) -> None:
    """Half of the deliveries for one subscription, the rest for all of them."""
    from subscriptions.models import Subscription, Topic

    busy = Subscription.objects.get(subscription_id=BUSY).pk
    result = "CASE i %% 3 WHEN 0 THEN '' ELSE '503' END"
    each = (
        f"{subscription}, 'local', i %% 3, NULL, {result}" for subscription in (busy, f"{busy} + i %% {subscriptions}")
    )
    insert_waiting(count // 2, topic=Topic.objects.earliest("pk").pk, deliveries=each)


def insert_waiting(count: int, *, topic: int, deliveries: Iterable[str]) -> None:
    """Insert messages of the last hour, and a delivery of each for each of these lists of SQL expressions of `i`."""
    from deliveries.rules.ids import first_id_at

    first = first_id_at(int((time.time() - 3000) * 1000))
    # Ids are 4,096 to a millisecond.
    step = max((2900 * 1000 << 12) // count, 1)
    data = b"x'7b7d'" if is_sqlite() else b"'\\x7b7d'"
    execute(
        "INSERT INTO deliveries_message (id, topic_id, region, data, attributes, ordering_key) "
        + NUMBERS
        + f"SELECT %s + i * %s, {topic}, 'local', {data.decode()}, '{{\"color\":\"red\"}}', '' FROM n",
        [count, first, step],
    )
    columns = "(message_id, subscription_id, region, attempts, last_attempt_at, last_result)"
    for values in deliveries:
        execute(
            f"INSERT INTO deliveries_delivery {columns} " + NUMBERS + f"SELECT %s + i * %s, {values} FROM n",
            [count, first, step],
        )


def _dead_letters(count: int) -> None:
    """The oldest waiting messages as dead letters of the busy subscription, with three reasons."""
    from subscriptions.models import Subscription

    busy = Subscription.objects.get(subscription_id=BUSY).pk
    columns = "message_id, subscription_id, source_id, attempts, result, replaced, is_kept"
    execute(
        f"INSERT INTO deliveries_deadletter ({columns}) "
        f"SELECT id, {busy}, id, 5, CASE id / 4096 %% 3 WHEN 0 THEN '503' WHEN 1 THEN '404' ELSE 'connect_failed' END, "
        "'', false FROM deliveries_message ORDER BY id LIMIT %s",
        [count],
    )


def execute(statement: str, parameters: list[int]) -> None:
    from django.db import connection

    # PostgreSQL takes the CTE before INSERT as well as after it; SQLite wants it before SELECT, as here.
    with connection.cursor() as cursor:
        cursor.execute(statement, parameters)


def _stored(at: datetime) -> str:
    """Return a time as the database stores it: SQLite compares texts, which have no offset."""
    from django.db import connection

    return str(connection.ops.adapt_datetimefield_value(at))


def is_sqlite() -> bool:
    from django.db import connection

    return connection.vendor == "sqlite"


def _metrics(subscriptions: int) -> None:
    """Ten minutes and twelve hours of every subscription; eight days of minutes and gauges of the busy one."""
    from deliveries.models import CountingLease, GaugeMinute, GaugeRound, MetricMinute
    from pushhub.common.clock import utcnow

    now = utcnow().replace(second=0, microsecond=0)
    minute, hour = timedelta(minutes=1), timedelta(hours=1)
    days = 8 * 1440
    resource = f"projects/{PROJECT}/subscriptions/{BUSY}"
    CountingLease.objects.create(counter="embedded", until=now + hour, counted_to=now, waiting=0)
    buckets = {str(bucket): 2 for bucket in range(400, 425)}
    sums = {"count": 50, "bytes": 5000, "latency_us_sum": 500_000, "latency_us_max": 20_000, "buckets": buckets}
    MetricMinute.objects.bulk_create(
        (
            MetricMinute(
                **{"project": PROJECT, "resource": resource, "event": "push", "at": now - back * minute},
                **{"response_class": kind, "response_code": code, "host": "endpoint.example.com", **sums},
            )
            for back in range(days)
            for kind, code in (("ack", 204), ("remote_server_5xx", 503), ("unreachable", 0))
        ),
        batch_size=2000,
    )
    gauges = {"undelivered": 100, "oldest_unacked_seconds": 3000, "outstanding": 3, "push_window": 10}
    GaugeMinute.objects.bulk_create(
        (
            GaugeMinute(project=PROJECT, resource=resource, at=now - back * minute, backoff_ms=2000, **gauges)
            for back in range(days)
        ),
        batch_size=2000,
    )
    GaugeRound.objects.bulk_create((GaugeRound(at=now - back * minute) for back in range(days)), batch_size=2000)
    others = f"'{PROJECT}', 'projects/{PROJECT}/subscriptions/sub-' || (i + 1)"
    histogram = json.dumps(buckets)
    columns = "project, resource, event, at, response_class, response_code, host, count, bytes, latency_us_sum"
    moments = [("metricminute", now - back * minute) for back in range(1, 11)]
    moments += [("metrichour", now.replace(minute=0) - back * hour) for back in range(1, 13)]
    for table, at in moments:
        execute(
            f"INSERT INTO deliveries_{table} ({columns}, latency_us_max, buckets) {NUMBERS}"
            f"SELECT {others}, 'push', '{_stored(at)}', 'ack', 204, "
            f"'endpoint.example.com', 50, 5000, 500000, 20000, '{histogram}' FROM n",
            [subscriptions - 1],
        )
    for back in range(3):
        _gauges(now - back * minute, subscriptions)


def _gauges(at: datetime, subscriptions: int) -> None:
    """Store gauges of all subscriptions but the busy one."""
    columns = (
        "project, resource, at, undelivered, oldest_unacked_seconds, outstanding, push_window, backoff_ms, unserved, "
        "open_streams"
    )
    execute(
        f"INSERT INTO deliveries_gaugeminute ({columns}) {NUMBERS}"
        f"SELECT '{PROJECT}', 'projects/{PROJECT}/subscriptions/sub-' || (i + 1), '{_stored(at)}', "
        f"100, 3000, 3, 10, CASE WHEN i < {FAILING} THEN 2000 ELSE 0 END, 0, 0 FROM n",
        [subscriptions - 1],
    )


def take_gauges() -> None:
    """Store gauges of this minute, as the maintenance worker does: after three minutes the pages would show none."""
    from deliveries.models import GaugeRound
    from pushhub.common.clock import utcnow
    from subscriptions.models import Subscription

    at = utcnow().replace(second=0, microsecond=0)
    if not GaugeRound.objects.filter(at=at).exists():
        _gauges(at, Subscription.objects.count())
        GaugeRound.objects.create(at=at)


def _attempts(folder: Path, count: int) -> None:
    """Segments of a day, as the journal seals them. The waiting messages were attempted in the last hour."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from deliveries.models import Message
    from deliveries.telemetry.journal.columns import EVENT
    from deliveries.telemetry.journal.files import segment_path
    from subscriptions.models import Subscription

    types = {"string": pa.string(), "timestamp": pa.timestamp("us", tz="UTC"), "int64": pa.int64(), "int32": pa.int32(),
             "int16": pa.int16()}  # fmt: skip
    schema = pa.schema([(name, types[kind]) for name, kind in EVENT])
    busy = Subscription.objects.get(subscription_id=BUSY)
    texts = [str(message_id) for message_id in Message.objects.order_by("pk").values_list("pk", flat=True)]
    segments = count // SEGMENT_ROWS
    now_ms = int(time.time() * 1000)
    same = {
        "event": "push", "project": PROJECT, "region": "local", "subscription": busy.name, "subscription_id": busy.pk,
        "topic": "", "topic_id": 0, "attempt": 1, "outcome": "nack", "response_class": "remote_server_5xx",
        "response_code": 503, "reason": "", "latency_us": 12_000, "bytes": 100, "host": "endpoint-0.example.com",
        "push_window": 3, "backoff_ms": 0, "worker": "push@bench", "schema_version": 1,
    }  # fmt: skip
    for number in range(segments):
        opened_ms = now_ms - 3_000_000 + number * 3_000_000 // segments
        at = datetime.fromtimestamp(opened_ms / 1000, UTC)
        # Each message has been attempted many times, and most attempts of a time are those of a few messages.
        own = texts[number * len(texts) // segments : (number + 1) * len(texts) // segments] or texts[:1]
        own = (own * (SEGMENT_ROWS // len(own) + 1))[:SEGMENT_ROWS]
        columns = {
            name: pa.repeat(pa.scalar(same.get(name), schema.field(name).type), SEGMENT_ROWS) for name in schema.names
        }
        moments = pa.repeat(pa.scalar(at, schema.field("time").type), SEGMENT_ROWS)
        columns |= {"time": moments, "publish_time": moments, "message_id": pa.array(own)}
        path = segment_path(folder, f"bench-1-{opened_ms:013d}-{number}")
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table([columns[name] for name in schema.names], schema=schema), path, compression="zstd")


def _lanes() -> None:
    """Lanes of failing subscriptions, as Redis has them; each waits with a thousand retries."""
    from deliveries.backlog.default import default_backlog
    from deliveries.backlog.records import PREFIX, Lane
    from deliveries.models import Delivery
    from subscriptions.models import Subscription
    from tests.lanes import lane_fields

    client = default_backlog().client
    for pk in Subscription.objects.order_by("pk").values_list("pk", flat=True)[:FAILING]:
        lane = Lane(pk, "local")
        client.hset(lane.state_key, mapping=lane_fields(window=10, round_peak=10))
        ids = (
            Delivery.objects.filter(subscription=pk).order_by("message_id").values_list("message_id", flat=True)[:1000]
        )
        client.zadd(f"{PREFIX}{lane.key}:z", {str(message_id): time.time() * 1000 + 60_000 for message_id in ids})
