"""Message transforms: whether one is valid, and what several make of a message."""

from __future__ import annotations

from typing import Any

from pushhub.common.principals import Principal
from subscriptions.api.routes import PROJECT, serve
from subscriptions.resources import fields
from subscriptions.services.projects import ensure_project
from subscriptions.services.transforms import try_transforms, validate_transform

SERVICE = "google.pubsub.v1.MessageTransforms."


@serve("POST", PROJECT + ":validateMessageTransform", SERVICE, takes=fields.VALIDATE_MESSAGE_TRANSFORM)
def validate_message_transform(project: str, body: object, caller: Principal) -> None:
    """Check that a message transform could be stored."""
    owner = ensure_project(project=project, caller=caller)
    validate_transform(project=owner.project_id, request=body)


@serve("POST", PROJECT + ":testMessageTransforms", SERVICE, takes=fields.TEST_TRANSFORMS, gives=fields.TEST_RESPONSE)
def test_message_transforms(project: str, body: object, caller: Principal) -> Any:
    """Return what message transforms make of a message."""
    owner = ensure_project(project=project, caller=caller)
    answers = try_transforms(project=owner.project_id, request=body)
    return {"transformedMessages": answers} if answers else {}
