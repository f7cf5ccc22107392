"""Message transforms over REST: whether one is valid, and what several make of a message."""

from __future__ import annotations

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from subscriptions.api.base import ApiView, caller_of
from subscriptions.api.openapi import EMPTY, body, message
from subscriptions.resources import fields
from subscriptions.services.projects import ensure_project
from subscriptions.services.transforms import try_transforms, validate_transform

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
        owner = ensure_project(project=project, caller=caller_of(request))
        validate_transform(project=owner.project_id, request=request.data)
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
        owner = ensure_project(project=project, caller=caller_of(request))
        answers = try_transforms(project=owner.project_id, request=request.data)
        return Response({"transformedMessages": answers} if answers else {})
