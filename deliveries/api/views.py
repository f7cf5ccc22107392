"""The data plane's REST methods: validate, call, respond."""

from __future__ import annotations

from typing import Any

from rest_framework.request import Request

from deliveries.publish.request import PUBLISH_REQUEST, PUBLISH_RESPONSE, parse_publish_request, parse_region
from deliveries.publish.service import publish_message
from subscriptions.api.base import ApiView, serve
from subscriptions.selectors import get_topic

#: The header with the region of publishing, if it isn't the deployment's own. Each region has its own push window.
REGION_HEADER = "X-PushHub-Region"


class PublishView(ApiView):
    """`POST /v1/projects/{project}/topics/{topic}:publish`."""

    @serve("google.pubsub.v1.Publisher.Publish", "topics_publish", takes=PUBLISH_REQUEST, gives=PUBLISH_RESPONSE)
    def post(self, request: Request, name: str) -> Any:
        topic_row = get_topic(name=name, field="topic")
        messages = parse_publish_request(request.data)
        region = parse_region(request.headers.get(REGION_HEADER, ""))
        return {"messageIds": publish_message(topic=topic_row, messages=messages, region=region)}
