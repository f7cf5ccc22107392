"""The fields of message transforms, over gRPC: what each does to messages that are published, pulled and streamed."""

from __future__ import annotations

from queue import SimpleQueue
from typing import Any

import pytest
from google.api_core import exceptions
from google.pubsub_v1 import StreamingPullRequest

from tests.compatibility.fields.trials import SUBSCRIPTION, TOPIC, Shop, tries

UPPER = "function upper(message) { return {data: message.data.toUpperCase(), attributes: {by: 'upper'}}; }"
NO_TESTS = "const noTests = message => message.data === 'test' ? null : message;"
BROKEN = "function broken() { throw new Error('broken'); }"


def udf(function_name: str, code: str, **fields: Any) -> dict[str, Any]:
    return {"javascript_udf": {"function_name": function_name, "code": code}, **fields}


@tries("Topic", "messageTransforms")
@tries("MessageTransform", "javascriptUdf", "disabled")
@tries("JavaScriptUDF", "functionName", "code")
def test_a_topic_stores_the_messages_that_its_functions_return(shop: Shop) -> None:
    javascript_udf = {"function_name": "broken", "code": BROKEN}
    message_transforms = [udf("upper", UPPER), {"javascript_udf": javascript_udf, "disabled": True}]
    name = TOPIC + "-upper"
    topic = shop.topic(name, message_transforms=message_transforms)
    shop.subscription(topic=name)

    assert [transform.javascript_udf.function_name for transform in topic.message_transforms] == ["upper", "broken"]
    assert [transform.disabled for transform in topic.message_transforms] == [False, True]
    [message_id] = shop.publish("hello", topic=name)
    [received] = shop.pull()
    assert (received.message.data, dict(received.message.attributes)) == (b"HELLO", {"by": "upper"})
    assert received.message.message_id == message_id

    change = {"name": name, "message_transforms": [udf("broken", BROKEN)]}
    shop.publisher.update_topic({"topic": change, "update_mask": {"paths": ["message_transforms"]}})
    with pytest.raises(exceptions.InvalidArgument, match="Error: broken"):
        shop.publish("hello", topic=name)


@tries("Subscription", "messageTransforms")
def test_a_subscription_delivers_the_messages_that_its_functions_return(shop: Shop) -> None:
    message_transforms = [udf("noTests", NO_TESTS), udf("upper", UPPER)]
    shop.subscription(message_transforms=message_transforms)
    shop.publish("test", "hello")

    [received] = shop.pull()
    assert received.message.data == b"HELLO"
    shop.ack([received])

    shop.publish("test", "again")
    requests: SimpleQueue[StreamingPullRequest | None] = SimpleQueue()
    requests.put(StreamingPullRequest(subscription=SUBSCRIPTION, stream_ack_deadline_seconds=10))
    stream = shop.subscriber.streaming_pull(iter(requests.get, None))
    streamed = [received.message.data for received in next(iter(stream)).received_messages]
    stream.cancel()
    requests.put(None)
    assert streamed == [b"AGAIN"]
