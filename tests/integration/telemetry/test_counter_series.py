"""Counters that become time series: each growth is added once, under Google's names."""

from __future__ import annotations

import base64
import threading
from datetime import timedelta
from typing import Any
from urllib.parse import urlencode

import pytest
from django.db import connection
from django.db.models import Sum

from deliveries.backlog.default import default_backlog
from deliveries.models import CounterSample, Metric, MetricHour, MetricMinute
from deliveries.telemetry.counting import counterseries, ledger
from deliveries.telemetry.counting.counterseries import sample_counters
from deliveries.telemetry.series import openstreams
from deliveries.telemetry.series.gauges import take_gauges
from deliveries.telemetry.series.regiongauges import take_region_gauges
from deliveries.telemetry.sinks import counters as module
from pushhub.common.clock import utcnow
from pushhub.common.protojson import format_timestamp
from subscriptions.models import Subscription, Topic
from tests.integration.telemetry.conftest import Scrape
from tests.ports import wait_for
from tests.restapi import Api

pytestmark = pytest.mark.django_db(transaction=True)

TOPIC = "projects/shop/topics/orders"
PULL = {"maxMessages": 10, "returnImmediately": True}
FAILING = {"functionName": "fail", "code": "function fail(message, metadata) { throw new Error('no'); }"}


def publish(api: Api, *messages: dict[str, Any]) -> None:
    assert api.post("topics/orders:publish", {"messages": list(messages)}).status == 200


def message(size: int = 5, **attributes: str) -> dict[str, Any]:
    return {"data": base64.b64encode(b"x" * size).decode(), "attributes": attributes}


def sample() -> None:
    """Write this process's counters to Redis, and add them to the tables."""
    process_counters = module.counters()
    assert process_counters is not None
    process_counters.flush()
    sample_counters()


def series(api: Api, metric: str, *, newest: bool = False, **parameters: str) -> dict[str, Any]:
    """Return the sum of the points of each series of a metric, or the newest point, by its labels."""
    now = utcnow()
    query = {
        "filter": f'metric.type = "pubsub.googleapis.com/{metric}"',
        "interval.startTime": format_timestamp(now - timedelta(hours=1)),
        "interval.endTime": format_timestamp(now + timedelta(minutes=2)),
        "aggregation.alignmentPeriod": "60s",
        **parameters,
    }
    answer = api.get(f"/v3/projects/shop/timeSeries?{urlencode(query)}")
    assert answer.status == 200, answer.body
    values = {}
    for row in answer.body.get("timeSeries", []):
        labels = "/".join(row["metric"].get("labels", {}).values())
        points = [next(iter(point["value"].values())) for point in row["points"][: 1 if newest else None]]
        values[labels] = points[0] if isinstance(points[0], dict) else sum(map(int, points))
    return values


def test_the_calls_of_pullers_become_time_series(api: Api, scrape: Scrape) -> None:
    api.create("topics/orders")
    api.create("subscriptions/pull", {"topic": TOPIC})
    publish(api, message(), message(), message())
    leased = api.post("subscriptions/pull:pull", PULL).body["receivedMessages"]
    ack_ids = [row["ackId"] for row in leased]
    api.post("subscriptions/pull:modifyAckDeadline", {"ackIds": ack_ids, "ackDeadlineSeconds": 60})
    api.post("subscriptions/pull:acknowledge", {"ackIds": ack_ids[:2]})
    assert api.post("subscriptions/pull:pull", {"maxMessages": -1}).status == 400

    sample()

    assert series(api, "subscription/sent_message_count") == {"pull": 3}
    assert series(api, "subscription/mod_ack_deadline_message_count") == {"pull": 3}
    assert series(api, "subscription/mod_ack_deadline_request_count") == {"success/success": 1}
    assert series(api, "subscription/pull_ack_request_count") == {"success/success": 1}
    requests = series(api, "subscription/pull_request_count")
    assert requests == {"success/success": 1, "invalid/invalid_argument": 1}
    [latency] = series(api, "subscription/ack_latencies").values()
    assert latency["count"] == "2"
    values = scrape()
    labels = 'delivery_type="pull",project="shop",subscription="pull"'
    assert values[f"pushhub_subscription_ack_latency_seconds_count{{{labels}}}"] == 2
    assert (
        values[f'pushhub_subscription_ack_latency_seconds_bucket{{delivery_type="pull",le="+Inf",{labels[21:]}}}'] == 2
    )


