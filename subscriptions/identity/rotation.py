"""Turning signing keys over: the next is published before it signs, the last stays until its tokens have ended.

made ......... signs ........................... a successor signs ......... retired
     ANNOUNCED                                                      OUTLIVED
"""

from __future__ import annotations

import logging
from datetime import timedelta

from django.conf import settings
from django.db import transaction
from django.db.models import QuerySet

from pushhub.common.clock import utcnow
from subscriptions.identity import keys
from subscriptions.models.iam import SigningKey

#: For so long a verifier may go by the keys that it was told.
CERTS_MAX_AGE_SECONDS = 600
#: A key is served for this long before it signs: twice, for verifiers that are a little slow to ask again.
ANNOUNCED = timedelta(seconds=2 * CERTS_MAX_AGE_SECONDS)
#: Its last token ends an hour after the successor's first, and may be looked at for a moment after that.
OUTLIVED = timedelta(hours=1, seconds=2 * CERTS_MAX_AGE_SECONDS)

logger = logging.getLogger(__name__)


def keys_maintain() -> dict[str, int]:
    """What is due: the next key, and the retirement of old ones. Asked for by beat; how many of each."""
    newest = _in_use().first()
    days: int = settings.KEY_ROTATION_DAYS
    is_due = newest is not None and days > 0 and newest.created_at <= utcnow() - timedelta(days=days)
    if is_due:
        key_rotate()
    return {"made": int(is_due), "retired": keys_retire()}


def key_rotate() -> SigningKey:
    """Make the key that signs next, unless it is there already."""
    keys.signing_key()
    newest = _in_use().first()
    if newest is None or newest.signs_from <= utcnow():
        keys.key_make(signs_from=utcnow() + ANNOUNCED)
    return _in_use()[0]


def keys_replace() -> SigningKey:
    """For a private key that got out: another signs from now on, and nothing that the old ones signed is good."""
    with transaction.atomic():
        for row in _in_use():
            _retire(row)
        keys.key_make(signs_from=utcnow())
    return _in_use()[0]


def keys_retire() -> int:
    """Retire the keys whose tokens have all ended, and forget their private halves."""
    due = [row for row in _in_use() if _is_outlived(row)]
    for row in due:
        _retire(row)
    return len(due)


def keys_reencrypt() -> int:
    """Encrypt under the present secret what is encrypted under the previous one; how many there were."""
    changed = 0
    with transaction.atomic():
        for row in _in_use().select_for_update():
            sealed = keys.resealed(row)
            if sealed is not None:
                row.private_key = sealed
                row.save(update_fields=["private_key"])
                changed += 1
    return changed


def key_state(row: SigningKey) -> str:
    """One word on what a key does now."""
    if row.retired_at is not None:
        return "retired"
    if row.signs_from > utcnow():
        return "next"
    return "published" if _successor(row) else "signing"


def _in_use() -> QuerySet[SigningKey]:
    """Newest first."""
    return SigningKey.objects.filter(retired_at=None).order_by("-generation")


def _successor(row: SigningKey) -> SigningKey | None:
    """The first to sign in place of `row`, if one does by now."""
    later = SigningKey.objects.filter(generation__gt=row.generation, signs_from__lte=utcnow())
    return later.order_by("signs_from").first()


def _is_outlived(row: SigningKey) -> bool:
    successor = _successor(row)
    return successor is not None and successor.signs_from + OUTLIVED <= utcnow()


def _retire(row: SigningKey) -> None:
    row.retired_at = utcnow()
    row.private_key = ""
    row.save(update_fields=["retired_at", "private_key"])
    logger.info("retired signing key %s", row.kid)
