"""Receive authenticated pushes with FastAPI.

PUSH_...=... uvicorn fastapi_receiver:app --port 8080
"""

from __future__ import annotations

import base64
from typing import Annotated

from fastapi import Depends, FastAPI, Header, HTTPException
from pydantic import BaseModel
from verification import InvalidToken, WrongServiceAccount, verify_token


class Message(BaseModel):
    """A message. `messageId` stays the same when a message is pushed again."""

    messageId: str  # noqa: N815
    data: str = ""
    attributes: dict[str, str] = {}


class Push(BaseModel):
    """The body of a push request."""

    message: Message
    subscription: str


app = FastAPI()


def authenticate(authorization: Annotated[str, Header()] = "") -> None:
    """Answer 401 or 403, which makes PushHub push the message again, unless the token is right."""
    try:
        verify_token(authorization)
    except InvalidToken as error:
        raise HTTPException(401, str(error)) from error
    except WrongServiceAccount as error:
        raise HTTPException(403, str(error)) from error


@app.post("/push", status_code=204, dependencies=[Depends(authenticate)])
def receive_push(push: Push) -> None:
    """Handle a message; status 204 acknowledges it."""
    text = base64.b64decode(push.message.data).decode()
    print(f"received {push.message.messageId}: {text}", flush=True)
