"""OpenTelemetry: the spans of a message are in its publisher's trace, and the endpoint continues it."""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator

import pytest

from pushhub.common import tracing
from tests.otlp import Collector, attributes
from tests.ports import wait_for
from tests.receiver import Receiver
from tests.restapi import Api
from tests.workers import Worker

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.any_database]

TOPIC = "projects/shop/topics/orders"
TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT_ID = "00f067aa0ba902b7"
RETRIES = {"minimumBackoff": "0.01s", "maximumBackoff": "0.01s"}


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    """Yield a collector to which this process and the processes that the test starts send their spans."""
    with Collector() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
        tracing.is_on.cache_clear()
        yield collector
        tracing.shut_down()
        monkeypatch.undo()
        tracing.is_on.cache_clear()


def publish(api: Api, traceparent: str) -> str:
    message = {"data": base64.b64encode(b"1").decode(), "attributes": {"googclient_traceparent": traceparent}}
    answer = api.post("topics/orders:publish", {"messages": [message]})
    [message_id] = answer.body["messageIds"]
    return str(message_id)


def test_the_spans_of_a_message_are_in_its_publishers_trace(api: Api, redis_url: str, collector: Collector) -> None:
    """Given an endpoint that fails once, when a traced message is pushed, then each step has a span of its trace."""
    api.create("topics/orders")
    with Receiver() as receiver, Worker(redis_url):
        receiver.script([503])
        config = {"topic": TOPIC, "pushConfig": {"pushEndpoint": receiver.url}, "retryPolicy": RETRIES}
        api.create("subscriptions/hello", config)
        message_id = publish(api, f"00-{TRACE_ID}-{PARENT_ID}-01")
        wait_for(lambda: len(collector.spans) == 4, what="the spans of a publish, a wait and two attempts")
        headers = [request.headers["traceparent"] for request in receiver.requests]
    assert {span.trace_id.hex() for span in collector.spans} == {TRACE_ID}
    published = collector.span("orders publish")
    assert published.parent_span_id.hex() == PARENT_ID
    assert attributes(published)["messaging.message.id"] == message_id
    assert attributes(published)["messaging.destination.name"] == TOPIC
    wait = collector.span("hello wait")
    pushes = sorted(
        (span for span in collector.spans if span.name == "hello push"), key=lambda span: span.start_time_unix_nano
    )
    assert {span.parent_span_id for span in (wait, *pushes)} == {published.span_id}
    assert [attributes(push)["http.response.status_code"] for push in pushes] == [503, 204]
    assert [attributes(push)["pushhub.attempt"] for push in pushes] == [1, 2]
    assert [push.status.message for push in pushes] == ["503", ""]
    assert published.start_time_unix_nano == wait.start_time_unix_nano <= wait.end_time_unix_nano
    assert wait.end_time_unix_nano == pushes[0].start_time_unix_nano <= pushes[0].end_time_unix_nano
    # The endpoint's spans become children of the attempt's.
    assert headers == [f"00-{TRACE_ID}-{push.span_id.hex()}-01" for push in pushes]
    assert len({span.span_id for span in collector.spans}) == 4
    assert collector.services == {"pushhub"}


def test_a_message_that_is_not_sampled_has_no_spans(api: Api, redis_url: str, collector: Collector) -> None:
    api.create("topics/orders")
    traceparent = f"00-{TRACE_ID}-{PARENT_ID}-00"
    with Receiver() as receiver, Worker(redis_url):
        api.create("subscriptions/hello", {"topic": TOPIC, "pushConfig": {"pushEndpoint": receiver.url}})
        publish(api, traceparent)
        wait_for(lambda: len(receiver.requests) == 1, what="the push")
        assert receiver.requests[0].headers["traceparent"] == traceparent
    tracing.shut_down()
    assert collector.spans == []


@pytest.mark.parametrize(
    ("environment", "is_on"),
    [
        ({}, False),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, True),
        ({"OTEL_TRACES_EXPORTER": "console"}, False),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:1"}, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_TRACES_EXPORTER": "none"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_SDK_DISABLED": "true"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, False),
    ],
)
def test_the_standard_variables_switch_traces_on(
    environment: dict[str, str], is_on: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    tracing.is_on.cache_clear()
    assert tracing.is_on() is is_on
    tracing.is_on.cache_clear()
