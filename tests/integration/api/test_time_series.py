"""Metrics over REST, in the form of Cloud Monitoring."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlencode

import pytest

from deliveries.rules.histogram import bucket_of
from deliveries.telemetry.counting.ledger import Partial, Sums, add_partials
from deliveries.telemetry.kinds import KINDS
from subscriptions.models import Project
from tests.metricrows import add_gauge
from tests.restapi import Answer, Api

pytestmark = pytest.mark.django_db

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
PUSHES = "pubsub.googleapis.com/subscription/push_request_count"
LATENCIES = "pubsub.googleapis.com/subscription/push_request_latencies"


def count(
    minute: int, n: int, *, event: str = "push", kind: str = "ack", code: int = 200, name: str = "subscriptions/orders"
) -> None:
    """Count `n` events of 1000 µs each, `minute` minutes past noon."""
    sums = Sums("shop", n, 10 * n, 1000 * n, 1000, {bucket_of(1000): n})
    key = (f"projects/shop/{name}", event, NOON + timedelta(minutes=minute), kind, code, "example.com")
    add_partials([Partial(f"{minute}{event}{kind}{code}{name}", key, sums)], job="test")


def ask(api: Api, metric: str, more: str = "", *, project: str = "shop", **query: str) -> Answer:
    """Ask for the hour after noon."""
    parameters = {
        "filter": f'metric.type = "{metric}"{more}',
        "interval.startTime": "2026-11-20T12:00:00Z",
        "interval.endTime": "2026-11-20T13:00:00Z",
        **{name.replace("__", "."): value for name, value in query.items()},
    }
    return api.get(f"/v3/projects/{project}/timeSeries?{urlencode(parameters)}")


def values(series: dict[str, Any]) -> list[str]:
    return [next(iter(point["value"].values())) for point in series["points"]]


@pytest.fixture(autouse=True)
def _shop(db: None) -> None:
    Project.objects.create(project_id="shop", number=4711)


def test_pushes_are_counted_by_response(api: Api) -> None:
    """Given acks and failures, when the pushes are asked for, then each response has a series, newest first."""
    count(1, 5)
    count(2, 7)
    count(2, 1, kind="remote_server_5xx", code=503)
    count(2, 2, kind="unreachable", code=0)

    series = ask(api, PUSHES).body["timeSeries"]

    assert series[0] == {
        "metric": {
            "type": PUSHES,
            "labels": {"response_class": "ack", "response_code": "200", "delivery_type": "push"},
        },
        "resource": {
            "type": "pubsub_subscription",
            "labels": {"project_id": "shop", "subscription_id": "orders"},
        },
        "metricKind": "DELTA",
        "valueType": "INT64",
        "unit": "1",
        "points": [
            {
                "interval": {"startTime": "2026-11-20T12:02:00Z", "endTime": "2026-11-20T12:03:00Z"},
                "value": {"int64Value": "7"},
            },
            {
                "interval": {"startTime": "2026-11-20T12:01:00Z", "endTime": "2026-11-20T12:02:00Z"},
                "value": {"int64Value": "5"},
            },
        ],
    }
    labels = [entry["metric"]["labels"] for entry in series]
    assert [(label["response_class"], label["response_code"]) for label in labels] == [
        ("ack", "200"),
        ("remote_server_5xx", "503"),
        ("unreachable", "unreachable"),
    ]


def test_what_both_the_journal_and_a_counter_have_counts_once(api: Api) -> None:
    """Given messages that a transform filtered, which are in both, when acks are asked for, then each counts once."""
    count(1, 3, event="filter", code=0)
    count(1, 4, event="acked", kind="filter", code=0)

    [series] = ask(api, "pubsub.googleapis.com/subscription/ack_message_count").body["timeSeries"]

    assert (series["metric"]["labels"], values(series)) == ({"delivery_type": "filter"}, ["4"])


def test_latencies_are_a_distribution(api: Api) -> None:
    """Given pushes of 1 ms, when their latencies are asked for, then all lie in the bucket around 1000 µs."""
    count(1, 5)

    [series] = ask(api, LATENCIES).body["timeSeries"]

    distribution = series["points"][0]["value"]["distributionValue"]
    options = distribution["bucketOptions"]["exponentialBuckets"]
    assert (distribution["count"], distribution["mean"]) == ("5", 1000.0)
    assert (series["valueType"], series["unit"]) == ("DISTRIBUTION", "us")
    place = distribution["bucketCounts"].index("5")
    assert options["growthFactor"] ** (place - 1) < 1000 <= options["growthFactor"] ** place
    assert sum(map(int, distribution["bucketCounts"])) == 5


@pytest.mark.parametrize(
    ("aligner", "expected"),
    [("ALIGN_SUM", ["15", "5"]), ("ALIGN_RATE", [15 / 600, 5 / 600]), ("ALIGN_DELTA", ["15", "5"])],
)
def test_points_are_aligned(api: Api, aligner: str, expected: list[Any]) -> None:
    """Given pushes of three minutes, when they are asked for by ten minutes, then those that lie together are added."""
    count(1, 5)
    count(11, 7)
    count(19, 8)

    query = {"aggregation__alignmentPeriod": "600s", "aggregation__perSeriesAligner": aligner}
    [series] = ask(api, PUSHES, **query).body["timeSeries"]

    assert values(series) == expected


def test_percentiles_come_from_the_distribution(api: Api) -> None:
    count(1, 5)

    [series] = ask(api, LATENCIES, aggregation__perSeriesAligner="ALIGN_PERCENTILE_99").body["timeSeries"]

    assert values(series)[0] == pytest.approx(1000, rel=0.012)
    assert (series["metricKind"], series["valueType"]) == ("GAUGE", "DOUBLE")


def test_hours_come_from_the_table_of_hours(api: Api) -> None:
    """Given minutes that have been deleted, when hours are asked for, then the hours are still there."""
    from deliveries.models import MetricMinute

    count(1, 5)
    count(59, 6)
    MetricMinute.objects.all().delete()

    assert ask(api, PUSHES).body == {}
    [series] = ask(api, PUSHES, aggregation__alignmentPeriod="3600s").body["timeSeries"]
    assert values(series) == ["11"]


def test_the_interval_chooses_the_points_that_end_in_it(api: Api) -> None:
    count(-1, 1)
    count(0, 2)
    count(59, 4)
    count(60, 8)

    [series] = ask(api, PUSHES).body["timeSeries"]

    assert values(series) == ["4", "2"]


def test_points_are_of_whole_periods(api: Api) -> None:
    """Given an interval that begins and ends within a period, then its points are those of periods that end in it."""
    for minute in (1, 3, 29, 31):
        count(minute, 5)
    times = {"interval__startTime": "2026-11-20T12:02:00Z", "interval__endTime": "2026-11-20T12:32:00Z"}

    [series] = ask(api, PUSHES, aggregation__alignmentPeriod="300s", **times).body["timeSeries"]

    assert values(series) == ["5", "10"]
    ends = [point["interval"]["endTime"] for point in series["points"]]
    assert ends == ["2026-11-20T12:30:00Z", "2026-11-20T12:05:00Z"]


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        (' AND resource.labels.subscription_id = "orders"', ["orders"]),
        (' AND resource.labels.subscription_id = starts_with("or")', ["orders"]),
        (' AND resource.labels.subscription_id != "orders"', ["bills"]),
        (' AND metric.labels.response_class = "ack"', ["bills", "orders"]),
        (' AND metric.labels.response_class != "ack"', []),
        (' AND resource.type = "pubsub_topic"', []),
        (' AND project = "shop"', ["bills", "orders"]),
    ],
)
def test_a_filter_chooses_series(api: Api, more: str, expected: list[str]) -> None:
    count(1, 1)
    count(1, 1, name="subscriptions/bills")

    listed = ask(api, PUSHES, more).body.get("timeSeries", [])

    assert [series["resource"]["labels"]["subscription_id"] for series in listed] == expected


def test_acks_and_nacks_include_pushes_and_pulls(api: Api) -> None:
    count(1, 3)
    count(1, 2, kind="remote_server_4xx", code=404)
    count(1, 4, event="pull", code=0)
    count(1, 1, event="pull", kind="nack", code=0)

    acks = ask(api, "pubsub.googleapis.com/subscription/ack_message_count").body["timeSeries"]
    nacks = ask(api, "pubsub.googleapis.com/subscription/nack_requests").body["timeSeries"]

    assert [(series["metric"]["labels"]["delivery_type"], values(series)) for series in acks] == [
        ("pull", ["4"]),
        ("push", ["3"]),
    ]
    assert [(series["metric"]["labels"]["delivery_type"], values(series)) for series in nacks] == [
        ("pull", ["1"]),
        ("push", ["2"]),
    ]


def test_publishes_count_for_the_topic(api: Api) -> None:
    count(1, 9, event="publish", kind="success", code=0, name="topics/orders")

    [series] = ask(api, "pubsub.googleapis.com/topic/send_message_operation_count").body["timeSeries"]

    assert series["resource"] == {"type": "pubsub_topic", "labels": {"project_id": "shop", "topic_id": "orders"}}
    assert values(series) == ["9"]


@pytest.mark.parametrize(
    ("metric", "aligner", "expected"),
    [
        ("pubsub.googleapis.com/subscription/num_undelivered_messages", "", "3"),
        ("pubsub.googleapis.com/subscription/num_outstanding_messages", "ALIGN_MAX", "5"),
        ("pubsub.googleapis.com/subscription/oldest_unacked_message_age", "ALIGN_MEAN", 15.0),
        ("custom.googleapis.com/pushhub/subscription/push_window", "ALIGN_MIN", "100"),
        ("custom.googleapis.com/pushhub/subscription/push_backoff", "", "0"),
    ],
)
def test_gauges_show_the_state_of_a_subscription(api: Api, metric: str, aligner: str, expected: Any) -> None:
    """Given two minutes of gauges, when they are asked for by the hour, then the aligner combines them."""
    for minute, (undelivered, outstanding, age, window) in enumerate([(8, 5, 20, 100), (3, 4, 10, 101)]):
        figures = {"undelivered": undelivered, "outstanding": outstanding, "push_window": window}
        at = NOON + timedelta(minutes=minute)
        add_gauge("projects/shop/subscriptions/orders", at=at, oldest_unacked_seconds=age, **figures)

    query = {"aggregation__alignmentPeriod": "3600s", "aggregation__perSeriesAligner": aligner}
    [series] = ask(api, metric, **query).body["timeSeries"]

    assert (series["metricKind"], values(series)) == ("GAUGE", [expected])


def test_headers_have_no_points(api: Api) -> None:
    count(1, 1)

    [series] = ask(api, PUSHES, view="HEADERS").body["timeSeries"]

    assert "points" not in series


def test_pages_have_whole_series(api: Api) -> None:
    """Given three series of two points, when pages of three points are asked for, then each has a whole series."""
    for name in ("a", "b", "c"):
        count(1, 1, name=f"subscriptions/{name}")
        count(2, 1, name=f"subscriptions/{name}")
    seen, token = [], ""
    while True:
        page = ask(api, PUSHES, pageSize="3", pageToken=token).body
        seen += [
            (series["resource"]["labels"]["subscription_id"], len(series["points"])) for series in page["timeSeries"]
        ]
        token = page.get("nextPageToken", "")
        if not token:
            break

    assert seen == [("a", 2), ("b", 2), ("c", 2)]
    assert ask(api, PUSHES, pageToken="x").fields == ["pageToken"]


def test_a_project_shows_its_own(api: Api) -> None:
    Project.objects.create(project_id="other", number=4712)
    count(1, 1)

    assert ask(api, PUSHES, project="other").body == {}
    assert ask(api, PUSHES, project="4711").body["timeSeries"]


@pytest.mark.any_database
@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({"filter": 'metric.type = "none"'}, "filter"),
        ({"filter": 'project = "shop"'}, "filter"),
        ({"filter": f'metric.type = "{PUSHES}" AND metric.type = "x"'}, "filter"),
        ({"interval__endTime": "yesterday"}, "interval.endTime"),
        ({"interval__startTime": "2026-11-21T00:00:00Z"}, "interval"),
        ({"aggregation__alignmentPeriod": "90s"}, "aggregation.alignmentPeriod"),
        ({"aggregation__alignmentPeriod": "315576000000s"}, "aggregation.alignmentPeriod"),
        ({"aggregation__perSeriesAligner": "ALIGN_MAX"}, "aggregation.perSeriesAligner"),
        ({"aggregation__crossSeriesReducer": "REDUCE_SUM"}, "aggregation.crossSeriesReducer"),
        ({"pageSize": "-1"}, "pageSize"),
    ],
)
def test_a_bad_parameter_is_refused_by_name(api: Api, query: dict[str, str], field: str) -> None:
    count(1, 1)

    answer = ask(api, PUSHES, **query)

    assert (answer.status, answer.fields) == (400, [field])


@pytest.mark.parametrize("metric", [PUSHES, "pubsub.googleapis.com/subscription/num_undelivered_messages"])
@pytest.mark.parametrize("period", ["60s", "86400s", "62899200s"])
@pytest.mark.parametrize("time", ["0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999999Z"])
def test_any_time_may_be_asked_for(api: Api, metric: str, period: str, time: str) -> None:
    count(1, 5)
    times = {"interval__startTime": time, "interval__endTime": "9999-12-31T23:59:59.999999Z"}
    for interval in (
        times,
        {**times, "interval__endTime": time},
        {"interval__endTime": time, "interval__startTime": ""},
    ):
        assert ask(api, metric, aggregation__alignmentPeriod=period, **interval).status == 200


def test_metrics_need_a_permission(api: Api) -> None:
    """Given a caller without a role, when it asks for metrics, then it is refused, with the permission's name."""
    api.sign_in("nobody@example.com")

    answer = ask(api, PUSHES)

    assert answer.status == 403
    assert "monitoring.timeSeries.list" in answer.error["message"]


