"""Receive authenticated pushes with Flask, verified as receivers of Cloud Pub/Sub do it: by `verify_oauth2_token`.

PUSH_...=... flask --app flask_receiver run --port 8080

`verify_oauth2_token` takes tokens of Google's issuer only, so PushHub must run with
PUSHHUB_ISSUER=https://accounts.google.com. It fetches the certificates from Google's address; the session below
fetches them from PushHub.
"""

from __future__ import annotations

import base64
import os
from typing import Any

import google.auth.transport.requests
import requests
from cachecontrol.adapter import CacheControlAdapter
from flask import Flask, request
from google.auth.exceptions import GoogleAuthError
from google.oauth2 import id_token

GOOGLE_URL = "https://www.googleapis.com"


class PushHubCertificates(CacheControlAdapter):
    """Send requests for Google's certificates to PushHub."""

    def send(self, request: requests.PreparedRequest, *args: Any, **kwargs: Any) -> requests.Response:
        request.url = str(request.url).replace(GOOGLE_URL, os.environ["PUSHHUB_URL"], 1)
        return super().send(request, *args, **kwargs)


session = requests.Session()
session.mount(f"{GOOGLE_URL}/oauth2/v1/certs", PushHubCertificates())
app = Flask(__name__)


@app.post("/push")
def receive_push() -> tuple[str, int]:
    """Handle a message; status 204 acknowledges it, every other one makes PushHub push it again."""
    _, _, token = request.headers.get("Authorization", "").partition(" ")
    try:
        claims = id_token.verify_oauth2_token(
            token, google.auth.transport.requests.Request(session), audience=os.environ["PUSH_AUDIENCE"]
        )
    except (GoogleAuthError, ValueError) as error:
        return f"{error}\n", 401
    if claims["email"] != os.environ["PUSH_SERVICE_ACCOUNT"] or not claims["email_verified"]:
        return f"wrong service account {claims['email']}\n", 403
    message = request.get_json()["message"]
    text = base64.b64decode(message.get("data", "")).decode()
    print(f"received {message['messageId']}: {text}", flush=True)
    return "", 204