def test_the_nack_of_a_failed_transform_counts_for_no_subscriber(api: Api, scrape: Scrape) -> None:
    """Given a transform that always fails, when a pull nacks its message, then no ack deadline counts as changed."""
    api.create("topics/orders")
    api.create("subscriptions/pull", {"topic": TOPIC, "messageTransforms": [{"javascriptUdf": FAILING}]})
    publish(api, message())

    assert api.post("subscriptions/pull:pull", PULL).body.get("receivedMessages", []) == []
    sample()

    assert series(api, "subscription/mod_ack_deadline_message_count") == {}
    assert series(api, "subscription/mod_ack_latencies") == {}


def test_the_counters_of_deleted_resources_are_forgotten(api: Api, scrape: Scrape) -> None:
    """Given counters of a topic and a subscription, when both are deleted, then neither Redis nor the samples keep any.

    No scrape of `/metrics` is needed for this: most deployments have none.
    """
    api.create("topics/orders")
    api.create("topics/bills")
    api.create("subscriptions/pull", {"topic": TOPIC})
    publish(api, message())
    assert api.post("topics/bills:publish", {"messages": [message()]}).status == 200
    api.post("subscriptions/pull:pull", PULL)
    sample()
    api.delete("subscriptions/pull")
    api.delete("topics/orders")
    sample()
    [kept] = Topic.objects.values_list("pk", flat=True)
    fields = [value.field for value in module.read_counters(default_backlog().clients)]
    assert fields
    for field in (*fields, *CounterSample.objects.values_list("field", flat=True)):
        kind, pk, *_ = field.split("|")
        assert (kind.partition("_")[0], int(pk)) == ("topic", kept), field


def test_growth_is_added_once_and_a_lost_counter_starts_again_at_zero(api: Api, scrape: Scrape) -> None:
    api.create("topics/orders")
    publish(api, message(100), message(3000))
    sample()
    sample_counters()
    assert series(api, "topic/send_request_count") == {"success/success": 1}
    [sizes] = series(api, "topic/message_sizes").values()
    assert (sizes["count"], sizes["mean"]) == ("2", 1550.0)
    assert series(api, "topic/byte_cost") == {"publish/success": 3100}
    publish(api, message(100))
    sample()
    assert series(api, "topic/byte_cost") == {"publish/success": 4100}
    default_backlog().client.delete(module.KEY)
    sample_counters()
    assert not CounterSample.objects.exists()
    publish(api, message(100))
    sample()
    assert series(api, "topic/send_request_count") == {"success/success": 3}
    assert series(api, "topic/byte_cost") == {"publish/success": 5100}
    values = scrape()
    topic = 'project="shop",topic="orders"'
    assert values[f'pushhub_topic_message_size_bytes_bucket{{le="64",{topic}}}'] == 0
    assert values[f'pushhub_topic_message_size_bytes_bucket{{le="256",{topic}}}'] == 1
    assert values[f"pushhub_topic_message_size_bytes_sum{{{topic}}}"] == 100