def test_every_metric_can_be_asked_for(api: Api) -> None:
    assert all(ask(api, name).status == 200 for name in KINDS)


def test_descriptors_describe_every_metric(api: Api) -> None:
    listed = api.get("/v3/projects/shop/metricDescriptors").body["metricDescriptors"]
    assert [metric["type"] for metric in listed] == list(KINDS)
    descriptor = api.get(f"/v3/projects/shop/metricDescriptors/{LATENCIES}").body
    assert descriptor == {
        "name": f"projects/shop/metricDescriptors/{LATENCIES}",
        "type": LATENCIES,
        "metricKind": "DELTA",
        "valueType": "DISTRIBUTION",
        "unit": "us",
        "description": "Time from request to the end of an attempt.",
        "labels": [{"key": "response_code"}, {"key": "delivery_type"}],
        "monitoredResourceTypes": ["pubsub_subscription"],
    }
    assert descriptor in listed
    missing = api.get("/v3/projects/shop/metricDescriptors/pubsub.googleapis.com/nothing")
    assert (missing.status, missing.error["status"]) == (404, "NOT_FOUND")


def test_sent_messages_and_expired_ack_deadlines_of_pushes(api: Api) -> None:
    count(1, 5)
    count(1, 2, kind="deadline_exceeded", code=0)
    [sent] = ask(api, "pubsub.googleapis.com/subscription/sent_message_count").body["timeSeries"]
    assert sent["metric"]["labels"] == {"delivery_type": "push"}
    assert values(sent) == ["7"]
    [expired] = ask(api, "pubsub.googleapis.com/subscription/expired_ack_deadlines_count").body["timeSeries"]
    assert values(expired) == ["2"]
