"""Publishing over REST."""

from __future__ import annotations

from typing import Any

from rest_framework.request import Request

from deliveries.publish.request import PUBLISH_REQUEST, PUBLISH_RESPONSE, parse_publish_request, parse_region
from deliveries.publish.service import publish_message
from subscriptions.api.routes import TOPIC, serve
from subscriptions.iam.methods import PUBLISH
from subscriptions.selectors import get_topic

#: The header with the region of publishing, if it isn't the deployment's own. Each region has its own push window.
REGION_HEADER = "X-PushHub-Region"


@serve("POST", TOPIC + ":publish", PUBLISH, takes=PUBLISH_REQUEST, gives=PUBLISH_RESPONSE)
def publish(name: str, request: Request) -> Any:
    """Publish messages to a topic."""
    topic_row = get_topic(name=name, field="topic")
    messages = parse_publish_request(request.data)
    region = parse_region(request.headers.get(REGION_HEADER, ""))
    return {"messageIds": publish_message(topic=topic_row, messages=messages, region=region)}
