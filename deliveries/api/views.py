"""The data plane's REST methods: validate, call, respond."""

from __future__ import annotations

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from deliveries.publish.request import PUBLISH_REQUEST, PUBLISH_RESPONSE, parse_publish_request, parse_region
from deliveries.publish.service import publish_message
from pushhub.common.names import topic_name
from subscriptions.api.base import ApiView
from subscriptions.api.openapi import body, message
from subscriptions.selectors import get_topic

#: The header with the region of publishing, if it isn't the deployment's own. Each region has its own push window.
REGION_HEADER = "X-PushHub-Region"


class PublishView(ApiView):
    """`POST /v1/projects/{project}/topics/{topic}:publish`."""

    methods = {"POST": "google.pubsub.v1.Publisher.Publish"}

    @extend_schema(
        operation_id="topics_publish",
        tags=["topics"],
        request=body(PUBLISH_REQUEST),
        responses=message(PUBLISH_RESPONSE),
    )
    def post(self, request: Request, project: str, topic: str) -> Response:
        topic_row = get_topic(name=topic_name(project, topic), field="topic")
        messages = parse_publish_request(request.data)
        region = parse_region(request.headers.get(REGION_HEADER, ""))
        return Response({"messageIds": publish_message(topic=topic_row, messages=messages, region=region)})
