"""Whether messages can be stored: what the last request met with, and a try."""

from __future__ import annotations

import os
import secrets
import time

from django.conf import settings

from deliveries.models import Message
from deliveries.store import statements
from deliveries.store.writelock import impatient_transaction
from pushhub.common.outages import Cause

#: The size of a message that is only tried: PostgreSQL would move a larger one out of the table.
TRIED_BYTES = 1_500
#: Ids below this one are of the first two seconds of 2020 (rules/ids.py), so no message has the id of a try.
TRIED_IDS = 2**32
#: A message is tried at most so often, whoever asks.
TRIED_SECONDS = 1.0
#: How long a try waits for other writers. Whoever asks how a subscription fares waits for it.
PATIENCE_SECONDS = 1.0
#: How long a request that could not be stored says that others can't be either.
REFUSAL_SECONDS = 10.0

#: Why this process could not store the last request, and when; None if it could.
_refusal: tuple[Cause, float] | None = None

#: When a message could last be stored, and how long that took.
_tried: tuple[float, float] | None = None


def refusal() -> Cause | None:
    """Return why this process could not store the last request, unless that was long ago.

    A full disk may have room for the small message of `try_to_store`.
    """
    known = _refusal
    return known[0] if known is not None and time.monotonic() - known[1] < REFUSAL_SECONDS else None


def note_refusal(cause: Cause | None) -> None:
    """Note why a request could not be stored; None says that it could."""
    global _refusal
    _refusal = (cause, time.monotonic()) if cause is not None else None


def seconds_to_store() -> float:
    """Return how long it took to store a message, at most a second ago. Raises what a publish would raise."""
    global _tried
    began = time.monotonic()
    if _tried is None or began - _tried[0] > TRIED_SECONDS:
        _tried = None
        try_to_store()
        _tried = began, time.monotonic() - began
    return _tried[1]


def try_to_store() -> None:
    """Store a message that nobody sees, and delete it in the same transaction.

    Raises what a publish would raise, but after PATIENCE_SECONDS.
    """
    message_id = secrets.randbelow(TRIED_IDS)
    with impatient_transaction(PATIENCE_SECONDS):
        statements.insert_messages([(message_id, 0, settings.REGION, os.urandom(TRIED_BYTES), "", "")])
        Message.objects.filter(pk=message_id).delete()
