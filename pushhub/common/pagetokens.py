"""Page tokens: signed, so that nobody can make one, and one of one list is refused by another."""

from __future__ import annotations

import base64
import binascii

import orjson
from django.core import signing

from pushhub.common.errors import InvalidArgument

MAX_TOKEN_CHARACTERS = 2048


def _signer(scope: str) -> signing.Signer:
    return signing.Signer(salt=f"pushhub.page:{scope}")


def write_token(values: list[str], scope: str) -> str:
    """Return a page token that holds the values. The caller can't read it for another scope, or make one."""
    return base64.urlsafe_b64encode(_signer(scope).sign(orjson.dumps(values).decode()).encode()).decode().rstrip("=")


def read_token(token: str, scope: str) -> list[str]:
    """Return what `write_token` was given for this scope. Raises InvalidArgument for any other token."""
    try:
        if len(token) > MAX_TOKEN_CHARACTERS:
            raise ValueError
        signed = base64.urlsafe_b64decode(token.encode("ascii") + b"=" * (-len(token) % 4)).decode()
        values: list[str] = orjson.loads(_signer(scope).unsign(signed))
    except (ValueError, binascii.Error, signing.BadSignature):
        raise InvalidArgument(
            "You have passed an invalid argument to the service (argument=page_token).", field="pageToken"
        ) from None
    return values
