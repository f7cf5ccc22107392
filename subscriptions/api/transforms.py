"""Message transforms over REST: whether one is valid, and what several make of a message."""

from __future__ import annotations

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from subscriptions.api.base import ApiView, caller_of
from subscriptions.api.openapi import EMPTY, body, message
from subscriptions.resources import fields
from subscriptions.services.projects import project_ensure
from subscriptions.services.transforms import transform_validate, transforms_test

TAGS = ["messageTransforms"]
SERVICE = "google.pubsub.v1.MessageTransforms."


class ValidateMessageTransform(ApiView):
    """`POST /v1/projects/{project}:validateMessageTransform`."""

    methods = {"POST": SERVICE + "ValidateMessageTransform"}

    @extend_schema(
        operation_id="projects_validateMessageTransform",
        tags=TAGS,
        request=body(fields.VALIDATE_MESSAGE_TRANSFORM),
        responses=EMPTY,
    )
    def post(self, request: Request, project: str) -> Response:
        owner = project_ensure(project=project, caller=caller_of(request))
        transform_validate(project=owner.project_id, request=request.data)
        return Response({})


class TestMessageTransforms(ApiView):
    """`POST /v1/projects/{project}:testMessageTransforms`."""

    methods = {"POST": SERVICE + "TestMessageTransforms"}

    @extend_schema(
        operation_id="projects_testMessageTransforms",
        tags=TAGS,
        request=body(fields.TEST_MESSAGE_TRANSFORMS),
        responses=message(fields.TEST_MESSAGE_TRANSFORMS_RESPONSE),
    )
    def post(self, request: Request, project: str) -> Response:
        owner = project_ensure(project=project, caller=caller_of(request))
        answers = transforms_test(project=owner.project_id, request=request.data)
        return Response({"transformedMessages": answers} if answers else {})
