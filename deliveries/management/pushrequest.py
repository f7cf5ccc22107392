"""Reads a push request as an endpoint does: the message, and the account that the token proves (`pushhub receive`).

It uses only the request and the public certificates, as an endpoint elsewhere would.
"""

from __future__ import annotations

import base64
import binascii
import codecs
import json
from collections.abc import Mapping
from dataclasses import dataclass, field

import jwt

#: How much of a message is shown.
SHOWN_CHARACTERS = 1000

#: Clocks of two machines differ. Google's own verifiers allow a few seconds as well.
CLOCK_SKEW_SECONDS = 10


@dataclass(frozen=True)
class Pushed:
    """One pushed message, wrapped or not. `delivery_attempt` is 0 if the request does not have it."""

    message_id: str
    subscription: str
    data: bytes
    attributes: dict[str, str] = field(default_factory=dict)
    ordering_key: str = ""
    delivery_attempt: int = 0


class NotAPushError(ValueError):
    """The request's body does not have the form of a push."""


def read_pushed(*, headers: Mapping[str, str], body: bytes) -> Pushed:
    """Return the message of a request. `headers` has lower-case names. Raises NotAPushError with the reason."""
    if "x-goog-pubsub-message-id" in headers:
        return Pushed(
            message_id=headers["x-goog-pubsub-message-id"],
            subscription=headers.get("x-goog-pubsub-subscription-name", ""),
            ordering_key=headers.get("x-goog-pubsub-ordering-key", ""),
            data=body,
        )
    try:
        envelope = json.loads(body)
        message = envelope["message"]
        return Pushed(
            message_id=str(message["messageId"]),
            subscription=str(envelope["subscription"]),
            data=base64.b64decode(message.get("data", ""), validate=True),
            attributes={str(key): str(value) for key, value in message.get("attributes", {}).items()},
            ordering_key=str(message.get("orderingKey", "")),
            delivery_attempt=int(envelope.get("deliveryAttempt", 0)),
        )
    except (ValueError, KeyError, TypeError, AttributeError, binascii.Error) as error:
        raise NotAPushError(f"{type(error).__name__}: {error}") from None


class TokenVerifier:
    """Verifies push tokens against a JWK set, as an endpoint should: signature, audience, lifetime, then the email."""

    def __init__(self, *, audience: str, certs_url: str) -> None:
        self.audience = audience
        self._keys = jwt.PyJWKClient(certs_url, timeout=5)

    def email(self, authorization: str) -> str:
        """Return the verified email of an Authorization header's token. Raises jwt.PyJWTError with the reason."""
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() != "bearer" or not token:
            raise jwt.InvalidTokenError("the request carries no bearer token")
        claims = jwt.decode(
            token,
            self._keys.get_signing_key_from_jwt(token).key,
            algorithms=["RS256"],
            audience=self.audience,
            leeway=CLOCK_SKEW_SECONDS,
            options={"require": ["aud", "email", "exp", "iat", "iss", "sub"]},
        )
        if claims.get("email_verified") is not True:
            raise jwt.InvalidTokenError("the token's email is not verified")
        return str(claims["email"])


def text_for_people(data: bytes) -> str:
    """Data as text that cannot move a terminal's cursor or fill its screen."""
    try:
        # The incremental decoder does not mind a character that the cut went through.
        text = codecs.getincrementaldecoder("utf-8")().decode(data[: 4 * SHOWN_CHARACTERS])
    except UnicodeDecodeError:
        return f"{len(data)} bytes that are not text: {data[:32].hex(' ')}{' ...' if len(data) > 32 else ''}"
    shown = "".join(map(_printable, text[:SHOWN_CHARACTERS]))
    return shown if text[:SHOWN_CHARACTERS].encode() == data else f"{shown} ... ({len(data)} bytes)"


def _printable(character: str) -> str:
    if character.isprintable():
        return character
    return character.encode("unicode_escape").decode()