@pytest.mark.parametrize("is_first", [True, False])
def test_a_process_that_was_frozen_in_its_sample_adds_nothing_twice(
    api: Api, metrics_on: None, monkeypatch: pytest.MonkeyPatch, is_first: bool
) -> None:
    # Given counters that have been sampled before, or never
    api.create("topics/orders")
    publish(api, message(100))
    if not is_first:
        sample()
        publish(api, message(100))
    process_counters = module.counters()
    assert process_counters is not None
    process_counters.flush()
    read = counterseries.read_counters

    # When a process reads them and another one samples them, with what was published since, before it goes on
    def read_then_freeze(client: Any) -> Any:
        values = list(read(client))
        monkeypatch.setattr(counterseries, "read_counters", read)
        publish(api, message(100))
        sample()
        return values

    monkeypatch.setattr(counterseries, "read_counters", read_then_freeze)
    sample_counters()
    # Then each growth was added once
    assert series(api, "topic/send_request_count") == {"success/success": 2 if is_first else 3}


def test_messages_that_a_filter_excludes_count_as_acknowledged(api: Api, scrape: Scrape) -> None:
    api.create("topics/orders")
    api.create("subscriptions/red", {"topic": TOPIC, "filter": 'attributes.colour = "red"'})
    publish(api, message(colour="red"), message(colour="blue"), message())
    sample()
    assert series(api, "subscription/ack_message_count") == {"filter": 2}
    labels = 'delivery_type="filter",project="shop",subscription="red"'
    assert scrape()[f"pushhub_subscription_ack_message_count{{{labels}}}"] == 2


def test_a_refused_publish_is_counted_by_its_code(api: Api, metrics_on: None) -> None:
    schema = {"type": "AVRO", "definition": '{"type": "record", "name": "A", "fields": []}'}
    assert api.post("schemas?schemaId=an-order", schema).status == 200
    settings = {"schema": "projects/shop/schemas/an-order", "encoding": "JSON"}
    api.create("topics/orders", {"schemaSettings": settings})
    assert api.post("topics/orders:publish", {"messages": [message()]}).status == 400
    sample()
    assert series(api, "topic/send_request_count") == {"invalid/invalid_argument": 1}


def test_the_backlog_and_the_retained_messages_are_reported_by_region(api: Api, scrape: Scrape) -> None:
    api.create("topics/orders", {"messageRetentionDuration": "3600s"})
    api.create("subscriptions/pull", {"topic": TOPIC, "retainAckedMessages": True})
    publish(api, message(10), message(20), message(30))
    leased = api.post("subscriptions/pull:pull", {"maxMessages": 1, "returnImmediately": True}).body
    api.post("subscriptions/pull:acknowledge", {"ackIds": [leased["receivedMessages"][0]["ackId"]]})
    api.create("snapshots/monday", {"subscription": "projects/shop/subscriptions/pull"})

    take_region_gauges()

    assert series(api, "subscription/backlog_bytes") == {"": 50}
    assert series(api, "subscription/num_unacked_messages_by_region") == {"local": 2}
    assert series(api, "subscription/num_retained_acked_messages") == {"": 1}
    assert series(api, "subscription/retained_acked_bytes_by_region") == {"local": 10}
    assert series(api, "topic/num_retained_messages") == {"": 3}
    assert series(api, "topic/retained_bytes") == {"": 60}
    assert series(api, "snapshot/num_messages") == {"": 2}
    assert series(api, "snapshot/backlog_bytes") == {"": 50}
    # The messages of the subscription and of the snapshot.
    assert series(api, "topic/num_unacked_messages_by_region") == {"local": 4}
    values = scrape()
    labels = 'project="shop",region="local"'
    assert values[f'pushhub_subscription_backlog_bytes{{{labels},subscription="pull"}}'] == 50
    assert values[f'pushhub_topic_retained_bytes{{{labels},topic="orders"}}'] == 60
    assert values[f'pushhub_snapshot_num_messages{{{labels},snapshot="monday"}}'] == 2


def test_a_curve_comes_down_to_zero(api: Api, redis_url: str) -> None:
    api.create("topics/orders")
    api.create("subscriptions/pull", {"topic": TOPIC})
    publish(api, message(10))
    before = utcnow() - timedelta(minutes=1)
    take_region_gauges(clock=lambda: before)
    leased = api.post("subscriptions/pull:pull", PULL).body["receivedMessages"]
    api.post("subscriptions/pull:acknowledge", {"ackIds": [leased[0]["ackId"]]})
    take_region_gauges()
    maximum = {"aggregation.alignmentPeriod": "86400s", "aggregation.perSeriesAligner": "ALIGN_NEXT_OLDER"}
    # At midnight the two samples are of two days.
    assert series(api, "subscription/backlog_bytes", newest=True, **maximum) == {"": 0}


