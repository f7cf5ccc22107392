"""Which audiences of a service account's token mean PushHub: its own URLs and Google's. Pure.

Clients that are pointed at PushHub still name Google's services as the audience. Such a token is worthless at Google,
and here it gives no more than one for PushHub would: only keys created here or uploaded here are trusted.
"""

from __future__ import annotations

import re
from collections.abc import Collection

#: The audience of assertions by Google's clients, whatever token URL the key file has.
GOOGLE_TOKEN_ADDRESSES = frozenset(
    {
        "https://oauth2.googleapis.com/token",
        "https://www.googleapis.com/oauth2/v4/token",
        "https://accounts.google.com/o/oauth2/token",
    }
)
GOOGLE_SERVICES = re.compile(
    r"https://(?:pubsub|[a-z0-9-]{1,40}-pubsub|iam|iamcredentials|cloudresourcemanager)\.googleapis\.com", re.ASCII
)
#: gRPC clients may append the name of the service to the host.
SERVICE_PATH = re.compile(r"/?|/google\.[a-z0-9.]{1,60}\.[A-Za-z]{1,60}/?", re.ASCII)


def is_token_address(audience: object, *, public_url: str) -> bool:
    """Whether an assertion is for /token."""
    return isinstance(audience, str) and (audience == f"{public_url}/token" or audience in GOOGLE_TOKEN_ADDRESSES)


def is_service(audience: object, *, own: Collection[str]) -> bool:
    """Whether a self-signed token is for the API, under one of PushHub's `own` URLs or Google's."""
    if not isinstance(audience, str):
        return False
    of_google = GOOGLE_SERVICES.match(audience)
    urls = [*own, *([of_google[0]] if of_google else [])]
    return any(audience.startswith(url) and SERVICE_PATH.fullmatch(audience, len(url)) for url in urls)
