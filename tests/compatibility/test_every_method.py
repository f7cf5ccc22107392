"""Every public method of the Python client's two classes is called. A test fails if a new version adds a method."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
from google.api_core import exceptions
from google.cloud import pubsub_v1
from google.protobuf.timestamp_pb2 import Timestamp

from subscriptions.services.subscriptions import create_subscription
from subscriptions.services.topics import create_topic
from tests.grpcservers import GrpcServer

TOPIC = "projects/shop/topics/orders"
SUBSCRIPTION = "projects/shop/subscriptions/worker"
SNAPSHOT = "projects/shop/snapshots/before"
#: These methods build clients and names, and send no request.
LOCAL = ("from_", "common_", "parse_", "get_mtls", "_")
LOCAL_ENDINGS = ("_path",)


def public_methods(kind: type) -> set[str]:
    """Return the public methods that send a request to the server."""
    return {
        name
        for name, member in inspect.getmembers(kind)
        if inspect.isfunction(member) and not name.startswith(LOCAL) and not name.endswith(LOCAL_ENDINGS)
    }


@pytest.fixture
def topic_and_subscription(server: GrpcServer) -> None:
    create_topic(name=TOPIC, topic={})
    create_subscription(name=SUBSCRIPTION, subscription={"topic": TOPIC})


def publisher_calls(client: pubsub_v1.PublisherClient) -> dict[str, Callable[[], Any]]:
    topic = {"name": TOPIC, "labels": {"a": "b"}}
    return {
        "publish": lambda: client.publish(TOPIC, b"x").result(timeout=30),
        "resume_publish": lambda: refused(ValueError, client.resume_publish, TOPIC, "key"),
        "get_topic": lambda: client.get_topic(topic=TOPIC),
        "list_topics": lambda: list(client.list_topics(project="projects/shop")),
        "list_topic_subscriptions": lambda: list(client.list_topic_subscriptions(topic=TOPIC)),
        "list_topic_snapshots": lambda: list(client.list_topic_snapshots(topic=TOPIC)),
        "update_topic": lambda: client.update_topic(topic=topic, update_mask={"paths": ["labels"]}),
        "set_iam_policy": lambda: client.set_iam_policy(request={"resource": TOPIC, "policy": {}}),
        "get_iam_policy": lambda: client.get_iam_policy(request={"resource": TOPIC}),
        "test_iam_permissions": lambda: client.test_iam_permissions(
            request={"resource": TOPIC, "permissions": ["pubsub.topics.get"]}
        ),
        "detach_subscription": lambda: client.detach_subscription(request={"subscription": SUBSCRIPTION}),
        "create_topic": lambda: client.create_topic(name=TOPIC + "-2"),
        "delete_topic": lambda: client.delete_topic(topic=TOPIC + "-2"),
        "ensure_cleanup_and_commit_timer_runs": lambda: client.ensure_cleanup_and_commit_timer_runs(),
        "stop": lambda: client.stop(),
    }


def subscriber_calls(client: pubsub_v1.SubscriberClient) -> dict[str, Callable[[], Any]]:
    def pull_and_call(method: Callable[..., Any], **more: Any) -> None:
        pubsub_v1_publish()
        (received,) = client.pull(subscription=SUBSCRIPTION, max_messages=1, timeout=30).received_messages
        method(subscription=SUBSCRIPTION, ack_ids=[received.ack_id], **more)

    def subscribe() -> None:
        future = client.subscribe(SUBSCRIPTION, callback=lambda message: message.ack())
        future.cancel()
        future.result(timeout=30)

    def raw_stream() -> None:
        first = {"subscription": SUBSCRIPTION, "stream_ack_deadline_seconds": 10}
        stream = client.streaming_pull(requests=iter([pubsub_v1.types.StreamingPullRequest(first)]), timeout=30)
        assert list(stream) == []

    subscription = {"name": SUBSCRIPTION, "labels": {"a": "b"}}
    snapshot = {"name": SNAPSHOT, "labels": {"a": "b"}}
    now = Timestamp()
    now.GetCurrentTime()
    return {
        "pull": lambda: pull_and_call(client.acknowledge),
        "acknowledge": lambda: pull_and_call(client.acknowledge),
        "modify_ack_deadline": lambda: pull_and_call(client.modify_ack_deadline, ack_deadline_seconds=600),
        "subscribe": subscribe,
        "streaming_pull": raw_stream,
        "get_subscription": lambda: client.get_subscription(subscription=SUBSCRIPTION),
        "list_subscriptions": lambda: list(client.list_subscriptions(project="projects/shop")),
        "update_subscription": lambda: client.update_subscription(
            subscription=subscription, update_mask={"paths": ["labels"]}
        ),
        "modify_push_config": lambda: client.modify_push_config(subscription=SUBSCRIPTION, push_config={}),
        "create_snapshot": lambda: client.create_snapshot(name=SNAPSHOT, subscription=SUBSCRIPTION),
        "get_snapshot": lambda: client.get_snapshot(snapshot=SNAPSHOT),
        "list_snapshots": lambda: list(client.list_snapshots(project="projects/shop")),
        "update_snapshot": lambda: client.update_snapshot(snapshot=snapshot, update_mask={"paths": ["labels"]}),
        "seek": lambda: client.seek(request={"subscription": SUBSCRIPTION, "time": now}),
        "delete_snapshot": lambda: client.delete_snapshot(snapshot=SNAPSHOT),
        "set_iam_policy": lambda: client.set_iam_policy(request={"resource": SUBSCRIPTION, "policy": {}}),
        "get_iam_policy": lambda: client.get_iam_policy(request={"resource": SUBSCRIPTION}),
        "test_iam_permissions": lambda: client.test_iam_permissions(
            request={"resource": SUBSCRIPTION, "permissions": ["pubsub.subscriptions.get"]}
        ),
        "create_subscription": lambda: client.create_subscription(name=SUBSCRIPTION + "-2", topic=TOPIC),
        "delete_subscription": lambda: client.delete_subscription(subscription=SUBSCRIPTION + "-2"),
        "close": lambda: client.close(),
    }


def refused(kind: type[Exception], method: Callable[..., Any], *arguments: Any) -> None:
    with pytest.raises(kind):
        method(*arguments)


def pubsub_v1_publish() -> None:
    client = pubsub_v1.PublisherClient()
    client.publish(TOPIC, b"x").result(timeout=30)
    client.stop()
    client.transport.close()


def test_every_public_method_of_the_publisher_client(topic_and_subscription: None) -> None:
    client = pubsub_v1.PublisherClient()
    calls = publisher_calls(client)
    assert set(calls) == public_methods(pubsub_v1.PublisherClient)
    for call in calls.values():
        call()
    client.transport.close()


def test_every_public_method_of_the_subscriber_client(topic_and_subscription: None) -> None:
    client = pubsub_v1.SubscriberClient()
    calls = subscriber_calls(client)
    assert set(calls) == public_methods(pubsub_v1.SubscriberClient)
    for call in calls.values():
        call()


def test_a_closed_subscriber_sends_no_request(topic_and_subscription: None) -> None:
    client = pubsub_v1.SubscriberClient()
    client.close()
    with pytest.raises((ValueError, exceptions.GoogleAPICallError)):
        client.get_subscription(subscription=SUBSCRIPTION)
