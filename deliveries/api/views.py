"""The data plane's REST methods: validate, call, respond."""

from __future__ import annotations

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from deliveries.publish.request import PUBLISH_REQUEST, PUBLISH_RESPONSE, publish_request_parse, region_parse
from deliveries.publish.service import message_publish
from pushhub.common.names import topic_name
from subscriptions.api.base import ApiView
from subscriptions.api.openapi import body, message
from subscriptions.selectors import topic_get

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
        topic_row = topic_get(name=topic_name(project, topic), field="topic")
        messages = publish_request_parse(request.data)
        region = region_parse(request.headers.get(REGION_HEADER, ""))
        return Response({"messageIds": message_publish(topic=topic_row, messages=messages, region=region)})
