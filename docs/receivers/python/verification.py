"""Verify the token of a push request with google-auth."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import cachecontrol
import google.auth.transport.requests
import requests
from google.auth.exceptions import GoogleAuthError
from google.oauth2 import id_token

CERTIFICATES_URL = os.environ["PUSHHUB_URL"] + "/oauth2/v1/certs"
#: PushHub's setting PUSHHUB_ISSUER: the `iss` claim.
ISSUER = os.environ["PUSH_ISSUER"]
#: The audience in the push configuration; without one, the URL of the endpoint.
AUDIENCE = os.environ["PUSH_AUDIENCE"]
#: The service account in the push configuration.
SERVICE_ACCOUNT = os.environ["PUSH_SERVICE_ACCOUNT"]

# The certificates are kept for as long as PushHub's Cache-Control header allows.
_transport = google.auth.transport.requests.Request(cachecontrol.CacheControl(requests.Session()))


class InvalidToken(Exception):
    """The request has no token that PushHub signed for this endpoint (401)."""


class WrongServiceAccount(Exception):
    """The token is valid, but it is another service account's (403)."""


def verify_token(authorization: str) -> Mapping[str, Any]:
    """Return the claims of the token in an Authorization header; InvalidToken or WrongServiceAccount."""
    scheme, _, token = authorization.partition(" ")
    if scheme.lower() != "bearer":
        raise InvalidToken("the request has no bearer token")
    try:
        # This checks the signature, the audience and the expiry.
        claims = id_token.verify_token(token, _transport, audience=AUDIENCE, certs_url=CERTIFICATES_URL)
    except (GoogleAuthError, ValueError) as error:
        raise InvalidToken(str(error)) from error
    if claims["iss"] != ISSUER:
        raise InvalidToken(f"wrong issuer {claims['iss']}")
    if claims.get("email") != SERVICE_ACCOUNT or claims.get("email_verified") is not True:
        raise WrongServiceAccount(f"wrong service account {claims.get('email')}")
    return claims
