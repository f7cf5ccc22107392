"""The data plane's REST methods: validate, call, respond."""

from __future__ import annotations

from rest_framework.request import Request
from rest_framework.response import Response

from deliveries.api.publish_request import publish_request_parse
from deliveries.services import message_publish
from pushhub.names import topic_name
from subscriptions.api.base import ApiView
from subscriptions.selectors import topic_get


class PublishView(ApiView):
    """`POST /v1/projects/{project}/topics/{topic}:publish`."""

    def post(self, request: Request, project: str, topic: str) -> Response:
        messages = publish_request_parse(request.data)
        found = topic_get(name=topic_name(project, topic), field="topic")
        return Response({"messageIds": message_publish(topic=found, messages=messages)})
