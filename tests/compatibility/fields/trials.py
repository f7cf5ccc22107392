"""Record which test tries which field. The tests' clients are Google's generated ones, which collect no batches."""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

import grpc
from google.pubsub_v1 import PublisherClient, SchemaServiceClient, SubscriberClient
from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport
from google.pubsub_v1.services.schema_service.transports import SchemaServiceGrpcTransport
from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcTransport

from deliveries.backlog.default import default_backlog
from deliveries.backlog.records import Lane
from pushhub.common.protojson import snake_case
from subscriptions.models import Subscription

Test = TypeVar("Test", bound=Callable[..., Any])

TOPIC = "projects/shop/topics/orders"
SUBSCRIPTION = "projects/shop/subscriptions/worker"

#: The fields that at least one test tries, by their names in docs/compatibility.md.
tried: set[str] = set()


def tries(message: str, *fields: str) -> Callable[[Test], Test]:
    """Record that a test tries these fields of a message. Each must occur in the test's own code."""

    def record(test: Test) -> Test:
        words = set(re.findall(r"\w+", inspect.getsource(test).partition("\ndef ")[2]))
        # Python's classes call the field `type` of a message `type_`.
        absent = [field for field in fields if not words & {snake_case(field), f"{snake_case(field)}_"}]
        assert not absent, f"{test.__name__} does not use {absent}"
        tried.update(f"{message}.{field}" for field in fields)
        return test

    return record


class Shop:
    """The clients of the project `shop`, and the requests that the tests send with them."""

    def __init__(self, address: str) -> None:
        self.channel = grpc.insecure_channel(address)
        self.publisher = PublisherClient(transport=PublisherGrpcTransport(channel=self.channel))
        self.subscriber = SubscriberClient(transport=SubscriberGrpcTransport(channel=self.channel))
        self.schemas = SchemaServiceClient(transport=SchemaServiceGrpcTransport(channel=self.channel))

    def topic(self, name: str = TOPIC, **fields: Any) -> Any:
        return self.publisher.create_topic({"name": name, **fields})

    def subscription(self, name: str = SUBSCRIPTION, **fields: Any) -> Any:
        return self.subscriber.create_subscription({"name": name, "topic": TOPIC, **fields})

    def publish(self, *texts: str, topic: str = TOPIC, **fields: Any) -> list[str]:
        messages = [{"data": text.encode(), **fields} for text in texts]
        return list(self.publisher.publish({"topic": topic, "messages": messages}).message_ids)

    def pull(self, name: str = SUBSCRIPTION, count: int = 100) -> list[Any]:
        request = {"subscription": name, "max_messages": count, "return_immediately": True}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # return_immediately is deprecated
            return list(self.subscriber.pull(request).received_messages)

    def nack(self, received: list[Any], name: str = SUBSCRIPTION) -> None:
        ack_ids = [message.ack_id for message in received]
        self.subscriber.modify_ack_deadline({"subscription": name, "ack_ids": ack_ids, "ack_deadline_seconds": 0})

    def ack(self, received: list[Any], name: str = SUBSCRIPTION) -> None:
        self.subscriber.acknowledge({"subscription": name, "ack_ids": [message.ack_id for message in received]})


def seconds_left(kind: str, name: str = SUBSCRIPTION) -> float:
    """Return the seconds until the last lease ("l") or retry ("z") of a subscription ends, by Redis' own clock."""
    client, key = default_backlog().client, _key(kind, name)
    seconds, microseconds = client.time()
    [(_, ends_ms)] = client.zrange(key, -1, -1, withscores=True)
    return float(ends_ms) / 1000 - seconds - microseconds / 1e6


def make_due(kind: str, name: str = SUBSCRIPTION) -> None:
    """Make every lease or retry of a subscription due now, as if its time had passed."""
    client, key = default_backlog().client, _key(kind, name)
    for member in client.zrange(key, 0, -1):
        client.zadd(key, {member: 1})


def _key(kind: str, name: str) -> str:
    row = Subscription.objects.get(subscription_id=name.rpartition("/")[2])
    return f"{Lane(row.pk, 'local').root}:{kind}"
