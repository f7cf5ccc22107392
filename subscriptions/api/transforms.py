"""Message transforms over REST: whether one is valid, and what several make of a message."""

from __future__ import annotations

from typing import Any

from rest_framework.request import Request

from subscriptions.api.base import ApiView, caller_of, serve
from subscriptions.resources import fields
from subscriptions.services.projects import ensure_project
from subscriptions.services.transforms import try_transforms, validate_transform

SERVICE = "google.pubsub.v1.MessageTransforms."


class ValidateMessageTransform(ApiView):
    """`POST /v1/projects/{project}:validateMessageTransform`."""

    @serve(
        SERVICE + "ValidateMessageTransform",
        "projects_validateMessageTransform",
        takes=fields.VALIDATE_MESSAGE_TRANSFORM,
        tag="messageTransforms",
    )
    def post(self, request: Request, project: str) -> None:
        owner = ensure_project(project=project, caller=caller_of(request))
        validate_transform(project=owner.project_id, request=request.data)


class TestMessageTransforms(ApiView):
    """`POST /v1/projects/{project}:testMessageTransforms`."""

    @serve(
        SERVICE + "TestMessageTransforms",
        "projects_testMessageTransforms",
        takes=fields.TEST_MESSAGE_TRANSFORMS,
        gives=fields.TEST_MESSAGE_TRANSFORMS_RESPONSE,
        tag="messageTransforms",
    )
    def post(self, request: Request, project: str) -> Any:
        owner = ensure_project(project=project, caller=caller_of(request))
        answers = try_transforms(project=owner.project_id, request=request.data)
        return {"transformedMessages": answers} if answers else {}
