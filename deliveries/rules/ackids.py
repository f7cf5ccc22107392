"""Ack ids: they name one lease of one delivery, in a form that only PushHub can make."""

from __future__ import annotations

import binascii
import hashlib
import hmac
from functools import lru_cache
from typing import NamedTuple

MAC_BYTES = 12
#: The last two characters of the alphabet, in standard and in URL-safe base64.
TO_URL_SAFE, FROM_URL_SAFE = bytes.maketrans(b"+/", b"-_"), bytes.maketrans(b"-_", b"+/")
#: Ack ids of PushHub have about 100 characters.
MAX_CHARACTERS = 400
#: What ack ids of the release before lack: the generation and the seek.
MISSING = ("", "0")


class AckId(NamedTuple):
    """A lease. `times` counts the leases of the delivery in one generation of its lane (common.lua).

    Requests about an earlier lease are recognized by the two.
    """

    subscription_id: int
    region: str
    message_id: int
    times: int
    attempt: int
    #: When it began, in ms since 1970.
    leased_ms: int = 0
    is_streamed: bool = False
    #: "" in ack ids of the release before, which suit each generation.
    generation: str = ""
    #: The last seek before it that made the subscription owe the message, or 0.
    seek: int = 0


def ack_id_text(lease: AckId, *, secret: bytes) -> str:
    pk, region, message_id, times, attempt, leased_ms, is_streamed, generation, seek = lease
    plain = f"{pk}.{region}.{message_id}.{times}.{attempt}.{leased_ms}.{is_streamed:d}.{generation}.{seek}".encode()
    # The plain text begins with a digit, so the ack id never begins with a hyphen, which command lines take for a flag.
    encoded = binascii.b2a_base64(plain + _mac(plain, secret), newline=False)
    return encoded.translate(TO_URL_SAFE).rstrip(b"=").decode()


def parse_ack_id(text: str, *, secret: bytes) -> AckId | None:
    """Return the lease that an ack id names; None for anything that PushHub did not hand out."""
    if len(text) > MAX_CHARACTERS or not text.isascii():
        return None
    try:
        encoded = (text + "=" * (-len(text) % 4)).encode().translate(FROM_URL_SAFE)
        raw = binascii.a2b_base64(encoded, strict_mode=True)
    except binascii.Error:
        return None
    plain, mac = raw[:-MAC_BYTES], raw[-MAC_BYTES:]
    if not hmac.compare_digest(mac, _mac(plain, secret)):
        return None
    fields = [*plain.decode().split("."), *MISSING][: len(AckId._fields)]
    pk, region, message_id, times, attempt, leased_ms, is_streamed, generation, seek = fields
    lease = int(pk), region, int(message_id), int(times), int(attempt)
    return AckId(*lease, int(leased_ms), is_streamed == "1", generation, int(seek))


def _mac(plain: bytes, secret: bytes) -> bytes:
    mac = _keyed(secret).copy()
    mac.update(plain)
    return mac.digest()


@lru_cache(maxsize=8)
def _keyed(secret: bytes) -> hashlib.blake2s:
    return hashlib.blake2s(key=secret[:32], digest_size=MAC_BYTES, person=b"ack-ids")
