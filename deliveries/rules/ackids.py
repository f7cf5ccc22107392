"""Ack ids: they name one lease of one delivery, in a form that only PushHub can make."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from typing import NamedTuple

MAC_BYTES = 12
#: Ack ids of PushHub have about 100 characters.
MAX_CHARACTERS = 400


class AckId(NamedTuple):
    """A lease. `times` counts the leases of the delivery, so that requests about an earlier lease are recognized."""

    subscription_id: int
    region: str
    message_id: int
    times: int
    attempt: int
    #: When it began, in ms since 1970; 0 in ack ids of older versions.
    leased_ms: int = 0
    is_streamed: bool = False


def ack_id_text(lease: AckId, *, secret: bytes) -> str:
    plain = ".".join(map(str, (*lease[:-1], int(lease.is_streamed)))).encode()
    # The plain text begins with a digit, so the ack id never begins with a hyphen, which command lines take for a flag.
    return base64.urlsafe_b64encode(plain + _mac(plain, secret)).decode().rstrip("=")


def ack_id_parse(text: str, *, secret: bytes) -> AckId | None:
    """Return the lease that an ack id names; None for anything that PushHub did not hand out."""
    if len(text) > MAX_CHARACTERS or not text.isascii():
        return None
    try:
        raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        return None
    plain, mac = raw[:-MAC_BYTES], raw[-MAC_BYTES:]
    if not hmac.compare_digest(mac, _mac(plain, secret)):
        return None
    subscription_id, region, *numbers = plain.decode().split(".")
    message_id, times, attempt, leased_ms, is_streamed = map(int, [*numbers, "0", "0"][:5])
    return AckId(int(subscription_id), region, message_id, times, attempt, leased_ms, bool(is_streamed))


def _mac(plain: bytes, secret: bytes) -> bytes:
    return hashlib.blake2s(plain, key=secret[:32], digest_size=MAC_BYTES, person=b"ack-ids").digest()