def test_open_streams_of_living_processes_are_added_up(
    api: Api, scrape: Scrape, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.create("topics/orders")
    api.create("subscriptions/pull", {"topic": TOPIC})
    pk = Subscription.objects.get().pk
    client = default_backlog().client
    client.hset(openstreams.KEY, "elsewhere-1", f'{{"at": {utcnow().timestamp()}, "streams": {{"{pk}": 2}}}}')
    client.hset(openstreams.KEY, "killed-1", f'{{"at": 1, "streams": {{"{pk}": 5}}}}')
    openstreams.opened(pk)
    openstreams.tell()
    take_gauges()
    assert series(api, "subscription/open_streaming_pulls") == {"ok": 3}
    assert scrape()['pushhub_subscription_open_streaming_pulls{project="shop",subscription="pull"}'] == 3
    openstreams.closed(pk)
    openstreams.tell()
    with monkeypatch.context() as on_a_host_whose_clock_is_ahead:
        on_a_host_whose_clock_is_ahead.setattr("time.time", lambda: 1e11)
        assert openstreams.open_streams(client) == {pk: 2}
    assert set(client.hkeys(openstreams.KEY)) == {b"elsewhere-1"}
    client.delete(openstreams.KEY)


def test_counters_of_each_regions_redis_are_added(api: Api, scrape: Scrape, settings: Any) -> None:
    api.create("topics/orders")
    api.create("subscriptions/pull", {"topic": TOPIC})
    publish(api, message(), message(), message())
    api.post("subscriptions/pull:pull", PULL)
    # Given two regions whose Redis have counted as much, then both count once
    settings.REGION_REDIS = True
    for settings.REGION, total in (("near", 3), ("far", 6), ("near", 6), ("far", 6)):
        sample()
        assert CounterSample.objects.filter(field__startswith=f"{settings.REGION}/").exists()
        assert series(api, "subscription/sent_message_count") == {"pull": total}


def test_a_rebuild_of_hours_keeps_what_is_sampled_meanwhile(
    api: Api, metrics_on: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given a rebuild that has read the minutes and not written the hour, when counters are sampled, then the hour has
    their growth in the end.
    """
    if connection.vendor != "postgresql":
        pytest.xfail("SQLite has one writer")
    api.create("topics/orders")
    publish(api, message())
    sample()
    publish(api, message())
    process_counters = module.counters()
    assert process_counters is not None
    process_counters.flush()
    sampler = threading.Thread(target=sample_and_leave)
    write = ledger._write

    def write_later(model: type[Metric], *args: Any, **kwargs: Any) -> None:
        if not sampler.ident:
            sampler.start()
            wait_for(lambda: not sampler.is_alive() or waiting_for_locks(), what="the sample")
        write(model, *args, **kwargs)

    monkeypatch.setattr(ledger, "_write", write_later)
    now = utcnow()
    ledger.rebuild(since=now - timedelta(minutes=5), until=now)
    sampler.join()

    of_requests = {"event": "send_request"}
    counts = {
        model: model.objects.filter(**of_requests).aggregate(n=Sum("count"))["n"]
        for model in (MetricMinute, MetricHour)
    }
    assert counts == {MetricMinute: 2, MetricHour: 2}


def sample_and_leave() -> None:
    try:
        sample_counters()
    finally:
        connection.close()


def waiting_for_locks() -> int:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT COUNT(*) FROM pg_locks JOIN pg_database d ON d.oid = database"
            " WHERE NOT granted AND d.datname = current_database()"
        )
        return int(cursor.fetchone()[0])
