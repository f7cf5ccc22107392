"""Rotation of signing keys: the next key is published before it signs, the last one until its tokens have expired.

created ...... signs ........................... a successor signs ......... retired
     ANNOUNCED                                                      OUTLIVED
"""

from __future__ import annotations

import logging
from datetime import timedelta

from django.conf import settings
from django.db import transaction

from pushhub.common.clock import utcnow
from subscriptions.identity import keys
from subscriptions.models.iam import SigningKey

#: How long verifiers may cache the published keys.
CERTS_MAX_AGE_SECONDS = 600
#: How long a key is published before it signs. It is twice the cache time, for verifiers that refresh late.
ANNOUNCED = timedelta(seconds=2 * CERTS_MAX_AGE_SECONDS)
#: The last token of a key expires an hour after the successor's first, and may be checked a moment later.
OUTLIVED = timedelta(hours=1, seconds=2 * CERTS_MAX_AGE_SECONDS)

logger = logging.getLogger(__name__)


def maintain_keys() -> dict[str, int]:
    """Create the next key and retire old ones, where due. Beat calls it. Returns how many of each."""
    newest = keys.keys_in_force().first()
    days: int = settings.KEY_ROTATION_DAYS
    is_due = newest is not None and days > 0 and newest.created_at <= utcnow() - timedelta(days=days)
    if is_due:
        rotate_key()
    return {"created": int(is_due), "retired": retire_keys()}


def rotate_key() -> SigningKey:
    """Create the key that signs next, unless it exists already."""
    keys.signing_key()
    newest = keys.keys_in_force().first()
    if newest is None or newest.signs_from <= utcnow():
        keys.make_key(signs_from=utcnow() + ANNOUNCED)
    return keys.keys_in_force()[0]


def replace_keys() -> SigningKey:
    """Replace a private key that was disclosed: a new key signs now, and tokens of the old ones are invalid."""
    with transaction.atomic():
        for row in keys.keys_in_force():
            _retire(row)
        keys.make_key(signs_from=utcnow())
    return keys.keys_in_force()[0]


def retire_keys() -> int:
    """Retire the keys whose tokens have all expired, and erase their private halves. Returns how many."""
    due = [row for row in keys.keys_in_force() if _is_outlived(row)]
    for row in due:
        _retire(row)
    return len(due)


def reencrypt_keys() -> int:
    """Encrypt the keys that the previous secret encrypted with the current one. Returns how many."""
    changed = 0
    with transaction.atomic():
        for row in keys.keys_in_force().select_for_update():
            sealed = keys.resealed(row)
            if sealed is not None:
                row.private_key = sealed
                row.save(update_fields=["private_key"])
                changed += 1
    return changed


def key_state(row: SigningKey) -> str:
    """Return the state of a key in one word."""
    if row.retired_at is not None:
        return "retired"
    if row.signs_from > utcnow():
        return "next"
    return "published" if _successor(row) else "signing"


def _successor(row: SigningKey) -> SigningKey | None:
    """Return the first key that signs in place of `row`, if one does by now."""
    later = SigningKey.objects.filter(generation__gt=row.generation, signs_from__lte=utcnow())
    return later.order_by("signs_from").first()


def _is_outlived(row: SigningKey) -> bool:
    successor = _successor(row)
    return successor is not None and successor.signs_from + OUTLIVED <= utcnow()


def _retire(row: SigningKey) -> None:
    row.retired_at = utcnow()
    row.private_key = ""
    with transaction.atomic():
        row.save(update_fields=["retired_at", "private_key"])
    logger.info("retired signing key %s", row.kid)
